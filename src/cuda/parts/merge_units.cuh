// What combine steps do (combine/combine.cu, merge_step.cuh): rows of a plan's merges, by a warp or by the
// warps of a CTA. The order of a row's sums depends on shapes and the plan alone, never on who adds.
#pragma once

#include "cuda/parts/merge.cuh"

namespace flashlatent::parts {

inline constexpr int kUnitColumns = 128;  // four a lane

__device__ __forceinline__ RowParts parts_of(const DecodeArguments& args, const schedule::Merge& merge,
                                             int lane, int row, int v_dim) {
  const schedule::Geometry& g = args.geometry;
  const std::int64_t slot_rows = static_cast<std::int64_t>(g.lanes) * g.tile_rows;
  const std::int64_t first = merge.slot_begin * slot_rows + lane * g.tile_rows + row;
  return {args.partial.out + first * v_dim, args.partial.lse + first, slot_rows * v_dim, slot_rows,
          merge.slot_end - merge.slot_begin};
}

template <class Element>
__device__ __forceinline__ void write_merged(const DecodeArguments& args, const RowTile& tile, int row,
                                             int column, float4 sum, const RowWeights& weights) {
  const OutputArguments& output = args.output;
  const int token = tile.token(args.query, row);
  const int head = tile.head(args.query, row);
  float factor = weights.factor;
  if (output.sink != nullptr) factor *= sink_factor(weights.lse, __ldg(output.sink + head));
  auto* out =
      reinterpret_cast<std::uint32_t*>(static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                                       token * output.token_stride + head * output.head_stride + column);
  out[0] = pack<Element>(sum.x * factor, sum.y * factor);
  out[1] = pack<Element>(sum.z * factor, sum.w * factor);
  if (column == 0) write_lse(output, tile, head, token, weights.lse);
}

/// kUnits times 128 columns of a row by one warp, kAtOnce parts in one trip to memory.
template <class Element, int kUnits, int kAtOnce>
__device__ __forceinline__ void merge_by_warp(const DecodeArguments& args, const RowTile& tile, int row,
                                              int first_column, const RowParts& parts, int v_dim) {
  const int lane_column = first_column + threadIdx.x % 32 * 4;
  const auto merged = merge_parts<kUnits, kUnitColumns, kAtOnce>(parts, lane_column, v_dim, 0, 1);
  const RowWeights weights = finish_weights(finite_or_zero(merged.base), merged.sum);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int column = lane_column + i * kUnitColumns;
    if (column < v_dim) write_merged<Element>(args, tile, row, column, merged.out[i], weights);
  }
}

/// What the warps of a CTA have merged of one row.
template <int kWarps, int kUnits>
using WarpMerges = MergedParts<kUnits>[kWarps][32];

/// kUnits times 128 columns of a row by kWarps warps, who share the parts. `meet`: all of them.
template <class Element, int kWarps, int kUnits, int kAtOnce, class Meet>
__device__ __forceinline__ void merge_by_cta(const DecodeArguments& args, const RowTile& tile, int row,
                                             int first_column, const RowParts& parts, int v_dim,
                                             WarpMerges<kWarps, kUnits>& merges, Meet meet) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  merges[warp][lane] =
      merge_parts<kUnits, kUnitColumns, kAtOnce>(parts, first_column + lane * 4, v_dim, warp, kWarps);
  meet();
  if (warp < kUnits) {
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) max = fmaxf(max, merges[i][lane].base);
    const float base = finite_or_zero(max);
    float4 out = make_float4(0, 0, 0, 0);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const MergedParts<kUnits>& merged = merges[i][lane];
      const float weight = exp2_fast((merged.base - base) * kLog2E);
      sum += weight * merged.sum;
      add_weighted(out, weight, merged.out[warp]);
    }
    const int column = first_column + warp * kUnitColumns + lane * 4;
    if (column < v_dim) write_merged<Element>(args, tile, row, column, out, finish_weights(base, sum));
  }
  meet();
}

/// Rows of many more parts than others are merged by CTAs: a warp adds four parts in a trip to memory, and
/// one long request among short ones has 120 of them (some 30 trips). Where all have as many, warps do it:
/// calls of 4 requests of 128 heads, 33 parts each, took 0.027 ms before CTAs did any and 0.042 with them.
inline constexpr int kManyParts = 16;

/// Those merges of a plan. No more than two slots come of a part, so that there are few.
template <int kWarps>
struct LongMerges {
  static constexpr int kMost = 256;
  int count;
  int merges[kMost];
  int found[kWarps];  // by each warp

  __device__ __forceinline__ static bool is_long(const schedule::Geometry& g, const schedule::Merge& merge) {
    const int usual = g.parts / max(g.requests, 1);
    return merge.slot_end - merge.slot_begin > max(kManyParts, 4 * usual);
  }
  /// By all threads of kWarps warps. In the plan's order: CTAs share them out by their places here.
  template <class Meet>
  __device__ __forceinline__ void find(const DecodeArguments& args, Meet meet) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int before = 0;
    for (int begin = 0; begin < args.plan_header->merges; begin += kWarps * 32) {
      const int i = begin + static_cast<int>(threadIdx.x);
      const bool mine = i < args.plan_header->merges && is_long(args.geometry, args.merges[i]);
      const std::uint32_t lanes = __ballot_sync(0xffffffff, mine);
      if (lane == 0) found[warp] = __popc(lanes);
      meet();
      int place = before + __popc(lanes & ((1U << lane) - 1));
      for (int other = 0; other < kWarps; ++other) {
        if (other < warp) place += found[other];
        before += found[other];
      }
      if (mine && place < kMost) merges[place] = i;
      meet();
    }
    if (threadIdx.x == 0) count = before;
    meet();
  }
  /// Were there too many to be listed? Then warps merge them.
  __device__ __forceinline__ bool listed() const { return count <= kMost; }
};

}  // namespace flashlatent::parts
