// What combine steps do (combine/combine.cu, merge_step.cuh): rows of a plan's merges, by a warp or by the
// warps of a CTA. The order of a row's sums depends on shapes and the plan alone, never on who adds.
#pragma once

#include "cuda/parts/merge.cuh"

namespace flashlatent::parts {

/// Of a row, what the lanes of a warp read at once.
template <class Stored>
inline constexpr int kUnitColumns = 32 * kPieceValues<Stored>;

template <class Stored>
__device__ __forceinline__ RowParts<Stored> parts_of(const DecodeArguments& args,
                                                     const schedule::Merge& merge, int lane, int row,
                                                     int v_dim) {
  const schedule::Geometry& g = args.geometry;
  const std::int64_t slot_rows = static_cast<std::int64_t>(g.lanes) * g.tile_rows;
  const std::int64_t first = merge.slot_begin * slot_rows + lane * g.tile_rows + row;
  const PartialArguments& partial = args.partial;
  return {partial_out<Stored>(partial) + first * v_dim,
          partial.lse + first,
          partial.units + first,
          slot_rows * v_dim,
          slot_rows,
          merge.slot_end - merge.slot_begin};
}

/// The sums of a lane's piece, which is stored at `column`. All lanes of a warp.
template <class Element, class Stored>
__device__ __forceinline__ void write_merged(const DecodeArguments& args, const RowTile& tile, int row,
                                             int column, const float4 (&sums)[kPieceFours<Stored>],
                                             const RowWeights& weights) {
  const OutputArguments& output = args.output;
  const int token = tile.token(args.query, row);
  const int head = tile.head(args.query, row);
  float factor = weights.factor;
  if (output.sink != nullptr) factor *= sink_factor(weights.lse, __ldg(output.sink + head));
  Element* out = static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                 token * output.token_stride + head * output.head_stride + column;
  constexpr int kWords = 2 * kPieceFours<Stored>;
  std::uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; i += 2) {
    const float4 four = sums[i / 2];
    words[i] = pack<Element>(four.x * factor, four.y * factor);
    words[i + 1] = pack<Element>(four.z * factor, four.w * factor);
  }
  if constexpr (std::is_same_v<Stored, float>) {
    reinterpret_cast<std::uint32_t*>(out)[0] = words[0];
    reinterpret_cast<std::uint32_t*>(out)[1] = words[1];
  } else {
    out -= column % 32;  // a quad's packets are its 32 columns, in the order of fragments
    store_words(out, words, true, is_aligned(out));
  }
  if (column == 0) write_lse(output, tile, head, token, weights.lse);
}

/// What a warp has of one of kUnits units.
template <int kFours, int kAll>
__device__ __forceinline__ void copy_fours(float4 (&to)[kFours], const float4 (&all)[kAll], int unit) {
#pragma unroll
  for (int k = 0; k < kFours; ++k) to[k] = all[unit * kFours + k];
}

/// kUnits units of a row by one warp, kAtOnce parts in one trip to memory.
template <class Element, int kUnits, int kAtOnce, class Stored>
__device__ __forceinline__ void merge_by_warp(const DecodeArguments& args, const RowTile& tile, int row,
                                              int first_column, const RowParts<Stored>& parts, int v_dim) {
  constexpr int kApart = kUnitColumns<Stored>;
  const int lane_column = first_column + threadIdx.x % 32 * kPieceValues<Stored>;
  const auto merged = merge_parts<kUnits, kApart, kAtOnce>(parts, lane_column, v_dim, 0, 1);
  const RowWeights weights = finish_weights(finite_or_zero(merged.base), merged.sum);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int column = lane_column + i * kApart;
    float4 sums[kPieceFours<Stored>];
    copy_fours(sums, merged.out, i);
    if (column < v_dim) write_merged<Element, Stored>(args, tile, row, column, sums, weights);
  }
}

/// What the warps of a CTA have merged.
template <int kWarps, int kUnits, class Stored>
using WarpMerges = MergedParts<kUnits * kPieceFours<Stored>>[kWarps][32];

/// kUnits units of a row by kSharers warps side by side, each a share of the parts; a row of its own for each
/// of these groups, or one of no parts. `meet`: all warps.
template <class Element, int kSharers, int kUnits, int kAtOnce, class Stored, class Merges, class Meet>
__device__ __forceinline__ void merge_by_sharers(const DecodeArguments& args, const RowTile& tile, int row,
                                                 int first_column, const RowParts<Stored>& parts, int v_dim,
                                                 Merges& merges, Meet meet) {
  constexpr int kFours = kPieceFours<Stored>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int share = kSharers == std::extent_v<Merges> ? warp : warp % kSharers;
  const int lane_column = first_column + lane * kPieceValues<Stored>;
  merges[warp][lane] =
      merge_parts<kUnits, kUnitColumns<Stored>, kAtOnce>(parts, lane_column, v_dim, share, kSharers);
  meet();
  if (share < kUnits && parts.count > 0) {  // who adds up a unit
    const int first = warp - share;
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kSharers; ++i) max = fmaxf(max, merges[first + i][lane].base);
    const float base = finite_or_zero(max);
    float4 sums[kFours] = {};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSharers; ++i) {
      const auto& merged = merges[first + i][lane];
      const float weight = exp2_fast((merged.base - base) * kLog2E);
      sum += weight * merged.sum;
#pragma unroll
      for (int k = 0; k < kFours; ++k) add_weighted(sums[k], weight, merged.out[share * kFours + k]);
    }
    const int column = lane_column + share * kUnitColumns<Stored>;
    if (column < v_dim)
      write_merged<Element, Stored>(args, tile, row, column, sums, finish_weights(base, sum));
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
