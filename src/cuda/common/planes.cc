#include "cuda/common/planes.h"

namespace flashlatent::cuda {

namespace {

using parts::Plane;

/// Strides in bytes, of keys or values as (pages, page_size, h_kv, d).
Plane rows(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  return {.data = static_cast<const std::uint8_t*>(cache.data),
          .page_stride = cache.strides[0] * bytes,
          .head_stride = cache.strides[2] * bytes,
          .token_stride = cache.strides[1] * bytes,
          .unit_stride = 16,
          .scale = static_cast<const float*>(scale.data),
          .scale_stride = scale.present() && scale.shape[0] > 1 ? 1 : 0};
}

/// Keys (pages, h_kv, d / x, page_size, x).
Plane packed_keys(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  Plane plane = rows(cache, scale);
  plane.head_stride = cache.strides[1] * bytes;
  plane.unit_stride = cache.strides[2] * bytes;
  plane.token_stride = cache.strides[3] * bytes;
  return plane;
}

/// Values (pages, h_kv, d, page_size).
Plane packed_values(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  Plane plane = rows(cache, scale);
  plane.head_stride = cache.strides[1] * bytes;
  plane.unit_stride = cache.strides[2] * bytes;
  plane.token_stride = bytes;
  return plane;
}

}  // namespace

Plane key_plane(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const bool packed = problem.cache.layout == KvLayout::kPacked;
  return packed ? packed_keys(inputs.key_cache, inputs.key_scale) : rows(inputs.key_cache, inputs.key_scale);
}

Plane value_plane(const DecodeProblem& problem, const DecodeInputs& inputs) {
  const bool packed = problem.cache.layout == KvLayout::kPacked;
  return packed ? packed_values(inputs.value_cache, inputs.value_scale)
                : rows(inputs.value_cache, inputs.value_scale);
}

}  // namespace flashlatent::cuda
