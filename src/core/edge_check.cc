#include "core/edge_check.h"

#include <cmath>
#include <span>
#include <utility>

#include "core/edge_rows.h"
#include "core/expect.h"
#include "core/message.h"
#include "core/query_parts.h"

namespace flashlatent {

Status expect_epsilon(const char* name, float epsilon) {
  // Subnormal numbers count as 0 where a compiler or a processor flushes them.
  if (epsilon == 0 || (epsilon > 0 && std::isnormal(epsilon))) return {};
  return invalid_argument(name, " is ", epsilon,
                          "; a finite epsilon of 0 (no norm), or of 1.2e-38 or more, is accepted");
}

Status expect_table(const char* name, const ConstTensorView& table, Device device) {
  if (table.dtype != Dtype::kF32 && table.dtype != Dtype::kBF16) {
    return invalid_argument(name, " is ", to_string(table), "; fp32 and bf16 are accepted");
  }
  return expect_strided(name, table, table.dtype, device, {-1, -1});
}

Status expect_rotation(const Rotation& rotate, const RotationNames& names, const char* of,
                       const ConstTensorView& rows, Device device) {
  if (!rotate.present()) return {};
  const auto& [positions, table] = std::pair(rotate.positions, rotate.table);
  if (!positions.present() || !table.present()) {
    return invalid_argument(table.present() ? names.positions : names.table,
                            " is missing; positions and table go together");
  }
  const Extents tokens(std::span(rows.shape.data(), static_cast<std::size_t>(rows.rank - 2)));
  const Dtype integers = positions.dtype == Dtype::kI64 ? Dtype::kI64 : Dtype::kI32;
  FLASHLATENT_RETURN_IF_ERROR(expect(names.positions, positions, integers, device, tokens));
  FLASHLATENT_RETURN_IF_ERROR(expect_table(names.table, table, device));
  const std::int64_t columns = table.shape[1], d = rows.shape[rows.rank - 1];
  if (columns >= 16 && columns % 16 == 0 && columns <= d) return {};
  return invalid_argument(names.table, " is ", to_string(table), " and ", of, " is ", to_string(rows),
                          "; a multiple of 16 columns, up to those of a head, is accepted");
}

Status expect_positions(const Rotation& rotate, const RotationNames& names, const ConstTensorView& of) {
  if (!rotate.present()) return {};
  const edges::Rows rows(of);
  const edges::Rotary rotary = edges::rotary_of(rotate, /*back=*/false);
  for (std::int64_t request = 0; request < rows.requests; ++request) {
    for (std::int64_t token = 0; token < rows.tokens; ++token) {
      const std::int64_t position = rotary.position(request, token);
      if (rotary.holds(position)) continue;
      return invalid_argument(names.positions, " has ", position, " for token ",
                              request * rows.tokens + token, "; ", names.table, " has ", rotary.rows,
                              " positions");
    }
  }
  return {};
}

Status expect_fp8_output(const Fp8Output& fp8, const Fp8Names& names, const ConstTensorView& out,
                         Device device) {
  const int first = out.rank - 3;
  const std::int64_t tokens = out.shape[first] * (first > 0 ? out.shape[0] : 1);
  const std::int64_t heads = out.shape[first + 1], d = out.shape[first + 2];
  if (!fp8.codes.present() || fp8.codes.rank != 3) {
    return invalid_argument(names.codes, " is ", fp8.codes.present() ? to_string(fp8.codes) : "missing",
                            "; expected uint8 (tokens, groups, heads / groups * v_dim) on ",
                            to_string(device));
  }
  const std::int64_t groups = fp8.codes.shape[1];
  if (groups < 1 || heads % groups != 0) {
    return invalid_argument(names.codes, " is ", to_string(fp8.codes), " and ", names.out, " is ",
                            to_string(out), "; groups must divide the heads");
  }
  if (d % edges::kScaleColumns != 0) {
    return invalid_argument(names.out, " is ", to_string(out), "; an FP8 output has heads of a multiple of ",
                            edges::kScaleColumns, " elements");
  }
  const std::int64_t columns = heads / groups * d;
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided(names.codes, fp8.codes, Dtype::kU8, device, {tokens, groups, columns}));
  const std::int64_t padded =
      (tokens + edges::kTokenPadding - 1) / edges::kTokenPadding * edges::kTokenPadding;
  const bool fine = fp8.scales.dtype == Dtype::kI32 || fp8.columns == OutputColumns::kTiles;
  const Dtype dtype = fine ? Dtype::kI32 : Dtype::kF32;
  const std::int64_t lines = columns / edges::kScaleColumns;
  FLASHLATENT_RETURN_IF_ERROR(expect(names.scales, fp8.scales, dtype, device, {groups, lines, padded}));
  const TensorView contiguous(fp8.scales.data, dtype, {groups, lines, padded}, device);
  if (fp8.scales.elements() == 0 || fp8.scales.strides == contiguous.strides) return {};
  return invalid_argument(names.scales, " is ", to_string(fp8.scales), "; it must be contiguous");
}

TensorView output_shape(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const auto& [query, cache, sparse, options] = problem;
  if (query.ragged) return {nullptr, cache.dtype, {inputs.q.shape[0], query.heads, cache.v_dim}, device};
  return {nullptr, cache.dtype, {query.batch, query.tokens, query.heads, cache.v_dim}, device};
}

Status expect_query_edge(const ConstTensorView& q, const ConstTensorView& q_rope, float norm,
                         const Rotation& rotate, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_epsilon("q_norm", norm));
  const bool parts = q_rope.present();
  if (parts && norm != 0) {
    return invalid_argument("q_norm is ", norm, " and q_rope is ", to_string(q_rope),
                            "; a query in two parts is rotated alone");
  }
  return expect_rotation(rotate, kQueryRotation, parts ? "q_rope" : "q", parts ? q_rope : q, device);
}

Status expect_output_edge(bool out_edge, const ConstTensorView& out, const Rotation& rotate,
                          const Fp8Output& fp8, Device device) {
  const bool given = rotate.present() || fp8.present();
  if (!out_edge) {
    if (!given) return {};
    return invalid_argument(fp8.present() ? "out_fp8" : "out_rotate",
                            " is given, but the options have out_edge off");
  }
  if (!given) return invalid_argument("out_rotate and out_fp8 are missing, but the options have out_edge");
  FLASHLATENT_RETURN_IF_ERROR(expect_rotation(rotate, kOutputRotation, "out", out, device));
  if (!fp8.present()) return {};
  return expect_fp8_output(fp8, {"out_fp8.codes", "out_fp8.scales", "out"}, out, device);
}

Status validate_query_edge(const DecodeProblem& problem, const DecodeInputs& inputs, Device device) {
  const bool given = inputs.q_norm != 0 || inputs.q_rotate.present();
  if (!problem.options.q_edge) {
    if (!given) return {};
    return invalid_argument(inputs.q_norm != 0 ? "q_norm" : "q_rotate",
                            " is given, but the options have q_edge off");
  }
  if (!given) return invalid_argument("q_norm and q_rotate are missing, but the options have q_edge");
  return expect_query_edge(inputs.q, inputs.q_rope, inputs.q_norm, inputs.q_rotate, device);
}

Status validate_output_edge(const DecodeProblem& problem, const DecodeInputs& inputs,
                            const DecodeOutputs& outputs, Device device) {
  return expect_output_edge(problem.options.out_edge, output_shape(problem, inputs, device),
                            inputs.out_rotate, outputs.out_fp8, device);
}

}  // namespace flashlatent
