// Inputs for benchmarks, made on the device: no host has to hold their caches of many GB.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/decode.h"
#include "flashlatent/sparse_prefill.h"
#include "runtime/device_memory.h"

namespace flashlatent::runtime {

/// Tensors on the executor's device: normal data, pages in random order, lengths as given. Sparse: each query
/// token's indices name random tokens of its request, without repeats while there are enough.
struct BenchInput {
  DecodeProblem problem;
  DecodeInputs inputs;
  DecodeOutputs outputs;
  std::vector<std::int32_t> host_table, host_lengths, host_indices;  // host copies of the tensors
  std::vector<std::int32_t> host_extra_table, host_extra_indices;    // of the extra cache
  HostPages pages() const {
    return {{host_table.data(), Dtype::kI32, {problem.query.batch, problem.cache.max_pages}},
            {host_lengths.data(), Dtype::kI32, {problem.query.batch}}};
  }
  Buffer q, kv_cache, value_cache, scale, block_table, cache_seqlens, indices, out, lse;
  Buffer extra_kv_cache, extra_names, extra_lengths, topk_length, sink;
  Buffer positions, table, codes, scales;  // of edges
};

/// `problem` without batch, which the lengths give (sparse: from 1), with max_pages where the page table is
/// to have more columns than the longest request needs; no ragged queries. An FP8 cache is quantised from
/// bf16 on the device, which needs memory for both. With an extra cache each request has `extra_tokens` there
/// (of extra.max_pages nothing is read), lengths of indices are given, all of them full, and an attention
/// sink is 0. The requests have their first `shared_tokens` tokens in common, as far as these fill pages.
/// `deviation`: that of queries and cached rows; separate keys and values in e4m3 have it as their scale.
/// Needs more memory than the executor's device or the host has: kExhausted, before any is taken.
Result<BenchInput> make_bench_input(DecodeProblem problem, const std::vector<int>& lengths, float deviation,
                                    std::uint64_t seed, const Executor& executor, int shared_tokens = 0,
                                    int extra_tokens = 0);

/// Which edges of the layer a call has.
struct BenchEdges {
  bool query = false, output = false;
  bool norm = true;  ///< With `query`.

  bool any() const { return query || output; }
};
/// Gives the input DeepSeek V4's edges: query norm, if wanted, and rotation of the last 64 columns; the
/// inverse rotation, and in place of `out` an FP8 output with scales for 128 columns and up to eight groups
/// of heads.
Status add_edges(BenchInput& input, BenchEdges edges, std::uint64_t seed, const Executor& executor);

/// The query tokens of an input of one request and indices, as a sparse prefill. A plain cache with pages of
/// one token becomes contiguous rows.
SparsePrefillInputs prefill_inputs(const BenchInput& input);

/// Does the memory suffice for make_bench_input()?
Status check_bench_memory(const DecodeProblem& problem, const std::vector<int>& lengths,
                          const Executor& executor, int shared_tokens = 0, int extra_tokens = 0);

/// Fills `count` elements of bf16 or fp16 with normal values of standard deviation `scale`.
Status fill_normal(void* data, std::int64_t count, Dtype dtype, float scale, std::uint64_t seed,
                   const Executor& executor);

/// Makes fp32 scales of the caches no powers of two, as vLLM's writer of fp8_656 leaves them.
/// Returns whether there are any.
Result<bool> spread_scales(const BenchInput& input, const Executor& executor);

#if FLASHLATENT_WITH_CUDA
/// fill_normal() for CUDA.
Status fill_normal_cuda(void* data, std::int64_t count, Dtype dtype, float scale, std::uint64_t seed,
                        const Executor& executor);
#endif

}  // namespace flashlatent::runtime
