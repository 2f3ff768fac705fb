// What prefixes gave, merged with what requests have of their own.
#pragma once

#include "cuda/paged/arguments.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/segments.cuh"

namespace flashlatent::paged {

/// Where a row's result is that is not the final one: in its segment's slot, or, of a segment that has none,
/// kept for the prefix.
template <class Config>
__device__ __forceinline__ PartialRows partial_row(const Arguments& args, const schedule::Segment& segment,
                                                   const parts::RowTile& tile, int lane, int row) {
  const parts::DecodeArguments& decode = args.decode;
  if (segment.slot >= 0) {
    const std::int64_t slot = static_cast<std::int64_t>(segment.slot) * decode.geometry.lanes + lane;
    const std::int64_t at = slot * Config::kColumns + row;
    return {decode.partial.out + at * args.dim, decode.partial.lse + at};
  }
  const std::int64_t at = (static_cast<std::int64_t>(tile.request) * args.prefix.kv_heads + tile.kv_head) *
                              args.prefix.request_rows +
                          tile.first + row;
  return {args.prefix.kept.out + at * args.dim, args.prefix.kept.lse + at};
}

/// A segment whose result is kept, and the prefix that it is kept for.
struct KeptSegment {
  schedule::Segment segment;
  prefix::Share share;
};
inline constexpr int kMostKept = 16;  // at a time

/// Four elements of a row, normalised by `sum`, relative to `base`, an lse.
struct RowPiece {
  float base, sum;
  float4 values;
};

/// Both together. A piece of weight 0 counts for nothing, whatever it holds.
__device__ __forceinline__ void add_piece(RowPiece& to, const RowPiece& from) {
  const float base = fmaxf(to.base, from.base);
  auto weight_of = [&](float lse) {
    return parts::exp2_fast((lse - parts::finite_or_zero(base)) * parts::kLog2E);
  };
  const float kept = weight_of(to.base), added = weight_of(from.base);
  auto sum = [&](float a, float b) { return (kept == 0 ? 0 : kept * a) + (added == 0 ? 0 : added * b); };
  to.values = make_float4(sum(to.values.x, from.values.x), sum(to.values.y, from.values.y),
                          sum(to.values.z, from.values.z), sum(to.values.w, from.values.w));
  to.sum = sum(to.sum, from.sum);
  to.base = base;
}

__device__ __forceinline__ RowPiece load_piece(const PartialRows& rows, std::int64_t row, int dim,
                                               int column) {
  const float lse = rows.lse[row];
  return {lse, lse == -INFINITY ? 0.0F : 1.0F,
          *reinterpret_cast<const float4*>(rows.out + row * dim + column)};
}

/// Four elements of a finished row, to the segment's slot or to the output; and its lse, returned.
template <class Config>
__device__ __forceinline__ float write_piece(const Arguments& args, const KeptSegment& kept,
                                             const parts::RowTile& tile, int lane, int row, int column,
                                             const RowPiece& piece) {
  using Element = typename Config::Element;
  float factor = piece.sum == 0 ? 0 : 1 / piece.sum;
  const float lse = piece.sum == 0 ? -INFINITY : piece.base + logf(piece.sum);
  const float4& x = piece.values;
  if (kept.segment.slot >= 0) {
    const PartialRows to = partial_row<Config>(args, kept.segment, tile, lane, row);
    *reinterpret_cast<float4*>(to.out + column) =
        make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    return lse;
  }
  const parts::OutputArguments& output = args.decode.output;
  const int token = token_of(args, tile, row), head = head_of(args, tile, row);
  if (output.sink != nullptr) factor *= parts::sink_factor(lse, __ldg(output.sink + head));
  auto* out =
      reinterpret_cast<std::uint32_t*>(static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                                       token * output.token_stride + head * output.head_stride + column);
  out[0] = parts::pack<Element>(x.x * factor, x.y * factor);
  out[1] = parts::pack<Element>(x.z * factor, x.w * factor);
  return lse;
}

/// Once prefixes are done: what they gave to the rows of a segment, in the order of splits. This warp is
/// number `turn` of `turns` that take the rows of `tile` in turn, two at a time, whose loads go out together.
template <class Config>
__device__ __forceinline__ void add_prefix(const Arguments& args, const KeptSegment& kept,
                                           const parts::RowTile& tile, int lane, int turn, int turns) {
  constexpr int kRows = Config::kColumns == 8 ? 2 : 1, kAtOnce = 4;  // as registers allow
  const prefix::Share& share = kept.share;
  const std::int64_t first =
      share.row_begin + static_cast<std::int64_t>(tile.kv_head) * share.splits * share.unit_rows + tile.first;
  for (int begin = turn; begin < tile.rows; begin += kRows * turns) {
    float lse[kRows];
    for (int column = threadIdx.x % 32 * 4; column < args.dim; column += 128) {
      RowPiece rows[kRows];
      for (int split = 0; split < share.splits; split += kAtOnce) {
        RowPiece pieces[kRows][kAtOnce];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const int row = min(begin + i * turns, tile.rows - 1);
          if (split == 0) {
            rows[i] =
                load_piece(partial_row<Config>(args, kept.segment, tile, lane, row), 0, args.dim, column);
          }
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            pieces[i][j] = {-INFINITY, 0, make_float4(0, 0, 0, 0)};
            if (split + j >= share.splits) continue;
            const std::int64_t at = first + row + static_cast<std::int64_t>(split + j) * share.unit_rows;
            pieces[i][j] = load_piece(args.prefix.results, at, args.dim, column);
          }
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) add_piece(rows[i], pieces[i][j]);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = begin + i * turns;
        if (row < tile.rows) lse[i] = write_piece<Config>(args, kept, tile, lane, row, column, rows[i]);
      }
    }
    __syncwarp();  // all have read the lse of the row, which may be where it goes
    if (threadIdx.x % 32 > 0) continue;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = begin + i * turns;
      if (row >= tile.rows) continue;
      if (kept.segment.slot >= 0) {
        *partial_row<Config>(args, kept.segment, tile, lane, row).lse = lse[i];
      } else {
        parts::write_lse(args.decode.output, tile, head_of(args, tile, row), token_of(args, tile, row),
                         lse[i]);
      }
    }
  }
}

}  // namespace flashlatent::paged
