#include "flashlatent/problem.h"

#include <cmath>

#include "core/message.h"

namespace flashlatent {

namespace {

Status in_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(field, " is ", value, "; it must be from ", low, " to ", high);
}

}  // namespace

std::string to_string(const DecodeProblem& p) {
  return message("decode b=", p.query.batch, " s_q=", p.query.tokens, p.query.ragged ? " (ragged)" : "",
                 " h_q=", p.query.heads, " h_kv=", p.cache.heads, " d=", p.cache.qk_dim, "/", p.cache.v_dim,
                 " ", to_string(p.cache.dtype), " page=", p.cache.page_size, "x", p.cache.max_pages,
                 " scale=", p.options.softmax_scale, p.options.causal ? " causal" : "",
                 p.options.attn_sink ? " sink" : "", p.options.batch_invariant ? " batch_invariant" : "");
}

Status validate(const DecodeProblem& p) {
  constexpr std::int64_t kMany = 1 << 20;
  FLASHLATENT_RETURN_IF_ERROR(in_range("batch", p.query.batch, 0, kMany));
  FLASHLATENT_RETURN_IF_ERROR(in_range("s_q (query tokens)", p.query.tokens, 1, kMany));
  FLASHLATENT_RETURN_IF_ERROR(in_range("h_q (query heads)", p.query.heads, 1, 1 << 16));
  FLASHLATENT_RETURN_IF_ERROR(
      in_range("s_q x h_q", static_cast<std::int64_t>(p.query.tokens) * p.query.heads, 1, 1 << 30));
  FLASHLATENT_RETURN_IF_ERROR(in_range("h_kv (KV heads)", p.cache.heads, 1, p.query.heads));
  if (p.query.heads % p.cache.heads != 0) {
    return invalid_argument("h_q is ", p.query.heads, ", which is not a multiple of h_kv ", p.cache.heads);
  }
  if (p.cache.dtype != Dtype::kBF16 && p.cache.dtype != Dtype::kF16) {
    return invalid_argument("dtype is ", to_string(p.cache.dtype), "; bf16 and fp16 are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(in_range("qk_dim", p.cache.qk_dim, 1, 4096));
  FLASHLATENT_RETURN_IF_ERROR(in_range("v_dim", p.cache.v_dim, 1, p.cache.qk_dim));
  FLASHLATENT_RETURN_IF_ERROR(in_range("page_size", p.cache.page_size, 1, kMany));
  FLASHLATENT_RETURN_IF_ERROR(in_range("max_pages (block_table columns)", p.cache.max_pages, 0, 1LL << 30));
  // Lengths are int32: longer tables are legal, their last pages unreachable.
  if (!std::isfinite(p.options.softmax_scale)) {
    return invalid_argument("softmax_scale is ", p.options.softmax_scale, "; it must be finite");
  }
  return {};
}

}  // namespace flashlatent
