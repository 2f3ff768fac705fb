#include <cmath>
#include <cstring>
#include <limits>

#include "core/element.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"

namespace flashlatent::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void store(const TensorView& out, std::int64_t offset, float value) {
  if (out.dtype == Dtype::kF32) {
    static_cast<float*>(out.data)[offset] = value;
  } else {
    static_cast<std::uint16_t*>(out.data)[offset] = from_float(value, out.dtype);
  }
}

float load(const ConstTensorView& view, std::int64_t offset) {
  if (view.dtype == Dtype::kF32) return static_cast<const float*>(view.data)[offset];
  return to_float(static_cast<const std::uint16_t*>(view.data)[offset], view.dtype);
}

}  // namespace

Status combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
               const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
               const Executor& executor) {
  const auto& [parts, batch, tokens, heads, v_dim] = partial_out.shape;
  const std::int64_t rows = batch * tokens * heads;
  const int threads = executor.threads > 0 ? executor.threads : hardware_threads();
  // By name: clang 14 cannot capture structured bindings.
  const std::int64_t n_parts = parts, n_tokens = tokens, n_heads = heads, columns = v_dim;
  parallel_for(rows, threads, [&](std::int64_t i) {
    const std::int64_t head = i % n_heads, token = i / n_heads % n_tokens, request = i / n_heads / n_tokens;
    const auto& ls = partial_lse.strides;
    const auto& os = partial_out.strides;
    const float* row_lse =
        static_cast<const float*>(partial_lse.data) + request * ls[1] + head * ls[2] + token * ls[3];
    const std::int64_t row_out = request * os[1] + token * os[2] + head * os[3];
    float max = -kInfinity;
    for (std::int64_t part = 0; part < n_parts; ++part) max = std::max(max, row_lse[part * ls[0]]);
    const float base = max == -kInfinity ? 0 : max;
    auto weight = [&](std::int64_t part) { return std::exp(row_lse[part * ls[0]] - base); };
    float sum = 0;
    for (std::int64_t part = 0; part < n_parts; ++part) sum += weight(part);
    const float merged_lse = sum == 0 ? -kInfinity : base + std::log(sum);
    float factor = sum == 0 ? 0 : 1 / sum;
    if (attn_sink.present() && sum != 0) {
      factor /= 1 + std::exp(static_cast<const float*>(attn_sink.data)[head] - merged_lse);
    }
    for (std::int64_t d = 0; d < columns; ++d) {
      float value = 0;
      for (std::int64_t part = 0; part < n_parts; ++part) {
        const float w = weight(part);
        if (w != 0) value += w * load(partial_out, row_out + part * os[0] + d);
      }
      store(out, request * out.strides[0] + token * out.strides[1] + head * out.strides[2] + d,
            value * factor);
    }
    static_cast<float*>(lse.data)[request * lse.strides[0] + head * lse.strides[1] + token * lse.strides[2]] =
        merged_lse;
  });
  return {};
}

}  // namespace flashlatent::cpu
