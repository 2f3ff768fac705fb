// Inputs for benchmarks, made where they are used: caches of many GB that no host has to hold.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/decode.h"
#include "flashlatent/sparse_prefill.h"
#include "runtime/device_memory.h"

namespace flashlatent::runtime {

/// Tensors on the executor's device: normal data, pages permuted, lengths as given. Sparse: each query
/// token's indices name random tokens of its request, different ones as far as there are so many.
struct BenchInput {
  DecodeProblem problem;
  DecodeInputs inputs;
  DecodeOutputs outputs;
  std::vector<std::int32_t> host_table, host_lengths, host_indices;  // what the tensors have
  std::vector<std::int32_t> host_extra_table, host_extra_indices;    // of the extra cache
  HostPages pages() const {
    return {{host_table.data(), Dtype::kI32, {problem.query.batch, problem.cache.max_pages}},
            {host_lengths.data(), Dtype::kI32, {problem.query.batch}}};
  }
  Buffer q, kv_cache, value_cache, scale, block_table, cache_seqlens, indices, out, lse;
  Buffer extra_kv_cache, extra_names, extra_lengths, topk_length, sink;
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

/// Of an input of one request and indices, its query tokens as a sparse prefill's; a page of one token is a
/// row of plain caches.
SparsePrefillInputs prefill_inputs(const BenchInput& input);

/// Would make_bench_input() have the memory?
Status check_bench_memory(const DecodeProblem& problem, const std::vector<int>& lengths,
                          const Executor& executor, int shared_tokens = 0, int extra_tokens = 0);

/// Fills `count` elements of bf16 or fp16 with normal values of deviation `scale`.
Status fill_normal(void* data, std::int64_t count, Dtype dtype, float scale, std::uint64_t seed,
                   const Executor& executor);

#if FLASHLATENT_WITH_CUDA
/// fill_normal() for CUDA.
Status fill_normal_cuda(void* data, std::int64_t count, Dtype dtype, float scale, std::uint64_t seed,
                        const Executor& executor);
#endif

}  // namespace flashlatent::runtime
