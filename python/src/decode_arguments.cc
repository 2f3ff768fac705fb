#include "python/src/decode_arguments.h"

#include <cmath>

#include "core/formats/formats.h"
#include "flashlatent/kv_cache.h"
#include "python/src/bindings.h"
#include "python/src/errors.h"

namespace flashlatent::python {

InputArrays::InputArrays(const DecodeArguments& h, std::optional<Dtype> sixteen_bits)
    : q_(Array::read("q", h.q, sixteen_bits)),
      kv_cache_(Array::read("kv_cache", h.kv_cache, sixteen_bits)),
      block_table_(Array::read("block_table", h.block_table)),
      cache_seqlens_(Array::read("cache_seqlens", h.cache_seqlens)),
      page_size_(h.page_size),
      extra_page_size_(h.extra_page_size),
      format_(optional_format(h.kv_format)),
      extra_format_(optional_format(h.extra_kv_format, "extra_kv_format")),
      q_norm_(h.q_norm) {
  const bool rare =
      !h.indices.is_none() || !h.topk_length.is_none() || !h.cu_seqlens_q.is_none() || !h.attn_sink.is_none();
  if (rare) {
    rare_.emplace(Rare{Array::read("indices", h.indices), Array::read("topk_length", h.topk_length),
                       Array::read("cu_seqlens_q", h.cu_seqlens_q), Array::read("attn_sink", h.attn_sink)});
  }
  if (!h.q_rope.is_none()) rope_.emplace(Array::read("q_rope", h.q_rope, sixteen_bits));
  const bool extra = !h.extra_kv_cache.is_none() || !h.extra_indices.is_none() ||
                     !h.extra_topk_length.is_none() || !h.extra_block_table.is_none() ||
                     !h.extra_cache_seqlens.is_none();
  if (extra) {
    extra_.emplace(Extra{Array::read("extra_kv_cache", h.extra_kv_cache, sixteen_bits),
                         Array::read("extra_indices", h.extra_indices),
                         Array::read("extra_topk_length", h.extra_topk_length),
                         Array::read("extra_block_table", h.extra_block_table),
                         Array::read("extra_cache_seqlens", h.extra_cache_seqlens)});
  }
  if (!h.kv_scale.is_none() || !h.q_scale.is_none()) {
    scales_.emplace(Scales{Array::read("kv_scale", h.kv_scale), Array::read("q_scale", h.q_scale)});
  }
  if (!extra && extra_page_size_) {
    refuse("extra_page_size is ", *extra_page_size_,
           " and extra_kv_cache is not given; extra_page_size is for an "
           "extra cache of uint8 (pages, page_bytes)");
  }
  if (!h.q_rotate.is_none() || !h.out_rotate.is_none() || !h.out_fp8.is_none()) {
    edges_.emplace(h.q_rotate, h.out_rotate, h.out_fp8);
  }
  if (!h.key_cache.is_none()) {
    separate_.emplace(KeysAndValues{
        Array::read("key_cache", h.key_cache, sixteen_bits),
        Array::read("value_cache", h.value_cache, sixteen_bits), Array::read("key_scale", h.key_scale),
        Array::read("value_scale", h.value_scale), Array::read("alibi_slopes", h.alibi_slopes)});
  }
}

namespace {
constexpr int kMostPageSize = 1 << 20;
}  // namespace

std::optional<KvFormat> optional_format(std::optional<std::string_view> kv_format, const char* name) {
  if (!kv_format) return std::nullopt;
  const Result<KvFormat> format = kv_format_from_name(*kv_format);
  constexpr std::string_view kThere = "KV format";
  if (!format.ok() && format.status().message().starts_with(kThere)) {
    refuse(name, format.status().message().substr(kThere.size()));
  }
  return take(format);
}

CacheFormat cache_format(std::optional<std::string_view> kv_format, std::optional<std::string_view> scales) {
  CacheFormat format{.format = optional_format(kv_format)};
  if (scales) format.scales = take(scale_place_from_name(*scales));
  return format;
}

ConstTensorView latent_cache(const char* name, const TensorView& view, const char* size_name,
                             std::optional<int> page_size, std::optional<KvFormat> format) {
  const bool bytes = view.rank == 2 && view.dtype == Dtype::kU8;
  if (!bytes && page_size) {
    refuse(size_name, " is ", *page_size, " and ", name, " is ", view.present() ? to_string(view) : "missing",
           "; ", size_name, " is for a cache of uint8 (pages, page_bytes)");
  }
  if (!bytes) return view;
  if (!page_size) {
    refuse(name, " is ", to_string(view), ", pages of bytes, and ", size_name,
           " is missing; the tokens of a page are expected");
  }
  if (*page_size < 1 || *page_size > kMostPageSize) {
    refuse(size_name, " is ", *page_size, "; it must be from 1 to ", kMostPageSize);
  }
  const LatentFormat& of = format_of(format.value_or(KvFormat::kFp8_584), ScalePlace::kAuto);
  if (!of.is_record()) {
    refuse(name, " is ", to_string(view), ", pages of bytes, and its format is ", of.name,
           "; one whose tokens have bytes of their own is expected");
  }
  if (view.shape[1] < *page_size * std::int64_t{of.token_bytes()}) {
    refuse(name, " is ", to_string(view), "; a page of ", size_name, " = ", *page_size, " tokens of ",
           of.name, " has ", *page_size * std::int64_t{of.token_bytes()}, " bytes or more");
  }
  return take(latent_pages(view, *page_size, of.format));
}

DecodeInputs InputArrays::inputs() const {
  DecodeInputs inputs;
  inputs.q = q_.view();
  if (rope_) inputs.q_rope = rope_->view();
  inputs.kv_cache = latent_cache("kv_cache", kv_cache_.view(), "page_size", page_size_, format_);
  if (extra_) {
    inputs.extra_kv_cache = latent_cache("extra_kv_cache", extra_->kv_cache.view(), "extra_page_size",
                                         extra_page_size_, extra_format_ ? extra_format_ : format_);
    inputs.extra_indices = extra_->indices.view();
    inputs.extra_topk_length = extra_->topk_length.view();
    inputs.extra_block_table = extra_->block_table.view();
    inputs.extra_cache_seqlens = extra_->cache_seqlens.view();
  }
  inputs.block_table = block_table_.view();
  inputs.cache_seqlens = cache_seqlens_.view();
  if (rare_) {
    inputs.indices = rare_->indices.view();
    inputs.topk_length = rare_->topk_length.view();
    inputs.cu_seqlens_q = rare_->cu_seqlens_q.view();
    inputs.attn_sink = rare_->attn_sink.view();
  }
  if (scales_) {
    inputs.kv_scale = scales_->kv.view();
    inputs.q_scale = scales_->q.view();
  }
  inputs.q_norm = q_norm_;
  if (edges_) {
    inputs.q_rotate = edges_->q.rotation;
    inputs.out_rotate = edges_->out.rotation;
  }
  if (separate_) {
    inputs.key_cache = separate_->key_cache.view();
    inputs.value_cache = separate_->value_cache.view();
    inputs.key_scale = separate_->key_scale.view();
    inputs.value_scale = separate_->value_scale.view();
    inputs.alibi_slopes = separate_->alibi_slopes.view();
  }
  return inputs;
}

Fp8Output InputArrays::out_fp8() const {
  return edges_ ? edges_->fp8() : Fp8Output{};
}

void InputArrays::check_dtype(std::optional<Dtype> dtype) const {
  if (separate_) {
    refuse_unused_dtype(
        dtype, q_.integers() || separate_->key_cache.integers() || separate_->value_cache.integers());
  } else {
    refuse_unused_dtype(dtype, q_.integers() || kv_cache_.integers());
  }
}

ContextShard shard_of(const std::optional<std::tuple<int, int, int>>& shard) {
  if (!shard) return {};
  const auto& [rank, world, run] = *shard;
  return {.rank = rank, .world = world, .run = run};
}

std::optional<Dtype> sixteen_bits_of(const DecodeArguments& arguments) {
  if (!arguments.dtype) return std::nullopt;
  return dtype_from_name(*arguments.dtype);
}

DecodeProblem problem_of(const DecodeInputs& inputs, const DecodeArguments& given) {
  DecodeProblem::Options options{.softmax_scale = given.softmax_scale,
                                 .causal = given.causal,
                                 .batch_invariant = given.batch_invariant,
                                 .prefix_sharing = take(prefix_sharing_from_name(given.prefix_sharing)),
                                 .empty_lse = given.empty_lse,
                                 .window = given.window,
                                 .products = take(products_from_name(given.products)),
                                 .separate = {.soft_cap = given.soft_cap},
                                 .calls_per_plan = given.calls_per_plan,
                                 .typical_tokens = given.typical_tokens,
                                 .shard = shard_of(given.shard),
                                 .out_edge = !given.out_fp8.is_none()};
  if (given.default_scale) {
    const int rank = inputs.q.rank;
    options.softmax_scale = rank > 0 ? 1 / std::sqrt(static_cast<float>(inputs.q.shape[rank - 1])) : 1;
  }
  CacheFormat format = cache_format(given.kv_format, given.scales);
  const bool v41_by_width = given.v41_place != ScalePlace::kAuto && !given.kv_format;
  if (v41_by_width && inputs.kv_cache.dtype == Dtype::kU8 && inputs.kv_cache.rank == 4) {
    for (const KvFormat name : {KvFormat::kMxfp8_528, KvFormat::kNvfp4_288}) {
      const LatentFormat& v41 = format_of(name, given.v41_place);
      if (inputs.kv_cache.shape[3] == v41.token_bytes()) format = said_as(v41);
    }
  }
  DecodeProblem problem = take(infer_problem(inputs, given.v_dim, options, format,
                                             optional_format(given.extra_kv_format, "extra_kv_format")));
  if (given.tokens && !problem.query.ragged && *given.tokens != problem.query.tokens) {
    refuse("tokens is ", *given.tokens, " and cu_seqlens_q is not given; q has ", problem.query.tokens,
           " query tokens a request, leave tokens out");
  }
  if (given.tokens) {
    problem.query.tokens = *given.tokens;
    check(validate(problem));
  }
  return problem;
}

}  // namespace flashlatent::python
