#include "core/validate.h"

#include <cstdint>
#include <vector>

#include "core/expect.h"
#include "core/fp8_656.h"
#include "core/message.h"

namespace flashlatent {

namespace {

Status absent(const char* name, const ConstTensorView& view, const char* why) {
  if (!view.present()) return {};
  return invalid_argument(name, " is given, but ", why);
}

/// cu_seqlens_q on the CPU: from 0 to the total, no request with more than s_q tokens. On a device it is not
/// read.
Status validate_begins(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const auto* begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data);
  const std::int64_t total = inputs.q.shape[0];
  if (begins[0] != 0) return invalid_argument("cu_seqlens_q begins with ", begins[0], "; it must with 0");
  for (int i = 0; i < problem.query.batch; ++i) {
    const std::int64_t tokens = std::int64_t{begins[i + 1]} - begins[i];
    if (tokens >= 0 && tokens <= problem.query.tokens) continue;
    return invalid_argument("cu_seqlens_q gives request ", i, " ", tokens,
                            " query tokens; 0 to s_q = ", problem.query.tokens, " are accepted");
  }
  if (begins[problem.query.batch] == total) return {};
  return invalid_argument("cu_seqlens_q ends at ", begins[problem.query.batch],
                          "; it must end at q's total of ", total, " tokens");
}

/// What says which tokens a query token attends to: a page table and lengths, or indices.
Status validate_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const auto& query = problem.query;
  if (!problem.sparse.enabled) {
    FLASHLATENT_RETURN_IF_ERROR(absent("indices", inputs.indices, "the problem has sparse.enabled off"));
    FLASHLATENT_RETURN_IF_ERROR(
        absent("topk_length", inputs.topk_length, "the problem has sparse.enabled off"));
    FLASHLATENT_RETURN_IF_ERROR(expect("block_table", inputs.block_table, Dtype::kI32, device,
                                       {query.batch, problem.cache.max_pages}));
    FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous("block_table", inputs.block_table));
    return validate_lengths(problem, inputs.cache_seqlens, device);
  }
  FLASHLATENT_RETURN_IF_ERROR(absent("block_table", inputs.block_table, "sparse decode goes by indices"));
  FLASHLATENT_RETURN_IF_ERROR(absent("cache_seqlens", inputs.cache_seqlens, "sparse decode goes by indices"));
  FLASHLATENT_RETURN_IF_ERROR(expect("indices", inputs.indices, Dtype::kI32, device,
                                     {query.batch, query.tokens, problem.sparse.topk}));
  FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous("indices", inputs.indices));
  return validate_lengths(problem, inputs.topk_length, device);
}

}  // namespace

Status validate_lengths(const DecodeProblem& problem, const ConstTensorView& lengths, Device device) {
  const char* name = problem.sparse.enabled ? "topk_length" : "cache_seqlens";
  if (problem.sparse.enabled && !lengths.present()) return {};
  FLASHLATENT_RETURN_IF_ERROR(expect(name, lengths, Dtype::kI32, device, {problem.query.batch}));
  return innermost_contiguous(name, lengths);
}

Status validate_decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
                       Device device) {
  const auto& [query, cache, sparse, options] = problem;
  const Dtype dtype = cache.dtype;
  if (query.ragged) {
    FLASHLATENT_RETURN_IF_ERROR(expect("q", inputs.q, dtype, device, {-1, query.heads, cache.qk_dim}));
    FLASHLATENT_RETURN_IF_ERROR(
        expect("out", outputs.out, dtype, device, {inputs.q.shape[0], query.heads, cache.v_dim}));
    FLASHLATENT_RETURN_IF_ERROR(
        expect("cu_seqlens_q", inputs.cu_seqlens_q, Dtype::kI32, device, {query.batch + 1LL}));
    FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous("cu_seqlens_q", inputs.cu_seqlens_q));
    if (device.type == DeviceType::kCpu) FLASHLATENT_RETURN_IF_ERROR(validate_begins(problem, inputs));
  } else {
    FLASHLATENT_RETURN_IF_ERROR(
        expect("q", inputs.q, dtype, device, {query.batch, query.tokens, query.heads, cache.qk_dim}));
    FLASHLATENT_RETURN_IF_ERROR(
        expect("out", outputs.out, dtype, device, {query.batch, query.tokens, query.heads, cache.v_dim}));
    FLASHLATENT_RETURN_IF_ERROR(
        absent("cu_seqlens_q", inputs.cu_seqlens_q, "the problem has query.ragged off"));
  }
  const bool plain = cache.format == KvFormat::kPlain;
  FLASHLATENT_RETURN_IF_ERROR(
      expect("kv_cache", inputs.kv_cache, plain ? dtype : Dtype::kU8, device,
             {-1, cache.page_size, cache.heads, plain ? cache.qk_dim : fp8_656::kTokenBytes}));
  FLASHLATENT_RETURN_IF_ERROR(validate_tokens(problem, inputs, device));
  FLASHLATENT_RETURN_IF_ERROR(
      expect("lse", outputs.lse, Dtype::kF32, device, {query.batch, query.heads, query.tokens}));
  for (const auto& [name, view] : {std::pair<const char*, ConstTensorView>{"q", inputs.q},
                                   {"kv_cache", inputs.kv_cache},
                                   {"out", outputs.out}}) {
    FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous(name, view));
  }
  if (options.attn_sink) {
    FLASHLATENT_RETURN_IF_ERROR(expect("attn_sink", inputs.attn_sink, Dtype::kF32, device, {query.heads}));
    return innermost_contiguous("attn_sink", inputs.attn_sink);
  }
  return absent("attn_sink", inputs.attn_sink, "the problem has options.attn_sink off");
}

Status validate_memory(const char* name, Memory memory, std::size_t bytes) {
  if (bytes == 0) return {};
  if (memory.data == nullptr || memory.bytes < bytes) {
    return {StatusCode::kExhausted, message(name, " has ", memory.data == nullptr ? 0 : memory.bytes,
                                            " bytes; this problem needs ", bytes)};
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data) % 256 != 0) {
    return invalid_argument(name, " is at ", memory.data, "; it must be aligned to 256 bytes");
  }
  return {};
}

Result<DecodeProblem> infer_problem(const DecodeInputs& inputs, int v_dim,
                                    const DecodeProblem::Options& options) {
  const bool ragged = inputs.cu_seqlens_q.present();
  const int q_rank = ragged ? 3 : 4;
  if (inputs.q.rank != q_rank) {
    return invalid_argument("q is ", to_string(inputs.q), "; expected ",
                            ragged ? "(total tokens, h_q, d) beside cu_seqlens_q" : "(batch, s_q, h_q, d)");
  }
  if (inputs.kv_cache.rank != 4) {
    return invalid_argument("kv_cache is ", to_string(inputs.kv_cache),
                            "; expected (pages, page_size, h_kv, d)");
  }
  const bool sparse = inputs.indices.present();
  const ConstTensorView& tokens = sparse ? inputs.indices : inputs.block_table;
  if (tokens.rank != (sparse ? 3 : 2)) {
    return invalid_argument(sparse ? "indices is " : "block_table is ", to_string(tokens), "; expected ",
                            sparse ? "(batch, s_q, topk)" : "(batch, max_pages)");
  }
  for (const ConstTensorView* view : {&inputs.q, &inputs.kv_cache, &tokens}) {
    for (int i = 0; i < view->rank; ++i) {
      if (view->shape[i] < 0 || view->shape[i] > (1LL << 30)) {
        return invalid_argument("a tensor is ", to_string(*view), "; extents must be from 0 to 2^30");
      }
    }
  }
  DecodeProblem problem;
  problem.query.batch = static_cast<int>(tokens.shape[0]);
  problem.query.ragged = ragged;
  // Without reading cu_seqlens_q (it may be on a device), the bound on a request's tokens is their total.
  problem.query.tokens = static_cast<int>(ragged ? inputs.q.shape[0] : inputs.q.shape[1]);
  problem.query.heads = static_cast<int>(inputs.q.shape[q_rank - 2]);
  problem.cache.format = inputs.kv_cache.dtype == Dtype::kU8 ? KvFormat::kFp8_656 : KvFormat::kPlain;
  problem.cache.dtype = inputs.q.dtype;
  problem.cache.heads = static_cast<int>(inputs.kv_cache.shape[2]);
  problem.cache.qk_dim = static_cast<int>(inputs.q.shape[q_rank - 1]);
  problem.cache.v_dim = v_dim;
  problem.cache.page_size = static_cast<int>(inputs.kv_cache.shape[1]);
  problem.cache.max_pages = sparse ? 0 : static_cast<int>(inputs.block_table.shape[1]);
  problem.sparse = {.enabled = sparse, .topk = sparse ? static_cast<int>(inputs.indices.shape[2]) : 0};
  problem.options = options;
  problem.options.attn_sink = inputs.attn_sink.present();
  FLASHLATENT_RETURN_IF_ERROR(validate(problem));
  return problem;
}

}  // namespace flashlatent
