// Merges the results of shared prefixes with those of requests' own tokens.
#pragma once

#include "cuda/sm90/kernels/gqa_16/given.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/walk/segments.cuh"

namespace flashlatent::gqa_16 {

/// The place of a row's result that is not final: its segment's place among the partial results, or, if the
/// segment has none, the place where it is kept for the prefix.
template <class Config>
__device__ __forceinline__ PartialRows partial_row(const Arguments& args, const schedule::Segment& segment,
                                                   const sm90::RowTile& tile, int lane, int row) {
  const sm90::DecodeArguments& decode = args.decode;
  if (segment.partial >= 0) {
    const std::int64_t slot = static_cast<std::int64_t>(segment.partial) * decode.geometry.lanes + lane;
    const std::int64_t at = slot * Config::kColumns + row;
    return {decode.partial.out + at * args.dim, decode.partial.lse + at};
  }
  const std::int64_t at = (static_cast<std::int64_t>(tile.request) * args.prefix.kv_heads + tile.kv_head) *
                              args.prefix.request_rows +
                          tile.first + row;
  return {args.prefix.kept.out + at * args.dim, args.prefix.kept.lse + at};
}

/// A segment whose result is kept, and its prefix.
struct KeptSegment {
  schedule::Segment segment;
  prefix::Share share;
};
inline constexpr int kMostKept = 16;  // at a time

/// Four elements of a row, relative to `base`, an lse. sum = 0: there is nothing.
struct RowPiece {
  float base, sum;
  float4 values;
};

/// Loads in flight together, as many as registers allow.
template <class Config>
inline constexpr int kPiecesAtOnce = Config::kColumns == 8 ? 8 : 4;

/// Adds four elements of a row from `count` partial results, in order, `stride` rows apart. The code is kept
/// short: it runs once or twice, and instructions are loaded from memory, too.
template <int kAtOnce>
__device__ __forceinline__ RowPiece add_pieces(RowPiece all, const PartialRows& first, std::int64_t stride,
                                               int count, int dim, int column) {
  for (int begin = 0; begin < count; begin += kAtOnce) {
    float lse[kAtOnce];
    float4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      lse[i] = -INFINITY;
      if (begin + i >= count) continue;
      const std::int64_t row = (begin + i) * stride;
      lse[i] = __ldcg(first.lse + row);
      values[i] = __ldcg(reinterpret_cast<const float4*>(first.out + row * dim + column));
    }
    float max = all.sum == 0 ? -INFINITY : all.base;
#pragma unroll
    for (float x : lse) max = fmaxf(max, x);
    const float base = sm90::finite_or_zero(max);
    const RowPiece before = all;
    all = {base, 0, make_float4(0, 0, 0, 0)};
    auto add = [&](float weight, float sum, const float4& x) {
      if (weight == 0) return;  // counts for nothing, whatever it holds
      all.sum += weight * sum;
      all.values.x += weight * x.x;
      all.values.y += weight * x.y;
      all.values.z += weight * x.z;
      all.values.w += weight * x.w;
    };
    add(before.sum == 0 ? 0 : sm90::exp2_fast((before.base - base) * sm90::kLog2E), before.sum,
        before.values);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      add(sm90::exp2_fast((lse[i] - base) * sm90::kLog2E), 1, values[i]);
    }
  }
  return all;
}

__device__ __forceinline__ RowPiece load_piece(const PartialRows& row, int column) {
  const float lse = *row.lse;
  return {lse, lse == -INFINITY ? 0.0F : 1.0F, *reinterpret_cast<const float4*>(row.out + column)};
}

/// Writes four elements of a finished row to the segment's place among the partial results, or to the output;
/// writes and returns the lse.
template <class Config>
__device__ __forceinline__ float write_piece(const Arguments& args, const KeptSegment& kept,
                                             const sm90::RowTile& tile, int lane, int row, int column,
                                             const RowPiece& piece) {
  float factor = piece.sum == 0 ? 0 : 1 / piece.sum;
  const float lse = piece.sum == 0 ? -INFINITY : piece.base + logf(piece.sum);
  const float4& x = piece.values;
  if (kept.segment.partial >= 0) {
    const PartialRows to = partial_row<Config>(args, kept.segment, tile, lane, row);
    *reinterpret_cast<float4*>(to.out + column) =
        make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    return lse;
  }
  const sm90::OutputArguments& output = args.decode.output;
  const int token = tile.token(args.decode.query, row), head = tile.head(args.decode.query, row);
  if (output.sink != nullptr) factor *= sm90::sink_factor(lse, __ldg(output.sink + head));
  auto* out = reinterpret_cast<std::uint32_t*>(
      static_cast<GivenBits*>(output.out) + tile.origin * output.batch_stride + token * output.token_stride +
      head * output.head_stride + column);
  out[0] = pack_given<Config>(args, x.x * factor, x.y * factor);
  out[1] = pack_given<Config>(args, x.z * factor, x.w * factor);
  return lse;
}

/// Call once prefixes are computed: adds their results to the rows of a segment, in the order of splits. This
/// warp is number `turn` of `turns` warps that take the rows of `tile` round-robin.
template <class Config>
__device__ __forceinline__ void add_prefix(const Arguments& args, const KeptSegment& kept,
                                           const sm90::RowTile& tile, int lane, int turn, int turns) {
  const prefix::Share& share = kept.share;
  const std::int64_t first =
      share.row_begin + static_cast<std::int64_t>(tile.kv_head) * share.splits * share.unit_rows + tile.first;
  for (int row = turn; row < tile.rows; row += turns) {
    const PartialRows own = partial_row<Config>(args, kept.segment, tile, lane, row);
    const PartialRows shared{args.prefix.results.out + (first + row) * args.dim,
                             args.prefix.results.lse + first + row};
    float lse = 0;
    for (int column = threadIdx.x % 32 * 4; column < args.dim; column += 128) {
      const RowPiece sum = add_pieces<kPiecesAtOnce<Config>>(load_piece(own, column), shared, share.unit_rows,
                                                             share.splits, args.dim, column);
      lse = write_piece<Config>(args, kept, tile, lane, row, column, sum);
    }
    __syncwarp();  // all lanes have read the row's lse, which may be overwritten
    if (threadIdx.x % 32 > 0) continue;
    if (kept.segment.partial >= 0) {
      *own.lse = lse;
    } else {
      sm90::write_lse(args.decode.output, tile, tile.head(args.decode.query, row),
                      tile.token(args.decode.query, row), lse);
    }
  }
}

}  // namespace flashlatent::gqa_16
