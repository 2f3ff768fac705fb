#include "flashlatent/kv_cache.h"

#include "core/expect.h"
#include "core/latent_format.h"
#include "core/message.h"
#include "core/overlap.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"

namespace flashlatent {

namespace {

/// Elements of a token of this cache.
std::int64_t elements_of(const ConstTensorView& view) {
  return elements_of(latent_format(view), view.shape[view.rank - 1]);
}

/// Expects a cache in any format.
Status expect_cache(const char* name, const ConstTensorView& view, Device device) {
  if (view.rank != 4 || (!is_half(view.dtype) && view.dtype != Dtype::kU8)) {
    return invalid_argument(name, " is ", view.present() ? to_string(view) : "missing",
                            "; expected bf16 or fp16 (pages, page_size, h_kv, d), or uint8 (pages, "
                            "page_size, 1, 656, 584, 576 or 512) on ",
                            to_string(device));
  }
  const KvFormat format = latent_format(view);
  const bool plain = format == KvFormat::kPlain;
  if (!plain) FLASHLATENT_RETURN_IF_ERROR(expect_fp8_format(name, view));
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided(name, view, view.dtype, device,
                     {-1, -1, plain ? -1 : 1, plain ? -1 : last_extent(format, view.shape[3])}));
  if (format == KvFormat::kFp8_584) FLASHLATENT_RETURN_IF_ERROR(expect_fp8_584_strides(name, view));
  if (view.shape[1] > 0 && view.shape[2] > 0 && view.shape[3] > 0) return {};
  return invalid_argument(name, " is ", to_string(view), "; page_size, h_kv and d must be at least 1");
}

/// Checks a cache's scale, if one is given: an e4m3 cache may have one, other caches none.
Status expect_scale(const char* name, const ConstTensorView& scale, const char* cache_name,
                    const ConstTensorView& cache, Device device) {
  if (!scale.present()) return {};
  if (latent_format(cache) == KvFormat::kE4m3) {
    FLASHLATENT_RETURN_IF_ERROR(flashlatent::expect_scale(name, scale, 1, device));
    return device.type == DeviceType::kCpu ? expect_positive(name, scale) : Status{};
  }
  return invalid_argument(name, " is given, but ", cache_name, " is ",
                          is_half(cache.dtype) ? to_string(cache.dtype) : to_string(latent_format(cache)),
                          "; e4m3 caches have one scale");
}

/// Does this cache fit another one of an FP8 format, which fixes the number of elements and has one KV head?
Status fits_fp8(const char* name, const ConstTensorView& view, const char* other, KvFormat format,
                std::int64_t last) {
  const std::int64_t elements = elements_of(format, last);
  if (view.shape[2] == 1 && elements_of(view) == elements) return {};
  return invalid_argument(name, " is ", to_string(view), ", but ", other, " is ", to_string(format),
                          "; one KV head of ", elements, " elements would fit");
}

Status validate_append(const ConstTensorView& latent, const ConstTensorView& rope,
                       const ConstTensorView& slot_mapping, const ConstTensorView& kv_cache,
                       const ConstTensorView& kv_scale, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_cache("kv_cache", kv_cache, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("kv_scale", kv_scale, "kv_cache", kv_cache, device));
  if (kv_cache.shape[2] != 1) {
    return invalid_argument("kv_cache is ", to_string(kv_cache), "; append_latent writes one KV head");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_integers("slot_mapping", slot_mapping, device, {-1}));
  if (latent.present() && !is_half(latent.dtype)) {
    return invalid_argument("latent is ", to_string(latent), "; bf16 and fp16 are accepted");
  }
  const std::int64_t n = slot_mapping.shape[0], d = elements_of(kv_cache);
  const std::int64_t d_rope =
      rope_of(latent_format(kv_cache), rope.present() && rope.rank == 2 ? rope.shape[1] : 0);
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("latent", latent, latent.present() ? latent.dtype : Dtype::kBF16,
                                             device, {n, d - d_rope}));
  FLASHLATENT_RETURN_IF_ERROR(expect_apart("latent", latent, "kv_cache", kv_cache));
  if (d_rope == 0 && !rope.present()) return {};
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("rope", rope, latent.dtype, device, {n, d_rope}));
  return expect_apart("rope", rope, "kv_cache", kv_cache);
}

Status validate_convert(const ConstTensorView& from, const ConstTensorView& to,
                        const ConstTensorView& from_scale, const ConstTensorView& to_scale, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_cache("from", from, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_cache("to", to, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("from_scale", from_scale, "from", from, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("to_scale", to_scale, "to", to, device));
  const KvFormat format = latent_format(to);
  if (format != KvFormat::kPlain) {
    FLASHLATENT_RETURN_IF_ERROR(fits_fp8("from", from, "to", format, to.shape[3]));
  }
  if (format != KvFormat::kPlain && from.dtype == Dtype::kU8 && latent_format(from) != format) {
    return invalid_argument("from is ", to_string(latent_format(from)), ", but to is ", to_string(format),
                            "; the same format, bf16 and fp16 are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(
      expect("to", to, to.dtype, device,
             {from.shape[0], from.shape[1], from.shape[2], last_extent(format, elements_of(from))}));
  return expect_apart("from", from, "to", to);
}

Status validate_gather(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                       const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                       const ConstTensorView& out, const ConstTensorView& kv_scale, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_cache("kv_cache", kv_cache, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_scale("kv_scale", kv_scale, "kv_cache", kv_cache, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_gathered(block_table, cu_seqlens, first_token, device));
  if (out.present() && !is_half(out.dtype) && out.dtype != kv_cache.dtype) {
    return invalid_argument("out is ", to_string(out), "; ", to_string(kv_cache.dtype),
                            " (as it is in kv_cache), bf16 and fp16 are accepted");
  }
  const Dtype dtype = out.present() ? out.dtype : kv_cache.dtype;
  const KvFormat format = is_half(dtype) ? KvFormat::kPlain : latent_format(kv_cache);
  FLASHLATENT_RETURN_IF_ERROR(expect_strided(
      "out", out, dtype, device, {-1, kv_cache.shape[2], last_extent(format, elements_of(kv_cache))}));
  return expect_apart("kv_cache", kv_cache, "out", out);
}

Status validate_copy(const ConstTensorView& from, const ConstTensorView& to, const ConstTensorView& pairs,
                     Device device) {
  if (from.rank >= 4) {  // bytes of a page, in any layout
    const std::vector<std::int64_t> any(from.rank, -1);
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("from", from, from.dtype, device, any));
  } else {
    FLASHLATENT_RETURN_IF_ERROR(expect_cache("from", from, device));
  }
  std::vector<std::int64_t> shape(from.shape.begin(), from.shape.begin() + from.rank);
  shape[0] = -1;
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("to", to, from.dtype, device, shape));
  for (const auto& [name, view] : {std::pair{"from", from}, {"to", to}}) {
    if (view.rank == 4 && view.shape[2] == 1 && latent_format(view) == KvFormat::kFp8_584)
      FLASHLATENT_RETURN_IF_ERROR(expect_fp8_584_strides(name, view));
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_integers("pairs", pairs, device, {-1, 2}));
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
                     const Executor& executor, const ConstTensorView& kv_scale) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(
      validate_append(latent, rope, slot_mapping, kv_cache, kv_scale, device_of(executor)));
  if (slot_mapping.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, append_latent)(latent, rope, slot_mapping, kv_cache, executor,
                                                         kv_scale);
}

Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor,
                     const ConstTensorView& from_scale, const ConstTensorView& to_scale) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(validate_convert(from, to, from_scale, to_scale, device_of(executor)));
  if (from.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, convert_cache)(from, to, executor, from_scale, to_scale);
}

Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor, const ConstTensorView& kv_scale) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(
      validate_gather(kv_cache, block_table, cu_seqlens, first_token, out, kv_scale, device_of(executor)));
  return FLASHLATENT_ON_BACKEND(executor, gather_cache)(kv_cache, block_table, cu_seqlens, first_token, out,
                                                        executor, kv_scale);
}

Status copy_pages(const ConstTensorView& from, const TensorView& to, const ConstTensorView& pairs,
                  const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(validate_copy(from, to, pairs, device_of(executor)));
  if (pairs.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, copy_pages)(from, to, pairs, executor);
}

}  // namespace flashlatent
