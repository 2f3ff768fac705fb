// What a warpgroup keeps of one tile of query rows, and does with a block's scores, whichever warpgroup
// computed them: statistics, P, dead tokens, its columns of the output.
#pragma once

#include "cuda/sm90/kernels/mla_16_transposed/ring.cuh"
#include "cuda/sm90/load/cache_scale.cuh"
#include "cuda/sm90/math/column_softmax.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::mla_16_transposed {

inline constexpr int kAlone = 1;  // + which: the named barrier of one warpgroup

/// A query row's maximum, in base 2, and its sum.
struct RowStatistics {
  float max, sum;
};

/// kChunks: how many chunks of 64 columns of the output this warpgroup has.
template <class Config, int kChunks>
class Attention {
 public:
  using Element = typename Config::Element;

 protected:
  static constexpr int kRows = Config::kRows;
  static constexpr int kFirstV = Config::kQkChunks - Config::kVChunks;  // in the order of loading

  __device__ __forceinline__ Attention(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared),
        args_(args),
        me_(threadIdx.x / 128),
        thread_(threadIdx.x % 128),
        fragment_(sm90::fragment_of(thread_)),
        cache_scale_(sm90::cache_scale<typename Config::Loader>(args.cache)),
        ring_(shared) {}

  /// Begins a segment of so many tokens, with the rows of tile_.
  __device__ __forceinline__ void start(int length) {
#pragma unroll
    for (auto& chunk : o_) {
#pragma unroll
      for (float& x : chunk) x = 0;
    }
#pragma unroll
    for (int i = 0; i < sm90::ColumnValues<kRows>::kCount; ++i) {
      max_[i] = -INFINITY;
      sum_[i] = 0;
    }
    length_ = length;
    seen_by_all_ = seen(0, 0);
  }

  /// Synchronises this warpgroup.
  __device__ __forceinline__ void meet_alone() const {
    ptx::named_sync(kAlone + me_, 128);
  }

  /// What query row n sees, from token `start` on.
  __device__ __forceinline__ TokenPrefix seen(int n, int start) const {
    return tile_.seen(args_, length_, n).from(start);
  }

  /// The query row of this thread's i-th column.
  __device__ __forceinline__ int column(int i) const {
    return i / 2 * 8 + fragment_.column + i % 2;
  }

  /// Which tokens of the block count. One lane reads, the one that frees tiles, so that its arrival orders
  /// the read before the loader's next write.
  __device__ __forceinline__ void take_live() {
    std::uint64_t live = 0;
    if (thread_ % 32 == 0) live = ring_.live();
    live_ = __shfl_sync(0xffffffff, live, 0);
    if constexpr (Config::kCountsLanes) arrivals_ = thread_ % 32 == 0 ? 32 : 0;
  }

  __device__ __forceinline__ std::uint64_t partial_tokens(int start) const {
    return sm90::partial_tokens(live_, seen_by_all_.from(start));
  }

  /// From scores to P in shared memory; rescales the output so far to the new maximum.
  __device__ __forceinline__ void softmax(int start) {
    sm90::multiply(s_, args_.scale_log2 * cache_scale_);
    if (live_ != sm90::kAllLive || partial_tokens(start) != 0) {
      sm90::mask_columns<kRows>(s_, live_, fragment_, [&](int n) { return seen(n, start); });
    }
    const sm90::ColumnValues<kRows> before = max_;
    take_maximum();
    bool grew = false;
    sm90::ColumnValues<kRows> factor;
#pragma unroll
    for (int i = 0; i < sm90::ColumnValues<kRows>::kCount; ++i) {
      factor[i] = sm90::shrink(before[i], max_[i]);
      sum_[i] *= factor[i];
      grew |= (factor[i] != 1.0F) & (column(i) < tile_.rows);
    }
    sm90::exponentials<kRows>(s_, max_, sum_);
    sm90::store_probabilities<Element, kRows>(ptx::shared_address(shared_.p[me_]), s_, thread_);
    if (__any_sync(0xffffffff, grew)) rescale(factor);
  }

  /// max_ = the larger of max_ and the block's maxima, over all four warps.
  __device__ __forceinline__ void take_maximum() {
    const sm90::ColumnValues<kRows> mine = sm90::warp_max<kRows>(s_);
    if (thread_ % 32 < 4) put(shared_.warp_max[me_][thread_ / 32], mine);
    meet_alone();
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) {
        const float2 pair =
            *reinterpret_cast<const float2*>(&shared_.warp_max[me_][warp][8 * j + fragment_.column]);
        max_[2 * j] = fmaxf(max_[2 * j], pair.x);
        max_[2 * j + 1] = fmaxf(max_[2 * j + 1], pair.y);
      }
    }
  }

  /// This thread's columns into a row of kRows values.
  __device__ __forceinline__ void put(float (&row)[kRows], const sm90::ColumnValues<kRows>& values) const {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      *reinterpret_cast<float2*>(&row[8 * j + fragment_.column]) =
          make_float2(values[2 * j], values[2 * j + 1]);
    }
  }

  __device__ __forceinline__ void rescale(const sm90::ColumnValues<kRows>& factor) {
#pragma unroll
    for (auto& chunk : o_) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) chunk[i] *= factor[i / 4 * 2 + i % 2];
    }
  }

  /// Nothing of dead tokens may reach the output through V, whose tile of the i-th of this warpgroup's chunks
  /// is tile_of(i).
  template <class TileOf>
  __device__ __forceinline__ void silence(int start, TileOf tile_of) {
    const std::uint64_t partial = partial_tokens(start);
    if ((Config::Loader::kZeroesDead || live_ == sm90::kAllLive) && partial == 0) return;
    if constexpr (Config::kCountsLanes) arrivals_ = 1;
    if (partial != 0) {
      sm90::spread_poison<Element, kRows, kChunks>(o_, tile_of, partial, fragment_,
                                                   [&](int n) { return seen(n, start); });
      meet_alone();
    }
    sm90::silence_tokens<Element, kChunks, 128>(
        [&](int i, int token) { return tile_of(i).bytes + token * sm90::kRowBytes; }, live_, partial,
        thread_);
  }

  __device__ __forceinline__ void arrive_as_warp(ptx::Barrier& barrier) {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::arrive(barrier);
  }

  __device__ __forceinline__ void publish_statistics(Statistics<kRows>& statistics) {
    sm90::ColumnValues<kRows> sum;
#pragma unroll
    for (int i = 0; i < sm90::ColumnValues<kRows>::kCount; ++i) {
      sum[i] = sm90::across_token_lanes(sum_[i], [](float a, float b) { return a + b; });
    }
    if (thread_ % 32 < 4) {
      put(statistics.warp_sum[thread_ / 32], sum);
      if (thread_ < 4) put(statistics.max, max_);
    }
  }

  /// The statistics of row n, as published.
  __device__ __forceinline__ static RowStatistics row_of(const Statistics<kRows>& statistics, int n) {
    return {statistics.max[n], (statistics.warp_sum[0][n] + statistics.warp_sum[1][n]) +
                                   (statistics.warp_sum[2][n] + statistics.warp_sum[3][n])};
  }

  /// The final factor of row n's sums; `writes`: writes the row's lse.
  __device__ __forceinline__ float finish_row(int segment_slot, std::int64_t slot, int n, RowStatistics row,
                                              bool writes) const {
    sm90::RowScale scale = sm90::finish_row(row.max, row.sum);
    scale.factor *= cache_scale_;
    if (n >= tile_.rows) return scale.factor;
    if (writes && segment_slot >= 0) args_.partial.lse[slot * kRows + n] = scale.lse;
    if (segment_slot >= 0) return scale.factor;
    const int head = tile_.head(args_.query, n);
    if (writes) sm90::write_lse(args_.output, tile_, head, tile_.token(args_.query, n), scale.lse);
    if constexpr (Config::kTurns) {
      if (writes) sm90::write_max_logit(args_.max_logits, tile_, head, row.max, scale.lse);
    }
    if (args_.output.sink == nullptr) return scale.factor;
    return scale.factor * sm90::sink_factor(scale.lse, __ldg(args_.output.sink + head));
  }

  /// Where the segment's partial result lies.
  __device__ __forceinline__ std::int64_t slot_of(const schedule::Segment& segment, int lane) const {
    return static_cast<std::int64_t>(segment.partial) * args_.geometry.lanes + lane;
  }
  __device__ __forceinline__ float* partial_out(std::int64_t slot) const {
    return args_.partial.out + slot * kRows * Config::kVDim;
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const int me_;
  const int thread_;
  const sm90::Fragment fragment_;
  const float cache_scale_;
  RingPosition<Config> ring_;
  sm90::RowTile tile_;
  int length_ = 0;
  std::uint32_t arrivals_ = 0;  // of this lane for each tile of the block (Config::kCountsLanes)
  TokenPrefix seen_by_all_ = {};
  std::uint64_t live_ = 0;               // which tokens of the block count
  sm90::ColumnValues<kRows> max_, sum_;  // base 2; sum_ is this thread's share
  float s_[kRows / 2];
  float o_[kChunks][kRows / 2];
};

}  // namespace flashlatent::mla_16_transposed
