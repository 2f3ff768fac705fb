#include "flashlatent/kv_cache.h"

#include "core/expect.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/rotation.h"
#include "core/token_steps.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"
#include "dispatch/token_edges.h"

namespace flashlatent {

namespace {

/// A cache and its format.
struct Stored {
  const char* name;
  const ConstTensorView& view;
  const LatentFormat* format;

  std::int64_t last() const { return view.shape[view.rank - 1]; }
  /// Elements of a token.
  std::int64_t elements() const { return format->elements_of(last()); }
};

/// Expects a cache in any format, and finds which.
Result<Stored> expect_cache(const char* name, const ConstTensorView& view, const CacheFormat& said,
                            Device device) {
  if (view.rank != 4 || (!is_half(view.dtype) && view.dtype != Dtype::kU8)) {
    return invalid_argument(name, " is ", view.present() ? to_string(view) : "missing",
                            "; expected bf16 or fp16 (pages, page_size, h_kv, d), or uint8 (pages, "
                            "page_size, 1, 656, 584, 576, 528, 512 or 288) on ",
                            to_string(device));
  }
  FLASHLATENT_ASSIGN_OR_RETURN(const LatentFormat* format, resolve_format(name, view, said));
  FLASHLATENT_RETURN_IF_ERROR(expect_floor(name, *format, said.floor));
  const std::int64_t last = format->plain() ? -1 : format->last_extent(view.shape[3]);
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided(name, view, view.dtype, device, {-1, -1, format->plain() ? -1 : 1, last}));
  FLASHLATENT_RETURN_IF_ERROR(expect_page_strides(name, view, *format));
  if (view.shape[1] > 0 && view.shape[2] > 0 && view.shape[3] > 0) return Stored{name, view, format};
  return invalid_argument(name, " is ", to_string(view), "; page_size, h_kv and d must be at least 1");
}

/// Checks a cache's scale, if one is given: an e4m3 cache may have one, other caches none.
Status expect_scale(const char* name, const ConstTensorView& scale, const Stored& cache, Device device) {
  if (!scale.present()) return {};
  if (cache.format->scales == ScaleKind::kOfCache) {
    FLASHLATENT_RETURN_IF_ERROR(flashlatent::expect_scale(name, scale, 1, device));
    return device.type == DeviceType::kCpu ? expect_positive(name, scale) : Status{};
  }
  return invalid_argument(name, " is given, but ", cache.name, " is ",
                          cache.format->plain() ? to_string(cache.view.dtype) : cache.format->name,
                          "; e4m3 caches have one scale");
}

/// Does `from` fit a cache of bytes, which has one KV head?
Status fits_bytes(const Stored& from, const Stored& to) {
  const std::int64_t elements = to.elements();
  if (from.view.shape[2] == 1 && from.elements() == elements) return {};
  return invalid_argument(from.name, " is ", to_string(from.view), ", but ", to.name, " is ", to.format->name,
                          "; one KV head of ", elements, " elements would fit");
}

Status validate_append(const ConstTensorView& latent, const ConstTensorView& rope,
                       const ConstTensorView& slot_mapping, const Stored& cache,
                       const ConstTensorView& kv_scale, const TokenEdges& edges, Device device) {
  const ConstTensorView& kv_cache = cache.view;
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("kv_scale", kv_scale, cache, device));
  if (kv_cache.shape[2] != 1) {
    return invalid_argument("kv_cache is ", to_string(kv_cache), "; append_latent writes one KV head");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_integers("slot_mapping", slot_mapping, device, {-1}));
  if (latent.present() && !is_half(latent.dtype) && latent.dtype != Dtype::kF32) {
    return invalid_argument("latent is ", to_string(latent), "; bf16, fp16 and fp32 are accepted");
  }
  const std::int64_t n = slot_mapping.shape[0], d = cache.elements();
  // Where a format has RoPE in bf16 it fixes its number of elements, unless `latent` has whole tokens.
  const bool whole = !rope.present() && latent.rank == 2 && latent.shape[1] == d;
  const std::int64_t d_rope = whole                              ? 0
                              : cache.format->rope_dim > 0       ? cache.format->rope_dim
                              : rope.present() && rope.rank == 2 ? rope.shape[1]
                                                                 : 0;
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("latent", latent, latent.present() ? latent.dtype : Dtype::kBF16,
                                             device, {n, d - d_rope}));
  if (d_rope > 0 || rope.present()) {
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("rope", rope, latent.dtype, device, {n, d_rope}));
  }
  const NamedRows normed{"latent", latent},
      rotated{d_rope > 0 ? "rope" : "latent", d_rope > 0 ? rope : latent};
  FLASHLATENT_RETURN_IF_ERROR(expect_token_edges(edges, normed, rotated, device));
  const NamedView written[] = {{"kv_cache", &kv_cache}};
  FLASHLATENT_RETURN_IF_ERROR(expect_apart_from(
      written, edges,
      {{"latent", &latent}, {"rope", &rope}, {"slot_mapping", &slot_mapping}, {"kv_scale", &kv_scale}}));
  if (!edges::in_fp32(edges, latent.dtype)) return {};
  if (edges.columns != RotaryColumns::kLast) {
    return invalid_argument("columns is kFirst; latents rotate their last columns");
  }
  if ((d - d_rope) % 8 == 0 && d_rope % 8 == 0 && d <= edges::kMostColumns) return {};
  return invalid_argument("latent is ", to_string(latent), " and rope has ", d_rope,
                          " columns; with fp32, norm, positions or ratio multiples of 8 are accepted, up to ",
                          edges::kMostColumns, " in all");
}

Status validate_convert(const Stored& from, const Stored& to, const ConstTensorView& from_scale,
                        const ConstTensorView& to_scale, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("from_scale", from_scale, from, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("to_scale", to_scale, to, device));
  if (!to.format->plain()) FLASHLATENT_RETURN_IF_ERROR(fits_bytes(from, to));
  FLASHLATENT_RETURN_IF_ERROR(expect(
      "to", to.view, to.view.dtype, device,
      {from.view.shape[0], from.view.shape[1], from.view.shape[2], to.format->last_extent(from.elements())}));
  const NamedView written[] = {{"to", &to.view}},
                  read[] = {{"from", &from.view}, {"from_scale", &from_scale}, {"to_scale", &to_scale}};
  return expect_apart(written, read);
}

Status validate_gather(const Stored& cache, const ConstTensorView& block_table,
                       const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                       const ConstTensorView& out, const ConstTensorView& kv_scale, Device device) {
  const ConstTensorView& kv_cache = cache.view;
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("kv_scale", kv_scale, cache, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_gathered(block_table, cu_seqlens, first_token, device));
  if (out.present() && !is_half(out.dtype) && out.dtype != kv_cache.dtype) {
    return invalid_argument("out is ", to_string(out), "; ", to_string(kv_cache.dtype),
                            " (as it is in kv_cache), bf16 and fp16 are accepted");
  }
  const Dtype dtype = out.present() ? out.dtype : kv_cache.dtype;
  const std::int64_t last = is_half(dtype) ? cache.elements() : cache.last();
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("out", out, dtype, device, {-1, kv_cache.shape[2], last}));
  const NamedView written[] = {{"out", &out}}, read[] = {{"kv_cache", &kv_cache},
                                                         {"block_table", &block_table},
                                                         {"cu_seqlens", &cu_seqlens},
                                                         {"first_token", &first_token},
                                                         {"kv_scale", &kv_scale}};
  return expect_apart(written, read);
}

Status validate_copy(const ConstTensorView& from, const ConstTensorView& to, const ConstTensorView& pairs,
                     Device device) {
  if (from.rank < 2 || from.rank > kMaxRank) {
    return invalid_argument(
        "from is ", from.present() ? to_string(from) : "missing",
        "; expected (pages, page_size, h_kv, d), keys or values of any layout, or (pages, "
        "page_bytes), on ",
        to_string(device));
  }
  const std::vector<std::int64_t> any(from.rank, -1);  // bytes of a page, in any layout
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("from", from, from.dtype, device, any));
  std::vector<std::int64_t> shape(from.shape.begin(), from.shape.begin() + from.rank);
  shape[0] = -1;
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("to", to, from.dtype, device, shape));
  for (const auto& [name, view] : {std::pair{"from", from}, {"to", to}}) {
    // A last dimension of 528 or 288 says no more than that rows are bytes of their page.
    if (view.rank != 4 || view.shape[2] != 1) continue;
    const Result<const LatentFormat*> format = resolve_format(name, view, {});
    if (format.ok()) FLASHLATENT_RETURN_IF_ERROR(expect_page_strides(name, view, **format));
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_integers("pairs", pairs, device, {-1, 2}));
  const NamedView written[] = {{"to", &to}}, read[] = {{"pairs", &pairs}};
  FLASHLATENT_RETURN_IF_ERROR(expect_apart(written, read));
  // `from` and `to` may be one cache, where `pairs` then has no page on both sides. Views that overlap
  // otherwise are refused: a page of one may be parts of several pages of the other.
  if (same_pages(from, to) || !overlap(from, to)) return {};
  return invalid_argument(
      "to is ", to_string(to), " at ", to.data, " and overlaps from, ", to_string(from), " at ", from.data,
      "; two caches that are apart, or one for both, with the same strides, are accepted");
}

}  // namespace

Status append_latent(const ConstTensorView& latent, const ConstTensorView& rope,
                     const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                     const Executor& executor, const ConstTensorView& kv_scale, const CacheFormat& format,
                     const TokenEdges& edges) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  const ConstTensorView view = kv_cache;
  FLASHLATENT_ASSIGN_OR_RETURN(const Stored cache, expect_cache("kv_cache", view, format, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_append(latent, rope, slot_mapping, cache, kv_scale, edges, device));
  if (slot_mapping.elements() == 0) return {};
  const CacheFormat said = said_as(*cache.format, format.floor);
  ConstTensorView first = latent, rest = rope;
  if (const int d_rope = cache.format->rope_dim; d_rope > 0 && !rope.present() && !edges.present()) {
    rest = latent;  // whole tokens: their parts
    rest.data =
        static_cast<const std::uint8_t*>(latent.data) + (latent.shape[1] - d_rope) * size_of(latent.dtype);
    rest.shape[1] = d_rope;
    first.shape[1] -= d_rope;
  }
  return FLASHLATENT_ON_BACKEND(executor, append_latent)(first, rest, slot_mapping, kv_cache, executor,
                                                         kv_scale, said, edges);
}

Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor,
                     const ConstTensorView& from_scale, const ConstTensorView& to_scale,
                     const CacheFormat& from_format, const CacheFormat& to_format) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  const ConstTensorView written = to;
  FLASHLATENT_ASSIGN_OR_RETURN(const Stored source, expect_cache("from", from, from_format, device));
  FLASHLATENT_ASSIGN_OR_RETURN(const Stored target, expect_cache("to", written, to_format, device));
  FLASHLATENT_RETURN_IF_ERROR(validate_convert(source, target, from_scale, to_scale, device));
  if (from.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, convert_cache)(from, to, executor, from_scale, to_scale,
                                                         said_as(*source.format),
                                                         said_as(*target.format, to_format.floor));
}

Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor, const ConstTensorView& kv_scale,
                    const CacheFormat& format) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_ASSIGN_OR_RETURN(const Stored cache, expect_cache("kv_cache", kv_cache, format, device));
  FLASHLATENT_RETURN_IF_ERROR(
      validate_gather(cache, block_table, cu_seqlens, first_token, out, kv_scale, device));
  return FLASHLATENT_ON_BACKEND(executor, gather_cache)(kv_cache, block_table, cu_seqlens, first_token, out,
                                                        executor, kv_scale, said_as(*cache.format));
}

Status copy_pages(const ConstTensorView& from, const TensorView& to, const ConstTensorView& pairs,
                  const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(validate_copy(from, to, pairs, device_of(executor)));
  if (pairs.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, copy_pages)(from, to, pairs, executor);
}

}  // namespace flashlatent
