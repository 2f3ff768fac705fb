// A team: the kTeam CTAs of a cluster, each with a share of a segment's blocks. What they have is merged
// without a trip to memory: every CTA sends each unit of its output (64 columns by 8 rows, unnormalised fp32)
// to the unit's owner, and its rows' statistics to all owners, by asynchronous stores that the owner's
// barrier counts; the owner adds them up in the order of ranks and writes. All CTAs of a team walk the same
// segments. A segment with blocks is an exchange; a CTA without any of them sends nothing, which everybody
// can work out.
//
// Barriers (arrivals) of each CTA, and why none is waited for with a wrong parity:
// - received (1: this CTA's, which announces the bytes of all that send): phase n is the n-th exchange. Bytes
//   of exchange n + 1 come after this CTA has said that it has read those of the n-th (next).
// - may_send (kTeam): phase n is complete when all CTAs have read what came in exchange n. Each CTA says so
//   when it begins exchange n + 1, and then waits for the others before it sends. It is not two phases ahead:
//   the next one needs this CTA's own arrival.
// Within a CTA exchanges follow one another: both warpgroups meet after each. The cluster meets once, before
// the first. Nobody need wait for others at the end: what is sent to a CTA it waits for, and arrivals at
// may_send come only in exchanges that all take part in.
#pragma once

#include "cuda/etap/attention.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::etap {

/// x += a thread's values of a unit, by the weights of its rows, which lanes `at` and at + 1 have.
__device__ __forceinline__ void add_weighted(float (&x)[4], float4 theirs, float weight, int at) {
  const float even = __shfl_sync(0xffffffff, weight, at), odd = __shfl_sync(0xffffffff, weight, at + 1);
  x[0] += theirs.x * even;
  x[1] += theirs.y * odd;
  x[2] += theirs.z * even;
  x[3] += theirs.w * odd;
}
/// The values of a unit times what lanes `at` and at + 1 have for its rows.
__device__ __forceinline__ void scale_unit(float (&x)[4], float factor, int at) {
  const float even = __shfl_sync(0xffffffff, factor, at), odd = __shfl_sync(0xffffffff, factor, at + 1);
  x[0] *= even;
  x[1] *= odd;
  x[2] *= even;
  x[3] *= odd;
}

/// One CTA's side of an exchange, by one of its warpgroups, which has half of the columns.
template <class Config>
class Exchange {
 public:
  /// `me`: which warpgroup. `number`: exchanges before this one. `blocks`: of the segment, all CTAs'
  /// together.
  __device__ __forceinline__ Exchange(SharedMemory<Config>& shared, int me, int thread, std::uint32_t number,
                                      int blocks)
      : team_(shared.team), me_(me), thread_(thread), number_(number), blocks_(blocks), rank_(rank()) {
    const int of = threadIdx.x % 32 % kTeam;
    const bool has =
        schedule::share_begin(blocks_, kTeam, of) < schedule::share_begin(blocks_, kTeam, of + 1);
    sharers_ = __ballot_sync(0xffffffff, has);
  }

  /// Announces what this CTA will get (the first warpgroup does); afterwards it may send.
  __device__ __forceinline__ void open() {
    if (blocks_ == 0) return;
    if (me_ == 0 && thread_ == 0)
      ptx::arrive_expecting(team_.received, is_owner() ? senders() * kBytesASender : 0);
    if (number_ == 0) return;
    if (me_ == 0 && thread_ < kTeam) ptx::arrive_at(thread_, team_.may_send);
    ptx::wait(team_.may_send, (number_ - 1) & 1);
  }

  /// This warpgroup's half of the columns, and of the rows' statistics. `row`: row 8 me + thread % 8.
  __device__ __forceinline__ void send(const float (&o)[Config::kVChunks / 2][Config::kRows / 2],
                                       RowStatistics row) {
    static_assert(kRows == 16 && Config::kOwners <= 16);
    if (const int owner = thread_ / 8; owner < Config::kOwners) {
      ptx::send(ptx::address_in(owner, &team_.statistics[rank_][8 * me_ + thread_ % 8]),
                make_float2(row.max, row.sum), ptx::address_in(owner, &team_.received));
    }
#pragma unroll
    for (int i = 0; i < Config::kUnits / 2; ++i) {
      const int unit = me_ * (Config::kUnits / 2) + i;
      const int owner = unit / Config::kOwnedUnits;
      const float* x = &o[i / kUnitsAChunk][i % kUnitsAChunk * 4];
      ptx::send(ptx::address_in(owner, &team_.units[rank_][unit % Config::kOwnedUnits][thread_]),
                make_float4(x[0], x[1], x[2], x[3]), ptx::address_in(owner, &team_.received));
    }
  }

  /// The unit of the output that this warpgroup adds up, or -1.
  __device__ __forceinline__ static int own_unit(int me) {
    if (rank() >= Config::kOwners || me >= Config::kOwnedUnits) return -1;
    return rank() * Config::kOwnedUnits + me;
  }

  /// Has this CTA units of the output?
  __device__ __forceinline__ bool is_owner() const {
    return Config::kOwners == kTeam || rank_ < Config::kOwners;
  }

  /// Has the CTA of this rank blocks of the segment?
  __device__ __forceinline__ bool has_share(int rank) const {
    return sharers_ >> rank & 1;
  }

  /// Waits until all that others send is here.
  __device__ __forceinline__ void receive() {
    if (blocks_ > 0) ptx::wait_for_cluster(team_.received, number_ & 1);
  }

  /// own_unit(me) of all CTAs together, in the order of ranks, unnormalised: the thread's four values; and
  /// row n, thread % kRows.
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4], int n, int column) const {
    return blocks_ >= kTeam ? add_up<true>(x, n, column) : add_up<false>(x, n, column);
  }
  /// kAll: all CTAs have a share, so that there is nothing to ask, and loads go together.
  template <bool kAll>
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4], int n, int column) const {
    constexpr int kAtOnce = kAll ? 8 : 1;
    RowStatistics all{-INFINITY, 0};
#pragma unroll kAtOnce
    for (int rank = 0; rank < kTeam; ++rank) {
      if (kAll || has_share(rank)) all.max = fmaxf(all.max, team_.statistics[rank][n].x);
    }
    const float base = parts::finite_or_zero(all.max);
    const int at = 8 * eight_rows(own_unit(me_)) + column;
    x[0] = x[1] = x[2] = x[3] = 0;
#pragma unroll kAtOnce
    for (int rank = 0; rank < kTeam; ++rank) {
      if (!kAll && !has_share(rank)) continue;
      const float2 row = team_.statistics[rank][n];
      const float weight = parts::exp2_fast(row.x - base);
      all.sum += row.y * weight;
      add_weighted(x, team_.units[rank][me_][thread_], weight, at);
    }
    return all;
  }

  /// Which 64 columns and which 8 rows a unit is.
  __device__ __forceinline__ static int chunk(int unit) {
    return unit / kUnitsAChunk;
  }
  __device__ __forceinline__ static int eight_rows(int unit) {
    return unit % kUnitsAChunk;
  }

 private:
  static constexpr int kTeam = Config::kTeam;
  static constexpr int kRows = Config::kRows;
  static constexpr int kUnitsAChunk = kRows / 8;
  static constexpr int kBytesASender = Config::kOwnedUnits * Config::kUnitBytes + kRows * sizeof(float2);

  __device__ __forceinline__ static int rank() {
    return blockIdx.x % kTeam;
  }
  __device__ __forceinline__ int senders() const {
    return min(blocks_, kTeam);
  }

  TeamMemory<Config>& team_;
  const int me_, thread_;
  const std::uint32_t number_;
  const int blocks_;
  const int rank_;
  unsigned sharers_;  // a bit a rank
};

}  // namespace flashlatent::etap
