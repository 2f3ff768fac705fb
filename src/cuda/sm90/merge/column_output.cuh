// Writes O^T at a segment's end. A warpgroup has half of the output's columns (64 of each chunk) as rows of
// its accumulators; the tile's query rows are the accumulators' columns. A thread has two neighbouring output
// columns of each chunk, for two query rows in eight.
//
// `Threads` identifies the caller: thread() in the warpgroup, and column(), its first query row. Both are
// called repeatedly, because registers are short.
#pragma once

#include "cuda/sm90/math/column_exchange.cuh"
#include "cuda/sm90/merge/packed_row.cuh"
#include "cuda/sm90/merge/partial.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::sm90 {

/// The first row of a segment's partial result, counted in all partial rows.
template <int kRows>
__device__ __forceinline__ std::int64_t first_partial_row(const DecodeArguments& args, const Work& work) {
  return (static_cast<std::int64_t>(work.segment.partial) * args.geometry.lanes +
          args.lanes.remainder(blockIdx.x)) *
         kRows;
}

/// For each live row, calls put(place, chunk, x, y) with each chunk's two columns times the row's factor. As
/// many rows at once as registers allow.
template <class Threads, int kChunks, int kSums, class Place, class Factor, class Put>
__device__ __forceinline__ void put_rows(const float (&o)[kChunks][kSums], Place place, Factor factor,
                                         Put put) {
  constexpr int kCount = ColumnValues<2 * kSums>::kCount, kAtOnce = kCount < 4 ? kCount : 4;
#pragma unroll
  for (int first = 0; first < kCount; first += kAtOnce) {
    decltype(place(0)) to[kAtOnce];
    float factors[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int n = (first + k) / 2 * 8 + Threads::column() + k % 2;
      to[k] = place(n);
      factors[k] = factor(n);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const float* x = &o[chunk][(first + k) / 2 * 4 + k % 2];
        if (to[k] != nullptr) put(to[k], chunk, x[0] * factors[k], x[2] * factors[k]);
      }
    }
  }
}

/// Writes a warpgroup's half of a partial result as fp16 (partial.cuh).
template <class Threads, int kBarrier, int kChunks, int kSums>
class HalvesOfColumns {
  static constexpr int kRows = 2 * kSums, kVDim = 2 * 64 * kChunks;
  using Columns = ColumnValues<kRows>;
  using Accumulators = float[kChunks][kSums];

 public:
  /// Shared memory of both halves:
  using Bounds = float[2][4][kRows];  // bounds of a row's sums, by warp
  using Scales = float[2][kRows];     // factors by which they become fp16

  __device__ __forceinline__ HalvesOfColumns(const Accumulators& o, int half, Bounds& bounds, Scales& scales)
      : o_(o), half_(half), bounds_(bounds), scales_(scales) {}

  /// `factor`: the final factor of each row's sums. `last`: by how many words the place of a thread's columns
  /// in the last chunk differs from other chunks (word_of()).
  __device__ __forceinline__ void write(const PartialArguments& partial, std::int64_t first_row,
                                        const Work& work, const float (&factor)[kRows], int last = 0) const {
    put_bounds([](float x) { return fabsf(x); }, [](float a, float b) { return a + b; });
    meet();
    float bound_of_row = Threads::thread() < kRows ? bound(Threads::thread()) : 0.0F;
    // x * 0 + x is NaN for x that is not finite; fmaxf ignores NaN.
    if (ptx::named_any(kBarrier + half_, 128, !(bound_of_row < INFINITY))) {
      put_bounds([](float x) { return fabsf(fmaf(x, 0.0F, x)); },
                 [](float a, float b) { return fmaxf(a, b); });
      meet();
      if (!(bound_of_row < INFINITY)) bound_of_row = bound(Threads::thread());
    }
    if (Threads::thread() < kRows) {
      const int n = Threads::thread();
      const Fp16Scale fp16(bound_of_row);
      scales_[half_][n] = fp16.scale;
      if (n < work.tile.rows) partial_unit(partial, first_row + n, half_) = factor[n] * fp16.unit;
    }
    meet();
    const int word = word_of(Threads::thread() / 32, Threads::thread() % 32 / 4);
    auto* first = reinterpret_cast<std::uint32_t*>(packets_of(partial, first_row, kVDim, half_)) + word;
    put_rows<Threads>(
        o_, [&](int n) { return n < work.tile.rows ? first + n * (kVDim / 2) : nullptr; },
        [&](int n) { return scales_[half_][n]; },
        [&](std::uint32_t* out, int chunk, float a, float b) {
          out[chunk * 32 + (chunk == kChunks - 1 ? last : 0)] = pack<__half>(a, b);
        });
  }

  /// The word of a warp's pair of columns: columns c and c + 1 of a row are word c % 32 / 8 of packet
  /// c / 32 * 4 + c % 8 / 2.
  __device__ __forceinline__ static int word_of(int warp, int pair) {
    return (warp / 2 * 4 + pair % 4) * 4 + warp % 2 * 2 + pair / 4;
  }

 private:
  __device__ __forceinline__ void meet() const { ptx::named_sync(kBarrier + half_, 128); }

  /// Writes bounds of each row over this warpgroup's columns.
  template <class Value, class Combine>
  __device__ __forceinline__ void put_bounds(Value value, Combine combine) const {
    Columns bounds;
#pragma unroll
    for (int i = 0; i < Columns::kCount; ++i) {
      bounds[i] = 0;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const float* x = &o_[chunk][i / 2 * 4 + i % 2];
        bounds[i] = combine(bounds[i], combine(value(x[0]), value(x[2])));
      }
    }
    *reinterpret_cast<float2*>(
        &bounds_[half_][Threads::thread() / 32][first_of_lane<kRows>(Threads::thread() % 32)]) =
        over_tokens<kRows>(bounds, Threads::thread() % 32, combine);
  }
  __device__ __forceinline__ float bound(int n) const {
    const auto& of_warp = bounds_[half_];
    return (of_warp[0][n] + of_warp[1][n]) + (of_warp[2][n] + of_warp[3][n]);
  }

  const Accumulators& o_;
  const int half_;
  Bounds& bounds_;
  Scales& scales_;
};

}  // namespace flashlatent::sm90
