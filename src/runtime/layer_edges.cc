#include "runtime/layer_edges.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/e4m3.h"
#include "core/edge_rows.h"
#include "core/element.h"
#include "core/message.h"
#include "dispatch/sparse_prefill.h"
#include "runtime/fp8_row.h"

namespace flashlatent::runtime {

namespace {

constexpr int kPositions = 97;  // of a table

std::uint8_t* allocate(RandomCase& random_case, std::int64_t bytes) {
  random_case.storage.emplace_back(std::max<std::int64_t>(bytes, 1));
  return random_case.storage.back().data();
}

Rotation make_rotation(const EdgeSpec& spec, int columns, std::mt19937_64& engine, RandomCase& random_case) {
  const ConstTensorView& q = random_case.inputs.q;
  const bool ragged = random_case.problem.query.ragged;
  const std::int64_t count = ragged ? q.shape[0] : q.shape[0] * q.shape[1];
  Rotation rotation;
  std::uint8_t* positions = allocate(random_case, count * 8);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto position = static_cast<std::int64_t>(engine() % kPositions);
    const auto narrow = static_cast<std::int32_t>(position);
    if (spec.wide_positions) {
      std::memcpy(positions + 8 * i, &position, 8);
    } else {
      std::memcpy(positions + 4 * i, &narrow, 4);
    }
  }
  const Dtype integers = spec.wide_positions ? Dtype::kI64 : Dtype::kI32;
  rotation.positions = ragged ? ConstTensorView(positions, integers, {count})
                              : ConstTensorView(positions, integers, {q.shape[0], q.shape[1]});
  std::uint8_t* table = allocate(random_case, std::int64_t{kPositions} * columns * 4);
  std::uniform_real_distribution<float> angle(0, 6.2831853F);
  for (int position = 0; position < kPositions; ++position) {
    for (int pair = 0; pair < columns / 2; ++pair) {
      const float a = angle(engine);
      const bool apart = spec.layout == RotaryTable::kHalves;
      const int at[] = {apart ? pair : 2 * pair, apart ? columns / 2 + pair : 2 * pair + 1};
      const float values[] = {std::cos(a), std::sin(a)};
      for (int i = 0; i < 2; ++i) {
        const int place = position * columns + at[i];
        if (spec.bf16_table) {
          const std::uint16_t value = from_float(values[i], Dtype::kBF16);
          std::memcpy(table + 2 * place, &value, 2);
        } else {
          std::memcpy(table + 4 * place, &values[i], 4);
        }
      }
    }
  }
  rotation.table = {table, spec.bf16_table ? Dtype::kBF16 : Dtype::kF32, {kPositions, columns}};
  rotation.pairs = spec.pairs;
  rotation.layout = spec.layout;
  return rotation;
}

std::int64_t offset_of(const ConstTensorView& view, std::int64_t request, std::int64_t token,
                       std::int64_t head) {
  const edges::Rows rows(view);
  return request * rows.strides[0] + token * rows.strides[1] + head * rows.strides[2];
}

/// A finished row in fp32, before it is rounded or cast, and for each value what it and its partner have in
/// magnitude.
struct FinishedRow {
  std::vector<float> x, size;

  FinishedRow(const ConstTensorView& out, const Rotation& rotate, std::int64_t request, std::int64_t token,
              std::int64_t head) {
    const edges::Rows rows(out);
    const auto* from = static_cast<const std::uint16_t*>(out.data) + offset_of(out, request, token, head);
    for (int i = 0; i < rows.dim; ++i) x.push_back(to_float(from[i], out.dtype));
    for (const float value : x) size.push_back(std::fabs(value));
    const edges::Rotary rotary = edges::rotary_of(rotate, /*back=*/true);
    if (rotary.positions == nullptr) return;
    const std::vector<float> before = x;
    const int first = rows.dim - rotary.columns;
    for (int column = 0; column < rotary.columns; ++column) {
      const float partner = before[first + rotary.partner_of(column)];
      x[first + column] =
          rotary.rotated(column, before[first + column], partner,
                         rotary.angle(rotary.position(request, token), rotary.pair_of(column)));
      size[first + column] = std::fabs(before[first + column]) + std::fabs(partner);
    }
  }
};

/// May `got` stand for a value that is `right` but for one rounding of what it was made of, of this size?
bool is_near(float got, float right, float size, float last_rounding) {
  if (!std::isfinite(right)) return std::isnan(right) ? std::isnan(got) : got == right || std::isnan(got);
  constexpr float kBetween = 0x1p-8F;  // bf16's and fp16's roundings between
  return std::fabs(got - right) <= kBetween * size + last_rounding;
}

std::string compare_out(const ConstTensorView& out, const FinishedRow& row, std::int64_t offset,
                        bool same_bits) {
  const auto* got = static_cast<const std::uint16_t*>(out.data) + offset;
  for (std::size_t i = 0; i < row.x.size(); ++i) {
    const std::uint16_t right = from_float(row.x[i], out.dtype);
    const float value = to_float(got[i], out.dtype);
    const bool nan = std::isnan(row.x[i]) && std::isnan(value);
    const bool near =
        !same_bits && is_near(value, row.x[i], row.size[i], std::fabs(row.x[i]) * 0x1p-8F + 1e-7F);
    if (got[i] == right || nan || near) continue;
    return message("out's column ", i, " is ", value, ", expected ", row.x[i]);
  }
  return {};
}

std::string compare_fp8(const Fp8Row& got, const FinishedRow& row, bool same_bits) {
  for (std::size_t begin = 0; begin < row.x.size(); begin += got.columns()) {
    const std::size_t end = begin + got.columns();
    float amax = 0, size = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(row.x[i])) continue;
      amax = std::max(amax, std::fabs(row.x[i]));
      size = std::max(size, row.size[i]);
    }
    const float scale = got.scale(begin), slack = same_bits ? 0 : size * 0x1p-8F;
    const float least = Fp8Row::scale_of(std::max(amax - slack, 0.0F)), most = Fp8Row::scale_of(amax + slack);
    if (!(scale >= least && scale <= most)) {
      return message("the scale of column ", begin, " is ", scale, ", expected ", least, " to ", most);
    }
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint8_t right = e4m3::encode(edges::product(row.x[i], 1 / scale));
      if (got.code(i) == right) continue;
      const float step = std::max(std::fabs(row.x[i]) * 0x1p-4F, scale * 0x1p-10F);  // half of one
      if (!same_bits && is_near(static_cast<float>(got.value(i)), row.x[i], row.size[i], step * 1.01F))
        continue;
      return message("column ", i, " of the codes is ", got.value(i), ", expected ",
                     e4m3::decode(right) * scale, ", which is rounded from ", row.x[i]);
    }
  }
  return {};
}

/// For contiguous tensors of one shape.
bool same_bytes(const ConstTensorView& a, const ConstTensorView& b) {
  return std::memcmp(a.data, b.data, a.elements() * size_of(a.dtype)) == 0;
}

/// What a sparse prefill wrote, as what decode writes.
EdgeResults as_decode(const SparsePrefillOutputs& outputs) {
  return {out_as_decode(outputs), with_last_query_token(outputs.lse), outputs.out_fp8};
}

}  // namespace

void set_edge_options(const EdgeSpec& spec, DecodeProblem& problem) {
  problem.options.q_edge = spec.has_query();
  problem.options.out_edge = spec.has_output();
}

Fp8Request request_of(const EdgeSpec& spec) {
  return {.columns = spec.fp8_columns, .groups = spec.fp8_groups, .keeps_out = spec.keeps_out};
}

void add_edges(const EdgeSpec& spec, std::uint64_t seed, RandomCase& random_case) {
  std::mt19937_64 engine(seed ^ 0x6564676573ULL);
  DecodeInputs& inputs = random_case.inputs;
  inputs.q_norm = spec.norm;
  if (spec.q_columns > 0) inputs.q_rotate = make_rotation(spec, spec.q_columns, engine, random_case);
  if (spec.out_columns > 0) inputs.out_rotate = make_rotation(spec, spec.out_columns, engine, random_case);
}

RandomCase without_edges(RandomCase& random_case) {
  RandomCase plain = {random_case.problem, random_case.inputs, random_case.other_lengths, {}};
  plain.problem.options.q_edge = plain.problem.options.out_edge = false;
  DecodeInputs& inputs = plain.inputs;
  inputs.q_norm = 0;
  inputs.q_rotate = inputs.out_rotate = {};
  const DecodeInputs& given = random_case.inputs;
  if (!random_case.problem.options.q_edge) return plain;
  const bool parts = given.q_rope.present();
  const ConstTensorView& from = parts ? given.q_rope : given.q;
  void* data = allocate(random_case, from.elements() * 2);
  const TensorView to =
      from.rank == 3
          ? TensorView(data, from.dtype, {from.shape[0], from.shape[1], from.shape[2]})
          : TensorView(data, from.dtype, {from.shape[0], from.shape[1], from.shape[2], from.shape[3]});
  const Status status = prepare_queries(from, given.q_norm, given.q_rotate, to, Executor{});
  if (!status.ok()) std::memset(data, 0xFF, from.elements() * 2);  // which no result agrees with
  (parts ? inputs.q_rope : inputs.q) = to;
  return plain;
}

std::string compare_edges(const DecodeInputs& inputs, const EdgeResults& got, const EdgeResults& plain,
                          bool same_bits) {
  if (!same_bytes(got.lse, plain.lse)) return "lse has other bits than without edges";
  const edges::Rows rows(plain.out);
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    const edges::Place place(rows, i);
    const std::int64_t token = place.request * rows.tokens + place.token;
    const FinishedRow row(plain.out, inputs.out_rotate, place.request, place.token, place.head);
    std::string wrong;
    if (got.out.present()) {
      wrong =
          compare_out(got.out, row, offset_of(got.out, place.request, place.token, place.head), same_bits);
    }
    if (wrong.empty() && got.fp8.present()) {
      wrong = compare_fp8(Fp8Row(got.fp8, token, place.head, rows.heads, rows.dim), row, same_bits);
    }
    if (!wrong.empty()) {
      return message("with edges, query token ", token, ", query head ", place.head, ": ", wrong);
    }
  }
  if (!got.fp8.present()) return {};
  const std::int64_t padded = got.fp8.scales.shape[2];
  const auto* scales = static_cast<const std::uint32_t*>(got.fp8.scales.data);
  for (std::int64_t i = 0; i < got.fp8.scales.elements(); ++i) {
    if (i % padded >= got.fp8.codes.shape[0] && scales[i] != 0)
      return "scales behind the last token are not 0";
  }
  return {};
}

std::string compare_prefill_edges(const DecodeInputs& inputs, const SparsePrefillOutputs& got,
                                  const SparsePrefillOutputs& plain, bool same_bits) {
  if (got.max_logits.present() && !same_bytes(got.max_logits, plain.max_logits)) {
    return "max_logits has other bits than without edges";
  }
  return compare_edges(inputs, as_decode(got), as_decode(plain), same_bits);
}

}  // namespace flashlatent::runtime
