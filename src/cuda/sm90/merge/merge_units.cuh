// The work of combine steps (ops/combine.cu, merge_step.cuh): rows of a plan's merges, by one warp or by the
// warps of a CTA. The order of a row's sums depends on shapes and the plan alone, not on which warp or CTA
// adds.
#pragma once

#include "cuda/sm90/merge/merge.cuh"

namespace flashlatent::sm90 {

/// Columns of a row that the lanes of a warp load at once.
template <class Stored>
inline constexpr int kUnitColumns = 32 * kPieceValues<Stored>;

/// A row to be merged: its parts, and where the result goes. Both follow from shapes and the plan alone, so
/// they can be found before there are any results.
template <class Element, class Stored>
struct MergedRow {
  PlannedParts<Stored> parts;  // no parts if the tile has no such row
  Element* out;
  float* lse;
  const float* sink;  // the head's, or null
  float empty_lse;

  __device__ __forceinline__ static MergedRow find(const DecodeArguments& args, const schedule::Merge& merge,
                                                   const RowTile& tile, int lane, int row, int v_dim) {
    const schedule::Geometry& g = args.geometry;
    const int slot_rows = g.lanes * g.tile_rows;
    const std::int64_t first =
        static_cast<std::int64_t>(merge.partial_begin) * slot_rows + lane * g.tile_rows + row;
    const PartialArguments& partial = args.partial;
    const OutputArguments& output = args.output;
    const int token = tile.token(args.query, row), head = tile.head(args.query, row);
    return {{partial_out<Stored>(partial) + first * v_dim, partial.lse + first, partial.units + first,
             slot_rows * v_dim, slot_rows, row < tile.rows ? merge.partial_end - merge.partial_begin : 0},
            output_row<Element>(output, tile, head, token),
            lse_place(output, tile, head, token),
            output.sink == nullptr ? nullptr : output.sink + head,
            output.empty_lse};
  }

  /// The factor for the row's sums, with the sink.
  __device__ __forceinline__ float factor(const RowWeights& weights) const {
    return sink == nullptr ? weights.factor : weights.factor * sink_factor(weights.lse, __ldg(sink));
  }
  __device__ __forceinline__ void write_lse(const RowWeights& weights) const {
    *lse = final_lse(empty_lse, weights.lse);
  }
};

/// Stores the sums of a lane's piece at `column`. Called by all lanes of a warp.
template <class Element, class Stored>
__device__ __forceinline__ void write_piece(Element* row, int column,
                                            const float4 (&sums)[kPieceFours<Stored>], float factor) {
  Element* out = row + column;
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
}

/// Merges kUnits units of a row by one warp, kAtOnce parts in flight together.
template <int kUnits, int kAtOnce, class Element, class Stored>
__device__ __forceinline__ void merge_by_warp(const MergedRow<Element, Stored>& row, int first_column,
                                              int v_dim) {
  constexpr int kApart = kUnitColumns<Stored>, kFours = kPieceFours<Stored>;
  const int lane_column = first_column + threadIdx.x % 32 * kPieceValues<Stored>;
  const auto merged = merge_parts<kUnits, kApart, kAtOnce>(row.parts, lane_column, v_dim, 0, 1);
  const RowWeights weights = finish_weights(finite_or_zero(merged.base), merged.sum);
  const float factor = row.factor(weights);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int column = lane_column + i * kApart;
    float4 sums[kFours];
#pragma unroll
    for (int k = 0; k < kFours; ++k) sums[k] = merged.out[i * kFours + k];
    if (column < v_dim) write_piece<Element, Stored>(row.out, column, sums, factor);
  }
  if (lane_column == 0) row.write_lse(weights);
}

/// The sums of a CTA's warps, in shared memory.
template <int kWarps, int kUnits, class Stored>
struct WarpMerges {
  static constexpr int kFours = kPieceFours<Stored>;
  float4 out[kWarps][kUnits][32][kFours];
  float base[kWarps], sum[kWarps];

  __device__ __forceinline__ void put(const MergedParts<kUnits * kFours>& merged) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kUnits * kFours; ++i) out[warp][i / kFours][lane][i % kFours] = merged.out[i];
    if (lane > 0) return;
    base[warp] = merged.base;
    sum[warp] = merged.sum;
  }
  /// Two columns of a unit.
  __device__ __forceinline__ float2 word(int warp, int unit, WordPlace at) const {
    return *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(out[warp][unit][at.lane]) +
                                            at.value);
  }
};

/// Merges kUnits units of rows by groups of kSharers warps: each group has one row (or none), and its warps
/// first divide the parts, then the columns. `meet`: called by all warps.
template <int kSharers, int kAtOnce, class Element, class Stored, int kWarps, int kUnits, class Meet>
__device__ __forceinline__ void merge_by_sharers(const MergedRow<Element, Stored>& row, int first_column,
                                                 int v_dim, WarpMerges<kWarps, kUnits, Stored>& merges,
                                                 Meet meet) {
  constexpr int kApart = kUnitColumns<Stored>, kWords = kApart / 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int share = kSharers == kWarps ? warp : warp % kSharers;
  merges.put(merge_parts<kUnits, kApart, kAtOnce>(row.parts, first_column + lane * kPieceValues<Stored>,
                                                  v_dim, share, kSharers));
  meet();
  if (row.parts.count > 0) {
    const int first = warp - share;
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kSharers; ++i) max = fmaxf(max, merges.base[first + i]);
    const float base = finite_or_zero(max);
    float shares[kSharers], sum = 0;
#pragma unroll
    for (int i = 0; i < kSharers; ++i) {
      shares[i] = exp2_fast((merges.base[first + i] - base) * kLog2E);
      sum += shares[i] * merges.sum[first + i];
    }
    const RowWeights weights = finish_weights(base, sum);
    const float factor = row.factor(weights);
    constexpr int kThreads = kSharers * 32, kAll = kUnits * kWords;
    static_assert(kAll < kThreads || kAll % kThreads == 0);
#pragma unroll
    for (int begin = 0; begin < kAll; begin += kThreads) {
      const int word = begin + share * 32 + lane;
      if (kAll < kThreads && word >= kAll) break;
      const WordPlace at = place_of_word<Stored>(word % kWords);
      float2 sums = {0, 0};
#pragma unroll
      for (int i = 0; i < kSharers; ++i) {
        const float2 x = merges.word(first + i, word / kWords, at);
        sums = {fmaf(shares[i], x.x, sums.x), fmaf(shares[i], x.y, sums.y)};
      }
      const int column = first_column + 2 * word;
      if (column < v_dim) {
        *reinterpret_cast<std::uint32_t*>(row.out + column) = pack<Element>(sums.x * factor, sums.y * factor);
      }
    }
    if (first_column == 0 && share == 0 && lane == 0) row.write_lse(weights);
  }
  meet();
}

/// CTAs merge rows of this many parts or more, if others have fewer: a warp loads four parts at a time, and
/// one long request among short ones has 120 (some 30 trips to memory). If all rows have equally many parts,
/// warps merge them: calls of 4 requests of 128 heads, 33 parts each, take 0.027 ms by warps and 0.042 by
/// CTAs.
inline constexpr int kManyParts = 16;

/// A plan's merges of many parts. There are few: a part leaves at most two partial results.
template <int kWarps>
struct LongMerges {
  static constexpr int kMost = 256;
  int count;
  int merges[kMost];
  int found[kWarps];  // by each warp

  __device__ __forceinline__ static bool is_long(const schedule::Geometry& g, const schedule::Merge& merge) {
    const int usual = g.parts / max(g.requests, 1);
    return merge.partial_end - merge.partial_begin > max(kManyParts, 4 * usual);
  }
  /// Called by all threads of kWarps warps. Lists them in the plan's order; CTAs divide them by their places
  /// in the list.
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
  /// If there were too many to list, warps merge them.
  __device__ __forceinline__ bool listed() const { return count <= kMost; }
};

}  // namespace flashlatent::sm90
