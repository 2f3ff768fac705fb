// What the CUDA backend offers to dispatch, and its folders to each other. Plain C++: no CUDA header.
#pragma once

#include <span>
#include <vector>

#include "core/input_check.h"
#include "core/step_tokens.h"
#include "flashlatent/combine.h"
#include "flashlatent/edges.h"
#include "flashlatent/exchange.h"
#include "flashlatent/kv_cache.h"
#include "kernel/decode_kernel.h"
#include "plan/building.h"
#include "plan/chosen_kernel.h"
#include "plan/prefix.h"
#include "plan/ragged_lengths.h"
#include "plan/workers.h"

namespace flashlatent::prefix {
struct Group;
}  // namespace flashlatent::prefix

namespace flashlatent::cuda {

// docs/architecture.md, "Kernels on CUDA", has a line on each.

// Plain latent caches, and others as docs/architecture.md says.
extern const DecodeKernel kMla16TransposedKernel;
extern const DecodeKernel kMla16Team4Kernel;
extern const DecodeKernel kMla16Team8Kernel;
extern const DecodeKernel kMla16Team16Kernel;
extern const DecodeKernel kMla16Kernel;
extern const DecodeKernel kMla64PingpongKernel;
extern const DecodeKernel kMla64RolesKernel;
// fp8_584 caches, few requests.
extern const DecodeKernel kMla64TeamKernel;
// fp8_656 caches: fp8_32, fp8_16_team8, fp8_64.
extern const DecodeKernel kFp8Rows32Kernel;
extern const DecodeKernel kFp8Rows16Team8Kernel;
extern const DecodeKernel kFp8Rows64Kernel;
// e4m3 latent caches: mla_64_e4m3.
extern const DecodeKernel kE4m3Kernel;
// Separate and packed keys and values.
extern const DecodeKernel kGqa16Kernel;
extern const DecodeKernel kGqa128SplitKernel;
extern const DecodeKernel kGqa128Kernel;

/// Is there a driver and a device of compute capability 9.0?
Status available();
std::vector<DeviceInfo> devices();
/// The multiprocessors of `device`. kUnavailable, with the reason, if it cannot be used.
Result<int> multiprocessors(int device);
/// The multiprocessors of `device` and their speed.
Result<schedule::Workers> workers(int device);

/// Writes which kernel computes calls of a plan: the near one, if no request has more than `near_tokens`
/// tokens. Later launches that overlap with those before them read this before they wait, so a launch that
/// does not overlap must come between.
Status choose_kernel(const ConstTensorView& lengths, std::int32_t near_tokens, schedule::KernelRange* chosen,
                     const Executor& executor);

/// Makes a plan (plan/schedule.h) in device memory: one kernel launch on `executor.stream`.
Status build_plan(const schedule::Geometry& geometry, const ConstTensorView& cache_seqlens, Memory plan,
                  const Executor& executor, const schedule::Building& building = {});

/// The same for items with two lists of tokens, and for ragged requests. Their splits are never fixed.
Status build_plan(const schedule::Geometry& geometry, const schedule::UnionLengths& lengths, Memory plan,
                  const Executor& executor, const schedule::Building& building = {});
Status build_plan(const schedule::Geometry& geometry, const schedule::RaggedLengths& lengths, Memory plan,
                  const Executor& executor, const schedule::Building& building = {});

/// The same for requests that share prefixes. One more launch comes first for each 960 words of the groups'
/// tiles and requests. `host_lengths`: the values of cache_seqlens, needed where there are groups.
Status build_plan(const schedule::Geometry& geometry, const prefix::Shape& shape,
                  std::span<const prefix::Group> groups, const std::int32_t* host_lengths,
                  const ConstTensorView& cache_seqlens, Memory plan, const Executor& executor,
                  bool packs = true);

/// Where ranks share contexts: writes the held tokens to memory of held_bytes(). One kernel launch.
Status hold_tokens(const schedule::HeldShape& shape, const ConstTensorView& contexts, void* memory,
                   const Executor& executor);

/// combine() and the operations of flashlatent/kv_cache.h on device memory, one kernel launch each. Arguments
/// are already validated.
decltype(flashlatent::append_latent) append_latent;
decltype(flashlatent::convert_cache) convert_cache;
decltype(flashlatent::gather_cache) gather_cache;
decltype(flashlatent::copy_pages) copy_pages;
decltype(flashlatent::append_kv) append_kv;
decltype(flashlatent::gather_kv) gather_kv;
decltype(flashlatent::convert_kv) convert_kv;
decltype(flashlatent::combine) combine;
decltype(flashlatent::prepare_queries) prepare_queries;
decltype(flashlatent::finish_outputs) finish_outputs;
/// combine() for partial results of 16 bits.
decltype(flashlatent::combine) combine_halves;
decltype(flashlatent::exchange_combine) exchange_combine;
decltype(flashlatent::exchange_gather) exchange_gather;

/// prepare_step(), validated. One kernel launch.
Status prepare_step(const step_tokens::Call& call, const Executor& executor);

/// flashlatent::check_inputs() on device memory, one kernel launch. Arguments are already validated.
Status check_inputs(const input_check::Tables& tables, InputOffence* offence, const Executor& executor);

}  // namespace flashlatent::cuda
