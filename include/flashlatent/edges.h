// The edges of an attention layer (DeepSeek V4 and V4.1, whose values carry RoPE): queries are normalised and
// rotated before attention, outputs are rotated back and cast to FP8 after it; append_latent() and
// append_index_keys() normalise and rotate new tokens before they store them. All is enqueued on the
// executor's stream; no device memory is allocated.
#pragma once

#include <cstdint>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Which two columns of a head a rotary embedding (RoFormer, arXiv 2104.09864) turns together.
enum class RotaryPairs : std::uint8_t {
  kNeighbours,  ///< 2 i and 2 i + 1 (GPT-J).
  kHalves,      ///< i and i + columns / 2 (NeoX).
};

/// How a row of the table holds cosines and sines of its position's columns / 2 angles.
enum class RotaryTable : std::uint8_t {
  kHalves,       ///< All cosines, then all sines (vLLM).
  kInterleaved,  ///< Cosine and sine of each angle, one after the other (SGLang).
};

/// A rotation of the last table.shape[1] columns of each head: (x, y) becomes (x cos - y sin, y cos + x sin),
/// in fp32. Absent positions: nothing is rotated.
struct Rotation {
  ConstTensorView positions;  ///< int32 or int64, a position a token.
  /// fp32 or bf16 (positions, columns), columns a multiple of 16. A position outside of the table is refused
  /// on the CPU; on CUDA the columns become NaN, and nothing is read.
  ConstTensorView table;
  RotaryPairs pairs = RotaryPairs::kNeighbours;
  RotaryTable layout = RotaryTable::kHalves;

  bool present() const { return positions.present() || table.present(); }
};

/// Which columns a rotation turns, as many as its table has.
enum class RotaryColumns : std::uint8_t { kLast, kFirst };

/// A norm in fp32 over a token's columns: with epsilon above 0 x / sqrt(mean(x^2) + epsilon) * weight (RMS
/// norm); with `bias` (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * weight + bias (LayerNorm).
struct TokenNorm {
  float epsilon = 0;       ///< 0: no norm.
  ConstTensorView weight;  ///< fp32, bf16 or fp16 (columns), optional.
  ConstTensorView bias;    ///< The same.

  bool present() const { return epsilon != 0 || weight.present() || bias.present(); }
};

/// Where a new token is rounded to 16 bits before it is stored: to its own dtype, or to bf16 if it is fp32.
enum class TokenRounding : std::uint8_t {
  /// As vLLM does. mxfp8_528, nvfp4_288, fp8_528: after the norm. Other formats and index keys: before
  /// quantised elements are quantised, and for tokens of 16 bits after the norm, too.
  kEngine,
  kOnce,  ///< Nowhere: fp32 up to what is stored.
};

/// What is done to new tokens before they are stored: norm, then rotation.
struct TokenEdges {
  TokenNorm norm;
  /// positions (n). With positions and without a table nothing is rotated, and `ratio` counts by them.
  Rotation rotate;
  RotaryColumns columns = RotaryColumns::kLast;  ///< Latents rotate their last columns.
  /// Above 1: one token is stored for every `ratio` positions, the one with (position + 1) % ratio = 0. It is
  /// rotated by the first of these positions, position + 1 - ratio. Other tokens, and tokens of negative
  /// positions, are skipped.
  std::int64_t ratio = 1;
  TokenRounding rounding = TokenRounding::kEngine;

  bool present() const { return norm.present() || rotate.present() || ratio != 1; }
};

/// Normalises and rotates queries, in fp32 with one rounding at the end.
///   q        bf16 or fp16 (tokens, h_q, d) or (batch, s_q, h_q, d); d a multiple of 8 up to 1,024
///   norm     epsilon of an RMS norm over each head, x / sqrt(mean(x^2) + epsilon), without a weight; 0: none
///   rotate   positions (tokens) or (batch, s_q)
///   out      as q; may be q itself, otherwise they do not overlap
/// The innermost stride is 1; other strides are free. Errors: kInvalidArgument (by name), kUnavailable,
/// kInternal (a launch failed).
Status prepare_queries(const ConstTensorView& q, float norm, const Rotation& rotate, const TensorView& out,
                       const Executor& executor);

/// The order of a group's columns in an FP8 output.
enum class OutputColumns : std::uint8_t {
  kHeads,  ///< Head by head.
  kTiles,  ///< The first 32 columns of each head, then the next 32 of each (FlashMLA's fused calls).
};

/// An output in FP8, in the layout that DeepGEMM's grouped product on Hopper takes. Heads form `groups`
/// consecutive runs, the groups of the projection behind attention.
struct Fp8Output {
  /// uint8 (tokens, groups, h_q / groups * v_dim), e4m3; any strides but the innermost. Engines keep (groups,
  /// tokens, ...) in memory and pass its transposed view. Absent: no FP8 output.
  TensorView codes;
  /// (groups, h_q / groups * v_dim / 128, padded tokens), contiguous; padded tokens: `tokens` rounded up to a
  /// multiple of 4, and what is behind them becomes 0. fp32: a scale for 128 columns. int32: four ue8m0
  /// bytes (2^(byte - 127)), the first in the low byte, each for 32 columns.
  TensorView scales;
  OutputColumns columns = OutputColumns::kHeads;  ///< kTiles needs int32 scales.

  bool present() const { return codes.present() || scales.present(); }
};

/// Rotates outputs back, by the negative angles, in fp32.
///   out      bf16 or fp16 (tokens, h_q, v_dim) or (batch, s_q, h_q, v_dim); v_dim a multiple of 8 up to
///            1,024; with `fp8` a multiple of 128
///   rotate   positions (tokens) or (batch, s_q); absent: outputs are cast as they are
///   rotated  as out, and may be out itself; absent: not written
///   fp8      of unrounded rotated values: a scale is 2^ceil(log2(max(amax, 1e-10) / 448)), where amax is the
///            largest magnitude of its finite values; codes are rounded to the nearest e4m3, ties to even,
///            and NaN and infinity become NaN
/// Errors: those of prepare_queries().
Status finish_outputs(const ConstTensorView& out, const Rotation& rotate, const TensorView& rotated,
                      const Fp8Output& fp8, const Executor& executor);

}  // namespace flashlatent
