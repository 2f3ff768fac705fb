#include "cpu/reference_rows.h"

#include <algorithm>
#include <cstring>

#include "core/element.h"
#include "core/formats/formats.h"
#include "core/query_parts.h"
#include "cpu/plain_rounding.h"
#include "cpu/token_rows.h"

namespace flashlatent::cpu {

namespace {

/// An element of a 16-bit tensor.
float element(const ConstTensorView& view, std::int64_t offset) {
  return to_float(static_cast<const std::uint16_t*>(view.data)[offset], view.dtype);
}

/// The scale of a group, from a token's scales.
double scale_at(ScaleKind kind, const std::uint8_t* scales, int group) {
  switch (kind) {
    case ScaleKind::kFp32: {
      float scale;
      std::memcpy(&scale, scales + group * sizeof(scale), sizeof(scale));
      return scale;
    }
    case ScaleKind::kUe8m0:
      return ue8m0::scale_value(scales[group]);
    case ScaleKind::kE4m3:
      return e4m3::decode(scales[group]);
    case ScaleKind::kNone:
    case ScaleKind::kOfCache:
      break;
  }
  return 1;
}

/// The first elements of a token that has bytes of its own: as many as `row` has.
void read_record(const LatentFormat& format, const std::uint8_t* data, const std::uint8_t* scales,
                 std::vector<double>& row) {
  const int columns = static_cast<int>(row.size());
  const int scaled = std::min(columns, format.scaled_dim());
  for (int begin = 0; begin < scaled; begin += format.group) {
    const double scale = scale_at(format.scales, scales, begin / format.group);
    for (int d = begin; d < std::min(begin + format.group, scaled); ++d) {
      const float element = format.elements == Elements::kE2m1
                                ? e2m1::decode(static_cast<std::uint8_t>(data[d / 2] >> (d % 2 * 4) & 0xF))
                                : e4m3::decode(data[d]);
      row[d] = element * scale;
    }
  }
  for (int d = scaled; d < columns; ++d) {
    std::uint16_t rope;
    std::memcpy(&rope, data + format.rope_offset + (d - scaled) * sizeof(rope), sizeof(rope));
    row[d] = bf16_to_float(rope);
  }
}

}  // namespace

float scale_of(const ConstTensorView& scale, int head) {
  return scale.present() ? static_cast<const float*>(scale.data)[scale.shape[0] > 1 ? head : 0] : 1.0F;
}

namespace {

/// The element at `offset` of a 16-bit tensor, or of an e4m3 one with its scale.
double scaled_element(const ConstTensorView& view, const ConstTensorView& scale, std::int64_t offset,
                      int head) {
  if (view.dtype != Dtype::kU8) return element(view, offset);
  return e4m3::decode(static_cast<const std::uint8_t*>(view.data)[offset]) * double{scale_of(scale, head)};
}

/// The elements at `offset`, and each `stride` behind the one before: as many as `row` has.
void read_elements(const ConstTensorView& view, const ConstTensorView& scale, std::int64_t offset,
                   std::int64_t stride, int head, std::vector<double>& row) {
  if (view.dtype == Dtype::kU8) {
    const auto* codes = static_cast<const std::uint8_t*>(view.data) + offset;
    const double factor = scale_of(scale, head);
    for (std::size_t d = 0; d < row.size(); ++d) row[d] = e4m3::decode(codes[d * stride]) * factor;
    return;
  }
  const auto* elements = static_cast<const std::uint16_t*>(view.data) + offset;
  for (std::size_t d = 0; d < row.size(); ++d) row[d] = to_float(elements[d * stride], view.dtype);
}

/// The begin of a cached latent row, which is the key, and its begin the value.
void read_latent(const DecodeProblem& problem, const DecodeInputs& inputs, Place place, int kv_head,
                 std::vector<double>& row) {
  const ConstTensorView& cache = place.extra ? inputs.extra_kv_cache : inputs.kv_cache;
  const LatentFormat& format = place.extra ? extra_format_of(problem.cache) : format_of(problem.cache);
  const auto& s = cache.strides;
  const std::int64_t page = place.page * s[0];
  if (format.is_record()) {
    const auto* bytes = static_cast<const std::uint8_t*>(cache.data) + page;
    read_record(format, bytes + format.data_at(place.offset, s[1]),
                bytes + format.scales_at(cache.shape[1], place.offset, s[1]), row);
    return;
  }
  read_elements(cache, inputs.kv_scale, page + place.offset * s[1] + kv_head * s[2], 1, 0, row);
}

}  // namespace

void read_key(const DecodeProblem& problem, const DecodeInputs& inputs, Place place, int kv_head,
              std::vector<double>& row) {
  const ConstTensorView& keys = inputs.key_cache;
  const auto& s = keys.strides;
  switch (problem.cache.layout) {
    case KvLayout::kLatent:
      return read_latent(problem, inputs, place, kv_head, row);
    case KvLayout::kSeparate:
      return read_elements(keys, inputs.key_scale, place.page * s[0] + place.offset * s[1] + kv_head * s[2],
                           s[3], kv_head, row);
    case KvLayout::kPacked:
      break;
  }
  const std::int64_t x = keys.shape[4];
  const std::int64_t begin = place.page * s[0] + kv_head * s[1] + place.offset * s[3];
  for (std::size_t d = 0; d < row.size(); ++d) {
    const auto column = static_cast<std::int64_t>(d);
    row[d] = scaled_element(keys, inputs.key_scale, begin + column / x * s[2] + column % x, kv_head);
  }
}

void read_value(const DecodeProblem& problem, const DecodeInputs& inputs, Place place, int kv_head,
                std::vector<double>& row) {
  if (problem.cache.layout == KvLayout::kLatent) return read_latent(problem, inputs, place, kv_head, row);
  const auto& s = inputs.value_cache.strides;
  const bool packed = problem.cache.layout == KvLayout::kPacked;
  const std::int64_t begin = packed ? place.page * s[0] + kv_head * s[1] + place.offset * s[3]
                                    : place.page * s[0] + place.offset * s[1] + kv_head * s[2];
  read_elements(inputs.value_cache, inputs.value_scale, begin, packed ? s[2] : s[3], kv_head, row);
}

std::int64_t query_offset(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                          int head, const ConstTensorView& view) {
  const auto& s = view.strides;
  if (!problem.query.ragged) return request * s[0] + token * s[1] + head * s[2];
  const auto* begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data);
  return (begins[request] + std::int64_t{token}) * s[0] + head * s[1];
}

std::int64_t position_of(const edges::Rotary& rotary, const DecodeProblem& problem,
                         const DecodeInputs& inputs, int request, int token) {
  if (rotary.positions == nullptr) return 0;
  if (!problem.query.ragged) return rotary.position(request, token);
  return rotary.position(0, static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data)[request] + token);
}

namespace {

/// Normalises and rotates a query row from column `first` on.
void prepare(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token, int first,
             std::vector<double>& row) {
  const edges::Rotary rotary = edges::rotary_of(inputs.q_rotate, /*back=*/false);
  std::vector<float> x(row.begin() + first, row.end());
  prepare_row(x.data(), static_cast<int>(x.size()), inputs.q_norm, rotary,
              position_of(rotary, problem, inputs, request, token));
  std::transform(x.begin(), x.end(), row.begin() + first,
                 [&](float value) { return rounded(value, problem.cache.dtype); });
}

}  // namespace

std::vector<double> query_elements(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                                   int token, int head, const ConstTensorView& scale) {
  const int columns = query_parts::columns_of_q(problem, inputs);
  std::vector<double> row(problem.cache.qk_dim);
  const std::int64_t q = query_offset(problem, inputs, request, token, head, inputs.q);
  for (int d = 0; d < columns; ++d) row[d] = scaled_element(inputs.q, scale, q + d, head);
  const bool parts = inputs.q_rope.present();
  const std::int64_t rope = parts ? query_offset(problem, inputs, request, token, head, inputs.q_rope) : 0;
  for (int d = columns; d < problem.cache.qk_dim; ++d) {
    row[d] = scaled_element(inputs.q_rope, scale, rope + d - columns, head);
  }
  const bool edge = inputs.q_norm != 0 || inputs.q_rotate.present();
  if (edge) prepare(problem, inputs, request, token, parts ? columns : 0, row);
  return row;
}

}  // namespace flashlatent::cpu
