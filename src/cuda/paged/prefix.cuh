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

/// Four elements of a row and its lse.
struct RowPiece {
  float lse;
  float4 values;
};

__device__ __forceinline__ RowPiece load_piece(const PartialRows& rows, std::int64_t row, int dim,
                                               int column) {
  return {rows.lse[row], *reinterpret_cast<const float4*>(rows.out + row * dim + column)};
}

/// A row's own result and those of its prefix, in the order of splits. Loads go out together.
__device__ __forceinline__ RowPiece merge_prefix(const Arguments& args, const prefix::Share& share,
                                                 const parts::RowTile& tile, int row, int column,
                                                 const RowPiece& own) {
  constexpr int kAtOnce = 8;
  const std::int64_t first = share.row_begin +
                             static_cast<std::int64_t>(tile.kv_head) * share.splits * share.unit_rows +
                             tile.first + row;
  float base = own.lse, sum = own.lse == -INFINITY ? 0 : 1;
  float4 values = own.values;
  for (int split = 0; split < share.splits; split += kAtOnce) {
    RowPiece pieces[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      pieces[i] = {-INFINITY, make_float4(0, 0, 0, 0)};
      if (split + i >= share.splits) continue;
      pieces[i] =
          load_piece(args.prefix.results, first + static_cast<std::int64_t>(split + i) * share.unit_rows,
                     args.dim, column);
    }
    float max = base;
#pragma unroll
    for (const RowPiece& piece : pieces) max = fmaxf(max, piece.lse);
    auto weight_of = [&](float lse) {
      return parts::exp2_fast((lse - parts::finite_or_zero(max)) * parts::kLog2E);
    };
    auto add = [&](float weight, const float4& from, float4& to) {
      if (weight == 0.0F) return;  // whatever it holds
      to.x += weight * from.x;
      to.y += weight * from.y;
      to.z += weight * from.z;
      to.w += weight * from.w;
    };
    const float shrink = weight_of(base);
    float4 merged = make_float4(0, 0, 0, 0);
    add(shrink, values, merged);
    sum *= shrink;
#pragma unroll
    for (const RowPiece& piece : pieces) {
      const float weight = weight_of(piece.lse);
      sum += weight;
      add(weight, piece.values, merged);
    }
    values = merged;
    base = max;
  }
  if (sum == 0.0F) return {-INFINITY, make_float4(0, 0, 0, 0)};
  const float factor = 1.0F / sum;
  return {base + logf(sum),
          make_float4(values.x * factor, values.y * factor, values.z * factor, values.w * factor)};
}

/// Once prefixes are done: the segments of this CTA that were kept for them, of the tile of this warp, which
/// is number `turn` of `turns` that take its rows in turn.
template <class Config>
__device__ __forceinline__ void add_prefixes(const Arguments& args, const parts::PartPlace<>& place,
                                             int of_lane, int turn, int turns) {
  using Element = typename Config::Element;
  const int lane = threadIdx.x % 32;
  parts::Segments<> segments(args.decode, place);
  schedule::Segment segment;
  for (int rows = 0; segments.next(segment);) {
    if (segment.block_begin > 0) continue;
    const prefix::Share share = args.prefix.shares[segment.request];
    if (share.splits == 0) continue;
    const parts::RowTile tile = tile_at(args, segment, place.lane() + of_lane);
    for (int row = 0; row < tile.rows; ++row) {
      if (rows++ % turns != turn) continue;
      const PartialRows own = partial_row<Config>(args, segment, tile, place.lane() + of_lane, row);
      const parts::OutputArguments& output = args.decode.output;
      const int token = token_of(args, tile, row), head = head_of(args, tile, row);
      auto* out = static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                  token * output.token_stride + head * output.head_stride;
      RowPiece merged = {*own.lse, {}};
      const float own_lse = merged.lse;
      for (int column = lane * 4; column < args.dim; column += 128) {
        merged.values = *reinterpret_cast<const float4*>(own.out + column);
        merged = merge_prefix(args, share, tile, row, column, {own_lse, merged.values});
        if (segment.slot >= 0) {
          *reinterpret_cast<float4*>(own.out + column) = merged.values;
          continue;
        }
        const float factor =
            output.sink == nullptr ? 1.0F : parts::sink_factor(merged.lse, __ldg(output.sink + head));
        auto* words = reinterpret_cast<std::uint32_t*>(out + column);
        words[0] = parts::pack<Element>(merged.values.x * factor, merged.values.y * factor);
        words[1] = parts::pack<Element>(merged.values.z * factor, merged.values.w * factor);
      }
      __syncwarp();  // all have read the lse
      if (lane > 0) continue;
      if (segment.slot >= 0) {
        *own.lse = merged.lse;
      } else {
        parts::write_lse(output, tile, head, token, merged.lse);
      }
    }
  }
}

}  // namespace flashlatent::paged
