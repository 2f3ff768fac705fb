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
// Within a CTA exchanges follow one another: all warps meet after each. The cluster meets once, before the
// first. Nobody need wait for others at the end: what is sent to a CTA it waits for, and arrivals at may_send
// come only in exchanges that all take part in.
#pragma once

#include "cuda/mma16/attention.cuh"
#include "cuda/parts/segments.cuh"

namespace flashlatent::mma16 {

/// Where a computing thread's 16 bytes of a unit are: row n, and columns column + {0, 1, 8, 9}. Each unit is
/// 128 threads', 32 for 16 columns.
struct UnitPlace {
  int unit;  // or -1: this thread has none
  int n;
  int column;
};

/// One CTA's side of an exchange.
template <class Config>
class Exchange {
 public:
  /// `number`: exchanges before this one. `blocks`: of the segment, all CTAs' together.
  __device__ __forceinline__ Exchange(SharedMemory<Config>& shared, std::uint32_t number, int blocks)
      : shared_(shared), team_(shared.team), number_(number), blocks_(blocks), rank_(rank()) {
    const int of = threadIdx.x % 32 % kTeam;
    const bool has =
        schedule::share_begin(blocks_, kTeam, of) < schedule::share_begin(blocks_, kTeam, of + 1);
    sharers_ = __ballot_sync(0xffffffff, has);
  }

  /// What this thread adds up.
  __device__ __forceinline__ static UnitPlace own_place() {
    const int thread = threadIdx.x, slot = thread / 128, lane = thread % 32;
    if (rank() >= Config::kOwners || slot >= Config::kOwnedUnits) return {-1, 0, 0};
    const int unit = rank() * Config::kOwnedUnits + slot;
    return {unit, unit % 2 * 8 + lane / 4, unit / 2 * 64 + thread % 128 / 32 * 16 + lane % 4 * 2};
  }

  /// Announces what this CTA will get; afterwards it may send.
  __device__ __forceinline__ void open() {
    if (blocks_ == 0) return;
    if (threadIdx.x == 0) {
      ptx::arrive_expecting(team_.received,
                            rank_ < Config::kOwners ? min(blocks_, kTeam) * kBytesASender : 0);
    }
    if (number_ == 0) return;
    if (threadIdx.x < kTeam) ptx::arrive_at(threadIdx.x, team_.may_send);
    ptx::wait(team_.may_send, (number_ - 1) & 1);
  }

  /// This warp's columns, and a row's statistics, which are in shared memory.
  __device__ __forceinline__ void send(const float (&o)[Config::kWarpColumns / 2], int warp, int lane) {
    static_assert(Config::kOwners <= Config::kComputeThreads / kRows);
    if (const int owner = threadIdx.x / kRows; owner < Config::kOwners) {
      const int n = threadIdx.x % kRows;
      float sum = 0;
#pragma unroll
      for (float of_warp : shared_.warp_sum[n]) sum += of_warp;
      ptx::send(ptx::address_in(owner, &team_.statistics[rank_][n]), make_float2(team_.row_max[n], sum),
                ptx::address_in(owner, &team_.received));
    }
    constexpr int kPieces = Config::kWarpColumns / 16;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int unit = warp / Config::kWarpsAChunk * 2 + eight;
      const int owner = unit / Config::kOwnedUnits;
      const std::uint32_t received = ptx::address_in(owner, &team_.received);
      const std::uint32_t to = ptx::address_in(
          owner,
          &team_.units[rank_][unit % Config::kOwnedUnits][warp % Config::kWarpsAChunk * kPieces * 32 + lane]);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const float* x = &o[8 * i + 2 * eight];
        ptx::send(to + i * 32 * static_cast<std::uint32_t>(sizeof(float4)),
                  make_float4(x[0], x[1], x[4], x[5]), received);
      }
    }
  }

  /// Waits until all that others send is here.
  __device__ __forceinline__ void receive() {
    if (blocks_ > 0) ptx::wait_for_cluster(team_.received, number_ & 1);
  }

  /// The thread's values of all CTAs together, in the order of ranks, unnormalised, and their row.
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4], int n) const {
    return blocks_ >= kTeam ? add_up<true>(x, n) : add_up<false>(x, n);
  }

 private:
  static constexpr int kTeam = Config::kTeam;
  static constexpr int kBytesASender = Config::kOwnedUnits * Config::kUnitBytes + kRows * sizeof(float2);

  __device__ __forceinline__ static int rank() {
    return blockIdx.x % kTeam;
  }

  /// kAll: all CTAs have a share, so that there is nothing to ask, and loads go together.
  template <bool kAll>
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4], int n) const {
    constexpr int kAtOnce = kAll ? 8 : 1;
    const int slot = threadIdx.x / 128, thread = threadIdx.x % 128;
    RowStatistics all{-INFINITY, 0};
#pragma unroll kAtOnce
    for (int rank = 0; rank < kTeam; ++rank) {
      if (kAll || sharers_ >> rank & 1) all.max = fmaxf(all.max, team_.statistics[rank][n].x);
    }
    const float base = parts::finite_or_zero(all.max);
    x[0] = x[1] = x[2] = x[3] = 0;
#pragma unroll kAtOnce
    for (int rank = 0; rank < kTeam; ++rank) {
      if (!kAll && !(sharers_ >> rank & 1)) continue;
      const float2 row = team_.statistics[rank][n];
      const float weight = parts::exp2_fast(row.x - base);
      all.sum += row.y * weight;
      add_weighted(x, team_.units[rank][slot][thread], weight);
    }
    return all;
  }

 public:
  __device__ __forceinline__ static void add_weighted(float (&x)[4], float4 theirs, float weight) {
    x[0] += theirs.x * weight;
    x[1] += theirs.y * weight;
    x[2] += theirs.z * weight;
    x[3] += theirs.w * weight;
  }

 private:
  SharedMemory<Config>& shared_;
  TeamMemory<Config>& team_;
  const std::uint32_t number_;
  const int blocks_;
  const int rank_;
  unsigned sharers_;  // a bit a rank
};

}  // namespace flashlatent::mma16
