// Checks of what the edges of a layer are given (flashlatent/edges.h): by launches of their own, or as
// options of a decode call.
#pragma once

#include "flashlatent/decode.h"

namespace flashlatent {

/// What messages call a rotation's tensors.
struct RotationNames {
  const char *positions, *table;
};
/// What messages call an FP8 output's tensors and the output.
struct Fp8Names {
  const char *codes, *scales, *out;
};

/// Those of prepare_queries() and finish_outputs().
inline constexpr RotationNames kOwnRotation = {"positions", "table"};
/// Those of a decode call or a sparse prefill.
inline constexpr RotationNames kQueryRotation = {"q_rotate.positions", "q_rotate.table"};
inline constexpr RotationNames kOutputRotation = {"out_rotate.positions", "out_rotate.table"};

/// The epsilon of a norm; 0: none.
Status expect_epsilon(const char* name, float epsilon);

/// The table of a rotation, which is there.
Status expect_table(const char* name, const ConstTensorView& table, Device device);

/// A rotation, if there is one, of the last columns of `rows`, (tokens, heads, d) or (batch, s_q, heads, d),
/// by their name `of`.
Status expect_rotation(const Rotation& rotate, const RotationNames& names, const char* of,
                       const ConstTensorView& rows, Device device);

/// Does the table have the positions of `rows`? All are on the CPU, and the rotation fits the rows.
Status expect_positions(const Rotation& rotate, const RotationNames& names, const ConstTensorView& rows);

/// The FP8 output of `out`, of which only the shape is read.
Status expect_fp8_output(const Fp8Output& fp8, const Fp8Names& names, const ConstTensorView& out,
                         Device device);

/// The edge of a query, (tokens, heads, d) or (batch, s_q, heads, d), whose parts fit each other.
Status expect_query_edge(const ConstTensorView& q, const ConstTensorView& q_rope, float norm,
                         const Rotation& rotate, Device device);

/// The edge of an output, of which only the shape is read, if the options say that there is one.
Status expect_output_edge(bool out_edge, const ConstTensorView& out, const Rotation& rotate,
                          const Fp8Output& fp8, Device device);

/// The edges of a decode call, of whose other inputs the shapes fit the problem.
Status validate_query_edge(const DecodeProblem& problem, const DecodeInputs& inputs, Device device);
Status validate_output_edge(const DecodeProblem& problem, const DecodeInputs& inputs,
                            const DecodeOutputs& outputs, Device device);

/// The shape of a call's output: contiguous, without data.
TensorView output_shape(const DecodeProblem& problem, const DecodeInputs& inputs, Device device);

}  // namespace flashlatent
