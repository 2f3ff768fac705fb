// The CUDA backend as the dispatcher sees it. Plain C++: no CUDA header.
#pragma once

#include <span>
#include <vector>

#include "core/input_check.h"
#include "flashlatent/combine.h"
#include "flashlatent/exchange.h"
#include "flashlatent/kv_cache.h"
#include "kernel/decode_kernel.h"
#include "plan/building.h"
#include "plan/prefix.h"
#include "plan/ragged_lengths.h"

namespace flashlatent::prefix {
struct Group;
}  // namespace flashlatent::prefix

namespace flashlatent::cuda {

/// Up to 8 query rows a KV head, from fp8_656 caches 16, transposed.
extern const DecodeKernel kMla16TransposedKernel;
/// The same by clusters, of 8 and 16, that share a request's blocks and merge what they have by themselves:
/// small batches, of any rows.
extern const DecodeKernel kMla16Team4Kernel;
extern const DecodeKernel kMla16Team8Kernel;
extern const DecodeKernel kMla16Team16Kernel;
/// Up to 16 query rows a KV head, as they are.
extern const DecodeKernel kMla16Kernel;
/// 64 query rows a tile, two warpgroups that share each tile.
extern const DecodeKernel kMla64PingpongKernel;
/// The same, one warpgroup scores and two multiply with V: large batches of more rows.
extern const DecodeKernel kMla64RolesKernel;
/// fp8_656 caches, bytes straight to the tensor cores.
extern const DecodeKernel kFp8Rows32Kernel;
/// The same by clusters of 8, as mla_16's.
extern const DecodeKernel kFp8Rows16Team8Kernel;
/// The same of more query rows, 64 a tile: one warpgroup scores and two multiply with V.
extern const DecodeKernel kFp8Rows64Kernel;
/// e4m3 latent caches, products in e4m3: 16 or 64 query rows a tile.
extern const DecodeKernel kE4m3Kernel;
/// Separate keys and values, a warp 16 tokens at a time.
extern const DecodeKernel kPagedKernel;
/// The same by up to 128 query rows a tile, split by the plan: several query tokens, large groups.
extern const DecodeKernel kPaged128Kernel;
/// The same for many query tokens, prompts above all: 128 query rows a tile.
extern const DecodeKernel kPrefillKernel;

/// Is there a driver and a device of compute capability 9.0?
Status available();
std::vector<DeviceInfo> devices();
/// Multiprocessors of `device`, or why it can't be used.
Result<int> multiprocessors(int device);
/// The same, and how fast they are.
Result<schedule::Workers> workers(int device);

/// One kernel launch on `executor.stream`: the plan of plan/schedule.h in device memory.
Status build_plan(const schedule::Geometry& geometry, const ConstTensorView& cache_seqlens, Memory plan,
                  const Executor& executor, const schedule::Building& building = {});

/// The same of items with two lists, and of ragged ones, whose splits are not fixed.
Status build_plan(const schedule::Geometry& geometry, const schedule::UnionLengths& lengths, Memory plan,
                  const Executor& executor, const schedule::Building& building = {});
Status build_plan(const schedule::Geometry& geometry, const schedule::RaggedLengths& lengths, Memory plan,
                  const Executor& executor, const schedule::Building& building = {});

/// The same where requests share prefixes, after one more launch for some 900 of their tiles and requests.
/// `host_lengths`: where there are groups, what cache_seqlens are.
Status build_plan(const schedule::Geometry& geometry, const prefix::Shape& shape,
                  std::span<const prefix::Group> groups, const std::int32_t* host_lengths,
                  const ConstTensorView& cache_seqlens, Memory plan, const Executor& executor,
                  bool packs = true);

/// One kernel launch: what is here of contexts that ranks share, in memory of held_bytes().
Status hold_tokens(const schedule::HeldShape& shape, const ConstTensorView& contexts, void* memory,
                   const Executor& executor);

/// combine() and the operations of flashlatent/kv_cache.h on device memory, a kernel launch each; arguments
/// are already validated.
decltype(flashlatent::append_latent) append_latent;
decltype(flashlatent::convert_cache) convert_cache;
decltype(flashlatent::gather_cache) gather_cache;
decltype(flashlatent::copy_pages) copy_pages;
decltype(flashlatent::append_kv) append_kv;
decltype(flashlatent::gather_kv) gather_kv;
decltype(flashlatent::convert_kv) convert_kv;
decltype(flashlatent::combine) combine;
/// combine() of partial results of 16 bits.
decltype(flashlatent::combine) combine_halves;
decltype(flashlatent::exchange_combine) exchange_combine;

/// flashlatent::check_inputs on device memory, a kernel launch; arguments are already validated.
Status check_inputs(const input_check::Tables& tables, InputOffence* offence, const Executor& executor);

}  // namespace flashlatent::cuda
