#include "flashlatent/problem.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/enum_names.h"
#include "core/format_names.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "core/rotation.h"

namespace flashlatent {

namespace {

constexpr EnumName<ScalePlace> kPlaces[] = {
    {ScalePlace::kAuto, "auto"}, {ScalePlace::kToken, "token"}, {ScalePlace::kPage, "page"}};
constexpr EnumName<ScaleFloor> kFloors[] = {
    {ScaleFloor::kAuto, "auto"}, {ScaleFloor::kAmax, "amax"}, {ScaleFloor::kScale, "scale"}};
constexpr EnumName<KvLayout> kLayouts[] = {
    {KvLayout::kLatent, "latent"}, {KvLayout::kSeparate, "separate"}, {KvLayout::kPacked, "packed"}};
constexpr EnumName<PrefixSharing> kSharings[] = {
    {PrefixSharing::kOff, "off"}, {PrefixSharing::kAuto, "auto"}, {PrefixSharing::kAlways, "always"}};
constexpr EnumName<Products> kProducts[] = {
    {Products::kAuto, "auto"}, {Products::kBf16, "bf16"}, {Products::kFp8, "fp8"}};

Status in_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  if (low == high) return invalid_argument(field, " is ", value, "; it must be ", low);
  return invalid_argument(field, " is ", value, "; it must be from ", low, " to ", high);
}

/// Checks what the format of a cache of bytes fixes.
Status validate_format(const DecodeProblem& p) {
  const auto& cache = p.cache;
  const LatentFormat& format = format_of(cache);
  const bool places = has_places(cache.format) && cache.layout == KvLayout::kLatent;
  if (!places && cache.scales != ScalePlace::kAuto) {
    return invalid_argument("scales is ", to_string(cache.scales), "; with a ", format.name,
                            " cache it is left out");
  }
  if (format.plain() || cache.layout != KvLayout::kLatent) return {};
  if (places && cache.scales == ScalePlace::kAuto) {
    return invalid_argument("scales is missing; for an ", format.name, " cache it is token or page");
  }
  if (cache.dtype != Dtype::kBF16) {
    return invalid_argument("dtype is ", to_string(cache.dtype), "; with an ", format.name,
                            " cache q and out are bf16");
  }
  if (cache.heads != 1) {
    return invalid_argument("h_kv (KV heads) is ", cache.heads, "; an ", format.name, " cache has 1");
  }
  const int dim = format.dim > 0 ? format.dim : e4m3_latent::kDim;
  const int without_rope = format.dim > 0 ? format.dim_without_rope : e4m3_latent::kLatentDim;
  if (cache.qk_dim != dim && (cache.qk_dim != without_rope || without_rope == 0)) {
    return invalid_argument("qk_dim is ", cache.qk_dim, "; an ", format.name, " cache has ", dim,
                            without_rope > 0 ? message(", or ", without_rope, " without RoPE") : "");
  }
  if (!format.all_value) return {};
  return in_range(message("v_dim of an ", format.name, " cache").c_str(), cache.v_dim, dim, dim);
}

/// Checks e4m3 queries and products, which only e4m3 latent caches have.
Status validate_products(const DecodeProblem& p) {
  const bool e4m3 = p.cache.format == KvFormat::kE4m3 && p.cache.layout == KvLayout::kLatent;
  if (e4m3) return {};
  auto refuse = [&](const auto&... what) {
    return invalid_argument(what..., "; that is for an e4m3 latent cache, and this one is ",
                            to_string(p.cache.layout), ", ", to_string(p.cache.format));
  };
  if (p.query.e4m3) return refuse("q is e4m3");
  if (p.options.products == Products::kAuto) return {};
  return refuse("products is ", to_string(p.options.products));
}

/// The most tokens of a list, whatever the lengths.
std::int64_t reach_of(bool indexed, int topk, int max_pages, int page_size) {
  return indexed ? topk : std::int64_t{max_pages} * page_size;
}

Status validate_extra(const DecodeProblem& p) {
  const ExtraCache& extra = p.cache.extra;
  if (p.cache.layout != KvLayout::kLatent) {
    return invalid_argument("there is an extra cache; that is for latent caches, and these are ",
                            to_string(p.cache.layout), " keys and values");
  }
  if (p.query.ragged && extra.indexed) {
    return invalid_argument(
        "q is ragged; then an extra cache goes by extra_block_table, not by extra_indices");
  }
  if (!stand_together(p.cache.format, p.cache.extra_format())) {
    return invalid_argument("the extra cache's format is ", to_string(p.cache.extra_format()),
                            ", but the first cache's is ", to_string(p.cache.format), "; the same, or ",
                            pairs_text(), ", is accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(in_range("extra page_size", extra.page_size, 1, 1 << 20));
  FLASHLATENT_RETURN_IF_ERROR(in_range("extra topk", extra.topk, 0, extra.indexed ? 1 << 30 : 0));
  FLASHLATENT_RETURN_IF_ERROR(in_range("extra max_pages (extra_block_table columns)", extra.max_pages, 0,
                                       extra.indexed ? 0 : 1LL << 30));
  FLASHLATENT_RETURN_IF_ERROR(
      in_range("batch x s_q", std::int64_t{p.query.batch} * p.query.tokens, 0, 1 << 30));
  // Lengths are int32; so is the length of both caches together.
  std::int64_t first = reach_of(p.sparse.enabled, p.sparse.topk, p.cache.max_pages, p.cache.page_size);
  if (p.options.window > 0) first = std::min<std::int64_t>(first, p.options.window);
  const std::int64_t all = first + reach_of(extra.indexed, extra.topk, extra.max_pages, extra.page_size);
  return in_range("tokens that both caches' indices and page tables have room for", all, 0,
                  (1LL << 31) - (1 << 14));
}

Status validate_separate(const DecodeProblem& p) {
  if (p.cache.format != KvFormat::kPlain && p.cache.format != KvFormat::kE4m3) {
    return invalid_argument("the KV format is ", to_string(p.cache.format), ", a latent cache's; with ",
                            to_string(p.cache.layout), " keys and values plain and e4m3 are accepted");
  }
  if (p.sparse.enabled)
    return invalid_argument("topk is ", p.sparse.topk, "; sparse decode is for latent caches, and these are ",
                            to_string(p.cache.layout), " keys and values");
  FLASHLATENT_RETURN_IF_ERROR(in_range("v_dim", p.cache.v_dim, 1, 4096));
  if (!(p.options.separate.soft_cap >= 0) || !std::isfinite(p.options.separate.soft_cap)) {
    return invalid_argument("soft_cap is ", p.options.separate.soft_cap,
                            "; it must be finite and not negative");
  }
  const int x = p.cache.format == KvFormat::kE4m3 ? 16 : 8;
  if (p.cache.layout == KvLayout::kPacked && p.cache.qk_dim % x != 0) {
    return invalid_argument("qk_dim is ", p.cache.qk_dim, "; of packed keys it must be a multiple of ", x);
  }
  return {};
}

Status validate_latent(const DecodeProblem& p) {
  FLASHLATENT_RETURN_IF_ERROR(in_range("v_dim", p.cache.v_dim, 1, p.cache.qk_dim));
  auto refuse = [](const char* what) {
    return invalid_argument(what, "; that is for separate keys and values, and the cache is latent");
  };
  if (p.options.separate.soft_cap != 0) return refuse("soft_cap is set");
  if (p.options.separate.alibi) return refuse("alibi is set");
  return {};
}

Status validate_sparse(const DecodeProblem& p) {
  if (p.query.ragged) return invalid_argument("q is ragged; sparse decode has s_q query tokens a request");
  if (p.options.causal) return invalid_argument("causal is set; in sparse decode the indices decide");
  FLASHLATENT_RETURN_IF_ERROR(in_range("window of sparse decode", p.options.window, 0, 0));
  FLASHLATENT_RETURN_IF_ERROR(in_range("topk", p.sparse.topk, 0, 1 << 30));
  FLASHLATENT_RETURN_IF_ERROR(in_range("max_pages of sparse decode", p.cache.max_pages, 0, 0));
  return in_range("batch x s_q", std::int64_t{p.query.batch} * p.query.tokens, 0, 1 << 30);
}

Status validate_shard(const DecodeProblem& p) {
  const auto& [rank, world, run] = p.options.shard;
  FLASHLATENT_RETURN_IF_ERROR(in_range("shard world", world, 1, 1 << 16));
  FLASHLATENT_RETURN_IF_ERROR(in_range("shard rank", rank, 0, world - 1));
  FLASHLATENT_RETURN_IF_ERROR(in_range("shard run", run, 1, 1 << 20));
  FLASHLATENT_RETURN_IF_ERROR(in_range("shard world x run", std::int64_t{world} * run, 1, 1 << 30));
  if (world == 1) return {};
  if (p.sparse.enabled) {
    return invalid_argument("shard world is ", world,
                            "; in sparse decode the indices name a rank's own tokens, leave the shard out");
  }
  if (p.options.attn_sink) {
    return invalid_argument("shard world is ", world,
                            " and attn_sink is set; a sink is applied once, by combine()");
  }
  return {};
}

/// Checks what edges::Rows walks.
Status validate_edges(const DecodeProblem& p) {
  const auto refuse = [](const char* option, const char* fields, const char* name, int dim) {
    return invalid_argument(option, " is set (by ", fields, ") and ", name, " is ", dim,
                            "; a multiple of 8 up to ", edges::kMostColumns, " is accepted");
  };
  const auto fits = [](int dim) { return dim % 8 == 0 && dim <= edges::kMostColumns; };
  if (p.options.q_edge) {
    if (p.query.e4m3)
      return invalid_argument(
          "q_edge is set (by q_norm or q_rotate) and q is e4m3; bf16 and fp16 are accepted");
    if (!fits(p.cache.qk_dim)) return refuse("q_edge", "q_norm or q_rotate", "qk_dim", p.cache.qk_dim);
  }
  if (!p.options.out_edge) return {};
  if (p.options.shard.world > 1) {
    return invalid_argument("out_edge is set (by out_rotate or out_fp8) and shard world is ",
                            p.options.shard.world, "; outputs of ranks are merged first, by combine()");
  }
  return fits(p.cache.v_dim) ? Status{} : refuse("out_edge", "out_rotate or out_fp8", "v_dim", p.cache.v_dim);
}

}  // namespace

const char* to_string(KvFormat format) {
  return format_of(format, ScalePlace::kAuto).name;
}
Result<KvFormat> kv_format_from_name(std::string_view name) {
  for (const LatentFormat* format : kFormats) {
    if (format->name == name) return format->format;
  }
  return invalid_argument("KV format is '", name, "'; ", format_names(), " are accepted", known_as(name));
}

const char* to_string(ScalePlace place) {
  return name_of(kPlaces, place);
}
Result<ScalePlace> scale_place_from_name(std::string_view name) {
  return value_of(kPlaces, name, "scales", "token and page");
}

const char* to_string(ScaleFloor floor) {
  return name_of(kFloors, floor);
}
Result<ScaleFloor> scale_floor_from_name(std::string_view name) {
  return value_of(kFloors, name, "scale_floor", "auto, amax and scale");
}

std::string known_as(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"fp8_ds_mla", "is fp8_656 here, and fp8_584 with DeepSeek V4"},
      {"fp8", "is e4m3 here"},
      {"fp8_e4m3", "is e4m3 here"},
      {"float8_e4m3fn", "is e4m3 here"},
      {"bfloat16", "is bf16 here, of kv_format plain"},
      {"bf16", "is bf16 here, of kv_format plain"},
      {"float16", "is fp16 here, of kv_format plain"},
      {"half", "is fp16 here, of kv_format plain"},
      {"fp16", "is fp16 here, of kv_format plain"}};
  for (const auto& [other, here] : kNames) {
    if (name == other) return message("; '", name, "' ", here);
  }
  return "";
}

const char* to_string(KvLayout layout) {
  return name_of(kLayouts, layout);
}

const char* to_string(PrefixSharing sharing) {
  return name_of(kSharings, sharing);
}
Result<PrefixSharing> prefix_sharing_from_name(std::string_view name) {
  return value_of(kSharings, name, "prefix sharing", "off, auto and always");
}

const char* to_string(Products products) {
  return name_of(kProducts, products);
}
Result<Products> products_from_name(std::string_view name) {
  return value_of(kProducts, name, "products", "auto, bf16 and fp8");
}

std::string to_string(const DecodeProblem& p) {
  const bool plain = p.cache.format == KvFormat::kPlain;
  const std::string tokens = p.sparse.enabled ? message(" page=", p.cache.page_size, " topk=", p.sparse.topk)
                                              : message(" page=", p.cache.page_size, "x", p.cache.max_pages);
  const bool latent = p.cache.layout == KvLayout::kLatent;
  const ExtraCache& extra = p.cache.extra;
  std::string extra_tokens;
  if (extra.enabled) {
    const bool other = p.cache.extra_format() != p.cache.format;
    extra_tokens = message(other ? " extra=" : "", other ? to_string(p.cache.extra_format()) : "",
                           " extra_page=", extra.page_size, extra.indexed ? " extra_topk=" : "x",
                           extra.indexed ? extra.topk : extra.max_pages);
  }
  return message(
      p.sparse.enabled ? "sparse " : "", latent ? "" : to_string(p.cache.layout), latent ? "" : " ",
      "decode b=", p.query.batch, " s_q=", p.query.tokens, p.query.ragged ? " (ragged)" : "",
      p.query.e4m3 ? " (e4m3)" : "", " h_q=", p.query.heads, " h_kv=", p.cache.heads, " d=", p.cache.qk_dim,
      "/", p.cache.v_dim, " ", plain ? to_string(p.cache.dtype) : to_string(p.cache.format),
      p.cache.scales != ScalePlace::kAuto ? message(" scales=", to_string(p.cache.scales)) : "", tokens,
      extra_tokens, " scale=", p.options.softmax_scale, p.options.causal ? " causal" : "",
      p.options.separate.soft_cap != 0 ? message(" cap=", p.options.separate.soft_cap) : "",
      p.options.separate.alibi ? " alibi" : "",
      p.options.products != Products::kAuto ? message(" products=", to_string(p.options.products)) : "",
      p.options.window != 0 ? message(" window=", p.options.window) : "",
      p.options.shard.world != 1
          ? message(" shard=", p.options.shard.rank, "/", p.options.shard.world, " run=", p.options.shard.run)
          : "",
      p.options.q_edge ? " q_edge" : "", p.options.out_edge ? " out_edge" : "",
      p.options.attn_sink ? " sink" : "", p.options.batch_invariant ? " batch_invariant" : "",
      p.options.prefix_sharing == PrefixSharing::kOff
          ? ""
          : message(" prefix_sharing=", to_string(p.options.prefix_sharing)),
      p.options.empty_lse > 0 ? " empty_lse=+inf" : "",
      p.options.calls_per_plan > 0 ? message(" calls_per_plan=", p.options.calls_per_plan) : "",
      p.options.typical_tokens > 0 ? message(" typical_tokens=", p.options.typical_tokens) : "");
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
  FLASHLATENT_RETURN_IF_ERROR(p.cache.layout == KvLayout::kLatent ? validate_latent(p)
                                                                  : validate_separate(p));
  FLASHLATENT_RETURN_IF_ERROR(in_range("page_size", p.cache.page_size, 1, kMany));
  FLASHLATENT_RETURN_IF_ERROR(in_range("max_pages (block_table columns)", p.cache.max_pages, 0, 1LL << 30));
  FLASHLATENT_RETURN_IF_ERROR(validate_format(p));
  FLASHLATENT_RETURN_IF_ERROR(validate_products(p));
  FLASHLATENT_RETURN_IF_ERROR(in_range("window", p.options.window, 0, (1LL << 31) - 1));
  FLASHLATENT_RETURN_IF_ERROR(in_range("calls_per_plan", p.options.calls_per_plan, 0, kMany));
  FLASHLATENT_RETURN_IF_ERROR(in_range("typical_tokens", p.options.typical_tokens, 0, (1LL << 31) - 1));
  FLASHLATENT_RETURN_IF_ERROR(validate_shard(p));
  FLASHLATENT_RETURN_IF_ERROR(validate_edges(p));
  if (p.cache.extra.enabled) FLASHLATENT_RETURN_IF_ERROR(validate_extra(p));
  if (p.sparse.enabled) FLASHLATENT_RETURN_IF_ERROR(validate_sparse(p));
  // The length of a page table is not checked: lengths are int32, so the last pages of a longer table are
  // just never reached.
  if (!std::isfinite(p.options.softmax_scale)) {
    const bool unset = std::isnan(p.options.softmax_scale);
    return invalid_argument("softmax_scale is ", p.options.softmax_scale, unset ? ", which is not set" : "",
                            "; it must be finite, 1/sqrt(192) for DeepSeek-V3");
  }
  if (!std::isinf(p.options.empty_lse)) {
    return invalid_argument("empty_lse is ", p.options.empty_lse, "; -inf and +inf are accepted");
  }
  return {};
}

}  // namespace flashlatent
