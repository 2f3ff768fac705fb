#include "io/case_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "core/decode_inputs.h"
#include "core/edge_check.h"
#include "core/expect.h"
#include "core/query_parts.h"
#include "core/return_if_error.h"
#include "core/rotation.h"
#include "io/case_tensors.h"

namespace flashlatent::io {

namespace {

class Checker : CaseTensors {
 public:
  explicit Checker(const DecodeCase& decode_case) : CaseTensors(decode_case) {}

  Status check() {
    FLASHLATENT_RETURN_IF_ERROR(refuse_inapplicable());
    FLASHLATENT_RETURN_IF_ERROR(check_kind());
    return edges();
  }

 private:
  Status check_kind() {
    switch (case_.kind) {
      case CaseKind::kDenseDecode:
        return dense_decode();
      case CaseKind::kSparseDecode:
        return sparse_decode();
      case CaseKind::kPagedDecode:
        return paged_decode();
      case CaseKind::kSparsePrefill:
        return sparse_prefill();
      case CaseKind::kIndexTopk:
        break;  // read_index_case() has checked it
    }
    return {};
  }

  Status dense_decode() {
    FLASHLATENT_RETURN_IF_ERROR(query());
    FLASHLATENT_RETURN_IF_ERROR(latent_cache());
    const bool pages = is_pages(case_.kv_format());
    FLASHLATENT_RETURN_IF_ERROR(lengths("", pages ? case_.page_size : extent("kv_cache", 1)));
    FLASHLATENT_RETURN_IF_ERROR(extra_cache());
    return references(case_.head_dim_v.value_or(-1));
  }

  Status sparse_decode() {
    FLASHLATENT_RETURN_IF_ERROR(query());
    FLASHLATENT_RETURN_IF_ERROR(latent_cache());
    FLASHLATENT_RETURN_IF_ERROR(
        expect("indices", {Dtype::kI32}, {{"batch", batch_}, {"s_q", tokens_}, {"topk"}}));
    FLASHLATENT_RETURN_IF_ERROR(topk_length("topk_length", "indices", "topk"));
    FLASHLATENT_RETURN_IF_ERROR(extra_cache());
    return references(case_.head_dim_v.value_or(-1));
  }

  // Checks keys and values: (pages, page_size, h_kv, d), or packed with x elements (16 bytes) of a key
  // together. e4m3 has a scale for each tensor or KV head.
  Status paged_decode() {
    FLASHLATENT_RETURN_IF_ERROR(query());
    const std::int64_t d = q_.shape[q_.rank - 1];
    const bool fp8 = case_.kv_format() == KvFormat::kE4m3;
    const Dtype element = fp8 ? Dtype::kU8 : q_.dtype;
    const std::initializer_list<Dtype> dtype = {element};
    const bool packed = tensor("key_cache").rank == 5;
    if (packed) {
      const auto x = static_cast<std::int64_t>(16 / size_of(element));
      FLASHLATENT_RETURN_IF_ERROR(
          expect("key_cache", dtype,
                 {{"pages"}, {"h_kv"}, {"d / x", d % x == 0 ? d / x : -1}, {"page_size"}, {"x", x}}));
      if (d % x != 0) return error("q", fmt::format("a packed key_cache needs d to be a multiple of {}", x));
      FLASHLATENT_RETURN_IF_ERROR(expect("value_cache", dtype,
                                         {{"pages", extent("key_cache", 0)},
                                          {"h_kv", extent("key_cache", 1)},
                                          {"d_v"},
                                          {"page_size", extent("key_cache", 3)}}));
    } else {
      FLASHLATENT_RETURN_IF_ERROR(expect("key_cache", dtype, {{"pages"}, {"page_size"}, {"h_kv"}, {"d", d}}));
      FLASHLATENT_RETURN_IF_ERROR(expect("value_cache", dtype,
                                         {{"pages", extent("key_cache", 0)},
                                          {"page_size", extent("key_cache", 1)},
                                          {"h_kv", extent("key_cache", 2)},
                                          {"d_v"}}));
    }
    if (!fp8) FLASHLATENT_RETURN_IF_ERROR(kv_format_absent());
    for (const char* name : {"key_scale", "value_scale"}) {
      if (!fp8 && is_there(name)) return error(name, "it belongs to a cache of kv_format e4m3");
      const std::int64_t h_kv = extent("key_cache", packed ? 1 : 2);
      const bool each = tensor(name).rank == 1 && extent(name, 0) == h_kv;
      FLASHLATENT_RETURN_IF_ERROR(scale(name, {each ? "h_kv" : "1 or h_kv", each ? h_kv : 1}));
    }
    FLASHLATENT_RETURN_IF_ERROR(expect_optional("alibi_slopes", {Dtype::kF32}, {{"h_q", heads_}}));
    FLASHLATENT_RETURN_IF_ERROR(lengths("", extent("key_cache", packed ? 3 : 1)));
    const std::int64_t d_v = extent("value_cache", packed ? 2 : 3);
    if (case_.head_dim_v && *case_.head_dim_v != d_v) {
      return error("value_cache",
                   fmt::format("its d_v is not the metadata's head_dim_v {}", *case_.head_dim_v));
    }
    return references(d_v);
  }

  Status sparse_prefill() {
    FLASHLATENT_RETURN_IF_ERROR(expect("q", query_dtypes(), {{"s_q"}, {"h_q"}, {"d"}}));
    FLASHLATENT_RETURN_IF_ERROR(query_rope());
    batch_ = q_.shape[0];
    heads_ = q_.shape[1];
    tokens_ = 1;
    FLASHLATENT_RETURN_IF_ERROR(query_scale());
    std::int64_t kv_heads = 1;
    if (is_there("kv_cache")) {
      if (is_there("kv")) return error("kv", "kv_cache is there, too; one of them is expected");
      FLASHLATENT_RETURN_IF_ERROR(latent_cache());
    } else {
      if (q_.dtype == Dtype::kU8) return error("q", "with rows (kv) bf16 and fp16 are accepted");
      FLASHLATENT_RETURN_IF_ERROR(expect("kv", {q_.dtype}, {{"s_kv"}, {"h_kv"}, {"d", dim_}}));
      FLASHLATENT_RETURN_IF_ERROR(kv_format_absent());
      kv_heads = extent("kv", 1);
    }
    FLASHLATENT_RETURN_IF_ERROR(
        expect("indices", {Dtype::kI32}, {{"s_q", batch_}, {"h_kv", kv_heads}, {"topk"}}));
    FLASHLATENT_RETURN_IF_ERROR(expect_optional("topk_length", {Dtype::kI32}, {{"s_q", batch_}}));
    FLASHLATENT_RETURN_IF_ERROR(values_within("topk_length", extent("indices", 2), "topk"));
    FLASHLATENT_RETURN_IF_ERROR(extra_cache());
    FLASHLATENT_RETURN_IF_ERROR(
        expect_optional("out_ref", {Dtype::kF32},
                        {{"s_q", batch_}, {"h_q", heads_}, {"d_v", case_.head_dim_v.value_or(-1)}}));
    for (const char* name : {"lse_ref", "max_logits_ref"}) {
      FLASHLATENT_RETURN_IF_ERROR(expect_optional(name, {Dtype::kF32}, {{"s_q", batch_}, {"h_q", heads_}}));
    }
    return expect_optional("attn_sink", {Dtype::kF32}, {{"h_q", heads_}});
  }

  // Checks the edges of the layer in the call's words, and that tables have all positions. All else is right.
  Status edges() {
    for (const auto& [positions, table, rotation] : kRotationInputs<DecodeInputs>) {
      const auto& unread = case_.file.without_view();
      if (unread.contains(positions)) return error(positions, "expected int32 or int64");
      if (unread.contains(table)) return error(table, "expected fp32 or bf16 (positions, columns)");
    }
    const DecodeInputs inputs = case_.inputs();
    if (q_.dtype == Dtype::kU8 && (inputs.q_norm != 0 || inputs.q_rotate.present())) {
      return error("q", "with q_norm or q_rotate bf16 and fp16 are accepted");
    }
    FLASHLATENT_RETURN_IF_ERROR(
        in_file(expect_query_edge(inputs.q, inputs.q_rope, inputs.q_norm, inputs.q_rotate, Device{})));
    ConstTensorView out = inputs.q;
    const std::int64_t v_dim = this->v_dim();
    out.shape[out.rank - 1] = v_dim;
    FLASHLATENT_RETURN_IF_ERROR(
        in_file(expect_rotation(inputs.out_rotate, kOutputRotation, "out", out, Device{})));
    FLASHLATENT_RETURN_IF_ERROR(in_file(expect_positions(inputs.q_rotate, kQueryRotation, inputs.q)));
    FLASHLATENT_RETURN_IF_ERROR(in_file(expect_positions(inputs.out_rotate, kOutputRotation, inputs.q)));
    const Fp8Request& fp8 = case_.out_fp8;
    if (fp8.columns == 0) return {};
    if (heads_ % fp8.groups != 0) {
      return refuse(
          fmt::format("metadata \"out_fp8.groups\" is \"{}\", and q has {} heads; a divisor of them is "
                      "expected",
                      fp8.groups, heads_));
    }
    if (v_dim % edges::kScaleColumns == 0) return {};
    return refuse(
        fmt::format("metadata \"out_fp8.scale_columns\" is there, and outputs have {} columns; with an FP8 "
                    "output a multiple of {} is accepted",
                    v_dim, edges::kScaleColumns));
  }

  std::int64_t v_dim() const {
    if (case_.kind != CaseKind::kPagedDecode) return case_.head_dim_v.value_or(SparsePrefillOptions{}.v_dim);
    return extent("value_cache", tensor("key_cache").rank == 5 ? 2 : 3);
  }

  /// A message of the library, of this file.
  Status in_file(const Status& status) const { return status.ok() ? status : refuse(status.message()); }

  // Checks q_rope, if it is present, and sets dim_, the columns of the query. q must be right.
  Status query_rope() {
    q_ = tensor("q");
    dim_ = q_.shape[q_.rank - 1];
    if (!is_there("q_rope")) return {};
    std::vector<Extent> shape;
    for (int i = 0; i + 1 < q_.rank; ++i) shape.push_back({"as q's", q_.shape[i]});
    shape.push_back({"d", query_parts::kRopeDim});
    FLASHLATENT_RETURN_IF_ERROR(expect("q_rope", {q_.dtype}, shape));
    dim_ += query_parts::kRopeDim;
    if (query_parts::has_rope(static_cast<int>(dim_))) return {};
    return error("q", fmt::format("beside q_rope, {}, its last dimension is 512 or 256", describe("q_rope")));
  }

  std::initializer_list<Dtype> query_dtypes() const {
    static constexpr std::initializer_list<Dtype> kHalves = {Dtype::kBF16, Dtype::kF16};
    static constexpr std::initializer_list<Dtype> kOfE4m3 = {Dtype::kBF16, Dtype::kU8};
    const bool latent_e4m3 = case_.kv_format() == KvFormat::kE4m3 && case_.kind != CaseKind::kPagedDecode;
    return latent_e4m3 ? kOfE4m3 : kHalves;
  }

  // Checks q, and for decoding cu_seqlens_q and attn_sink.
  Status query() {
    const std::initializer_list<Dtype> dtypes = query_dtypes();
    ragged_ = is_there("cu_seqlens_q");
    if (ragged_) {
      FLASHLATENT_RETURN_IF_ERROR(expect("q", dtypes, {{"total tokens"}, {"h_q"}, {"d"}}));
      FLASHLATENT_RETURN_IF_ERROR(expect("cu_seqlens_q", {Dtype::kI32}, {{"batch + 1"}}));
      if (extent("cu_seqlens_q", 0) == 0) return error("cu_seqlens_q", "expected int32 (batch + 1)");
      FLASHLATENT_RETURN_IF_ERROR(cumulative_lengths(extent("q", 0)));
    } else {
      FLASHLATENT_RETURN_IF_ERROR(expect("q", dtypes, {{"batch"}, {"s_q"}, {"h_q"}, {"d"}}));
    }
    FLASHLATENT_RETURN_IF_ERROR(query_rope());
    batch_ = ragged_ ? extent("cu_seqlens_q", 0) - 1 : q_.shape[0];
    tokens_ = ragged_ ? longest_query(tensor("cu_seqlens_q")) : q_.shape[1];
    heads_ = q_.shape[q_.rank - 2];
    FLASHLATENT_RETURN_IF_ERROR(query_scale());
    return expect_optional("attn_sink", {Dtype::kF32}, {{"h_q", heads_}});
  }

  Status query_scale() {
    if (is_there("q_scale") && q_.dtype != Dtype::kU8) return error("q_scale", "it belongs to a q of e4m3");
    const ConstTensorView given = tensor("q_scale");
    const bool one = given.rank == 1 && given.shape[0] == 1;
    return scale("q_scale", {one ? "1" : "1 or h_q", one ? 1 : heads_});
  }

  // Checks a scale of e4m3, if it is present.
  Status scale(const char* name, Extent extent) {
    FLASHLATENT_RETURN_IF_ERROR(expect_optional(name, {Dtype::kF32}, {extent}));
    const Status positive = expect_positive(name, tensor(name));
    return positive.ok() ? positive : refuse(fmt::format("tensor {}", positive.message()));
  }

  Status cumulative_lengths(std::int64_t total) {
    const auto ends = int32_values(tensor("cu_seqlens_q"));
    if (ends.front() != 0)
      return error("cu_seqlens_q", fmt::format("starts at {}; it must start at 0", ends[0]));
    for (std::size_t i = 1; i < ends.size(); ++i) {
      if (ends[i] < ends[i - 1]) {
        return error("cu_seqlens_q",
                     fmt::format("decreases from {} to {} at request {}; it must not decrease", ends[i - 1],
                                 ends[i], i - 1));
      }
    }
    if (ends.back() != total) {
      return error("cu_seqlens_q",
                   fmt::format("ends at {}; it must end at q's {} tokens", ends.back(), total));
    }
    return {};
  }

  Status latent_cache() {
    const ConstTensorView cache = tensor("kv_cache");
    const bool bytes = cache.present() && cache.dtype == Dtype::kU8;
    const bool named = case_.format.format.has_value();
    if (bytes && !named && !case_.file.is_e4m3("kv_cache")) {
      return error("kv_cache", "a uint8 cache needs the metadata kv_format, one of " +
                                   format_names().substr(std::string_view("plain, ").size()));
    }
    if (is_there("kv_scale") && case_.kv_format() != KvFormat::kE4m3) {
      return error("kv_scale", "it belongs to a cache of kv_format e4m3");
    }
    FLASHLATENT_RETURN_IF_ERROR(scale("kv_scale", {"1", 1}));
    if (bytes && named) return byte_cache("kv_cache", case_.kv_format(), case_.page_size);
    FLASHLATENT_RETURN_IF_ERROR(
        expect("kv_cache", {q_.dtype}, {{"pages"}, {"page_size"}, {"h_kv"}, {"d", dim_}}));
    return kv_format_absent();
  }

  // Checks a cache of bytes, or in pages of bytes, of `page_size` tokens.
  Status byte_cache(const char* name, KvFormat named, std::int64_t page_size) {
    const LatentFormat& format = format_of(named, case_.format.scales);
    if (!is_pages(named)) {
      return expect(name, {Dtype::kU8},
                    {{"pages"},
                     {"page_size"},
                     {"h_kv", 1},
                     {format.is_record() ? "bytes of a token" : "d", format.last_extent(dim_)}});
    }
    FLASHLATENT_RETURN_IF_ERROR(expect(name, {Dtype::kU8}, {{"pages"}, {"page_bytes"}}));
    const std::int64_t least = format.least_page_stride(page_size, 0), bytes = extent(name, 1);
    if (bytes >= least && bytes % kPageAlignment == 0) return {};
    return error(name, fmt::format("a page of {} tokens has {} bytes or more, a multiple of {}", page_size,
                                   least, kPageAlignment));
  }

  // Checks the extra cache, if there is one, and the tensors that name its tokens.
  Status extra_cache() {
    const bool indexed = is_there("extra_indices");
    if (!is_there("extra_kv_cache")) {
      for (const char* name :
           {"extra_indices", "extra_topk_length", "extra_block_table", "extra_cache_seqlens"}) {
        if (is_there(name)) return error(name, "it belongs to an extra_kv_cache, and there is none");
      }
      return {};
    }
    if (ragged_ && indexed) {
      return error("cu_seqlens_q", "it needs an extra_block_table, and there are extra_indices");
    }
    std::int64_t page_size = case_.extra_page_size;
    if (!case_.format.format) {
      const std::int64_t kv_heads = is_there("kv") ? extent("kv", 1) : extent("kv_cache", 2);
      FLASHLATENT_RETURN_IF_ERROR(
          expect("extra_kv_cache", {q_.dtype}, {{"pages"}, {"page_size"}, {"h_kv", kv_heads}, {"d", dim_}}));
    } else {
      FLASHLATENT_RETURN_IF_ERROR(byte_cache("extra_kv_cache", case_.extra_kv_format(), page_size));
    }
    if (!is_pages(case_.extra_kv_format())) page_size = extent("extra_kv_cache", 1);
    if (case_.kind == CaseKind::kSparsePrefill) {
      FLASHLATENT_RETURN_IF_ERROR(
          expect("extra_indices", {Dtype::kI32}, {{"s_q", batch_}, {"h_kv", 1}, {"extra_topk"}}));
      FLASHLATENT_RETURN_IF_ERROR(expect_optional("extra_topk_length", {Dtype::kI32}, {{"s_q", batch_}}));
      return values_within("extra_topk_length", extent("extra_indices", 2), "extra_topk");
    }
    if (indexed) {
      for (const char* name : {"extra_block_table", "extra_cache_seqlens"}) {
        if (is_there(name)) return error(name, "it stands for extra_indices, which are there");
      }
      FLASHLATENT_RETURN_IF_ERROR(
          expect("extra_indices", {Dtype::kI32}, {{"batch", batch_}, {"s_q", tokens_}, {"extra_topk"}}));
      return topk_length("extra_topk_length", "extra_indices", "extra_topk");
    }
    if (is_there("extra_topk_length")) return error("extra_topk_length", "it belongs to extra_indices");
    return lengths("extra_", page_size);
  }

  Status kv_format_absent() {
    if (!case_.format.format) return {};
    return refuse(
        fmt::format("metadata \"kv_format\" is {}, but the cache is {}; it belongs to a uint8 cache",
                    to_string(case_.kv_format()), to_string(q_.dtype)));
  }

  // Checks a page table and lengths whose names begin with `prefix`. Lengths of the extra cache may be one
  // for each query token.
  Status lengths(const std::string& prefix, std::int64_t page_size) {
    const std::string table = prefix + "block_table", seqlens = prefix + "cache_seqlens";
    FLASHLATENT_RETURN_IF_ERROR(expect(table.c_str(), {Dtype::kI32}, {{"batch", batch_}, {"max_pages"}}));
    FLASHLATENT_RETURN_IF_ERROR(expect_lengths(seqlens.c_str(), /*or_by_token=*/!prefix.empty()));
    std::int64_t tokens = 0;
    if (__builtin_mul_overflow(extent(table.c_str(), 1), page_size, &tokens)) {
      return error(table.c_str(), fmt::format("with pages of {} tokens that is too many", page_size));
    }
    return values_within(seqlens.c_str(), tokens, "max_pages * page_size");
  }

  // Checks how many of a list of indices count, if that is there.
  Status topk_length(const char* name, const char* indices, const char* topk) {
    if (!is_there(name)) return {};
    FLASHLATENT_RETURN_IF_ERROR(expect_lengths(name, /*or_by_token=*/true));
    return values_within(name, extent(indices, 2), topk);
  }

  // Expects a length for each request, or with `or_by_token` one for each query token.
  Status expect_lengths(const char* name, bool or_by_token) {
    if (or_by_token && !ragged_ && tensor(name).rank == 2) {
      return expect(name, {Dtype::kI32}, {{"batch", batch_}, {"s_q", tokens_}});
    }
    return expect(name, {Dtype::kI32}, {{"batch", batch_}});
  }

  Status references(std::int64_t d_v) {
    if (ragged_) {
      FLASHLATENT_RETURN_IF_ERROR(expect_optional(
          "out_ref", {Dtype::kF32}, {{"total tokens", q_.shape[0]}, {"h_q", heads_}, {"d_v", d_v}}));
    } else {
      FLASHLATENT_RETURN_IF_ERROR(expect_optional(
          "out_ref", {Dtype::kF32}, {{"batch", batch_}, {"s_q", tokens_}, {"h_q", heads_}, {"d_v", d_v}}));
    }
    return expect_optional("lse_ref", {Dtype::kF32}, {{"batch", batch_}, {"h_q", heads_}, {"s_q", tokens_}});
  }

  // Refuses inputs that belong to other kinds: ignoring them silently would give another result than meant.
  Status refuse_inapplicable() {
    const bool sparse = case_.kind == CaseKind::kSparseDecode || case_.kind == CaseKind::kSparsePrefill;
    const bool paged = case_.kind == CaseKind::kPagedDecode;
    const bool prefill = case_.kind == CaseKind::kSparsePrefill;
    for (const auto& [name, applies] :
         std::initializer_list<std::pair<const char*, bool>>{{"kv_cache", !paged},
                                                             {"key_cache", paged},
                                                             {"value_cache", paged},
                                                             {"key_scale", paged},
                                                             {"value_scale", paged},
                                                             {"kv_scale", !paged},
                                                             {"q_scale", !paged},
                                                             {"q_rope", !paged},
                                                             {"kv", prefill},
                                                             {"indices", sparse},
                                                             {"topk_length", sparse},
                                                             {"alibi_slopes", paged},
                                                             {"cu_seqlens_q", !sparse},
                                                             {"extra_kv_cache", !paged},
                                                             {"extra_indices", !paged},
                                                             {"extra_topk_length", !paged},
                                                             {"extra_block_table", !paged && !prefill},
                                                             {"extra_cache_seqlens", !paged && !prefill}}) {
      if (applies || !is_there(name)) continue;
      return refuse(
          fmt::format("tensor \"{}\" does not belong in a case of kind {}", name, to_string(case_.kind)));
    }
    return {};
  }

  ConstTensorView q_;
  std::int64_t dim_ = 0;  // columns of the query
  bool ragged_ = false;
  std::int64_t batch_ = 0;
  std::int64_t tokens_ = 0;  // s_q; ragged: the longest request's.
  std::int64_t heads_ = 0;
};

}  // namespace

Status check_tensors(const DecodeCase& decode_case) {
  return Checker(decode_case).check();
}

int longest_query(const ConstTensorView& cu_seqlens) {
  const auto ends = int32_values(cu_seqlens);
  int longest = 1;
  for (std::size_t i = 1; i < ends.size(); ++i) longest = std::max(longest, ends[i] - ends[i - 1]);
  return longest;
}

}  // namespace flashlatent::io
