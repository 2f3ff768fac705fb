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

#include "cuda/etap/output.cuh"
#include "cuda/etap/smem_layout.cuh"
#include "cuda/etap/softmax.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::etap {

/// A query row's maximum, in base 2, and its sum.
struct RowStatistics {
  float max, sum;
};

/// One CTA's side of an exchange, by one warpgroup.
template <class Config>
class Exchange {
 public:
  /// `number`: exchanges before this one. `blocks`: of the segment, all CTAs' together.
  __device__ __forceinline__ Exchange(SharedMemory<Config>& shared, int thread, std::uint32_t number,
                                      int blocks)
      : team_(shared.team), thread_(thread), number_(number), blocks_(blocks), rank_(blockIdx.x % kTeam) {}

  /// Announces what this CTA will get; afterwards it may send.
  __device__ __forceinline__ void open() {
    if (blocks_ == 0) return;
    if (thread_ == 0) ptx::arrive_expecting(team_.received, is_owner() ? senders() * kBytesASender : 0);
    if (number_ == 0) return;
    if (thread_ < kTeam) ptx::arrive_at(thread_, team_.may_send);
    ptx::wait(team_.may_send, (number_ - 1) & 1);
  }

  /// `row`: of this thread's row, thread % kRows.
  __device__ __forceinline__ void send(const float (&o)[Config::kVChunks][Config::kRows / 2],
                                       RowStatistics row) {
    constexpr int kAtOnce = 128 / kRows;
#pragma unroll
    for (int first = 0; first < Config::kOwners; first += kAtOnce) {
      const int owner = first + thread_ / kRows;
      if (Config::kOwners % kAtOnce != 0 && owner >= Config::kOwners) break;
      ptx::send(ptx::address_in(owner, &team_.statistics[rank_][thread_ % kRows]),
                make_float2(row.max, row.sum), ptx::address_in(owner, &team_.received));
    }
#pragma unroll
    for (int owner = 0; owner < Config::kOwners; ++owner) {
      const std::uint32_t to = ptx::address_in(owner, &team_.units[rank_][0][thread_]);
      const std::uint32_t counter = ptx::address_in(owner, &team_.received);
#pragma unroll
      for (int i = 0; i < Config::kOwnedUnits; ++i) {
        const int unit = owner * Config::kOwnedUnits + i;
        const float* x = &o[unit / kUnitsAChunk][unit % kUnitsAChunk * 4];
        ptx::send(to + i * Config::kUnitBytes, make_float4(x[0], x[1], x[2], x[3]), counter);
      }
    }
  }

  /// Has this CTA units of the output?
  __device__ __forceinline__ bool is_owner() const {
    return Config::kOwners == kTeam || rank_ < Config::kOwners;
  }

  /// Has the CTA of this rank blocks of the segment?
  __device__ __forceinline__ bool has_share(int rank) const {
    return schedule::share_begin(blocks_, kTeam, rank) < schedule::share_begin(blocks_, kTeam, rank + 1);
  }

  /// Waits until all that others send is here.
  __device__ __forceinline__ void receive() {
    if (blocks_ > 0) ptx::wait_for_cluster(team_.received, number_ & 1);
  }

  /// A row's weights, one a rank, and its statistics.
  struct Weights {
    RowStatistics row;
    float of[Config::kTeam];
  };

  /// Of row n.
  __device__ __forceinline__ Weights weights(int n) const {
    Weights weights{{-INFINITY, 0}, {}};
    float sums[kTeam];
#pragma unroll
    for (int rank = 0; rank < kTeam; ++rank) {
      const float2 theirs = has_share(rank) ? team_.statistics[rank][n] : make_float2(-INFINITY, 0.0F);
      weights.of[rank] = theirs.x;
      sums[rank] = theirs.y;
      weights.row.max = fmaxf(weights.row.max, theirs.x);
    }
    const float base = parts::finite_or_zero(weights.row.max);
#pragma unroll
    for (int rank = 0; rank < kTeam; ++rank) {
      weights.of[rank] = parts::exp2_fast(weights.of[rank] - base);
      weights.row.sum += sums[rank] * weights.of[rank];
    }
    return weights;
  }

  /// This CTA's units, the thread's four values of each; of row n, thread % kRows, the sum times `factor`.
  __device__ __forceinline__ void add_up(float (&x)[Config::kOwnedUnits][4], const Weights& weights,
                                         float factor, parts::Fragment fragment) const {
#pragma unroll
    for (auto& values : x) values[0] = values[1] = values[2] = values[3] = 0;
#pragma unroll
    for (int rank = 0; rank < kTeam; ++rank) {
      if (!has_share(rank)) continue;
      const float mine = weights.of[rank] * factor;
#pragma unroll
      for (int i = 0; i < Config::kOwnedUnits; ++i) {
        const int row = 8 * eight_rows(i) + fragment.column;
        const float even = __shfl_sync(0xffffffff, mine, row), odd = __shfl_sync(0xffffffff, mine, row + 1);
        const float4 theirs = team_.units[rank][i][thread_];
        x[i][0] += theirs.x * even;
        x[i][1] += theirs.y * odd;
        x[i][2] += theirs.z * even;
        x[i][3] += theirs.w * odd;
      }
    }
  }

  /// Which 64 columns and which 8 rows this CTA's i-th unit is.
  __device__ __forceinline__ int chunk(int i) const {
    return unit(i) / kUnitsAChunk;
  }
  __device__ __forceinline__ int eight_rows(int i) const {
    return unit(i) % kUnitsAChunk;
  }

  /// Does this CTA write the lse of row n? The owner of its first columns does.
  __device__ __forceinline__ bool writes_lse(int n) const {
    return n / 8 / Config::kOwnedUnits == rank_;
  }

 private:
  static constexpr int kTeam = Config::kTeam;
  static constexpr int kRows = Config::kRows;
  static constexpr int kUnitsAChunk = kRows / 8;
  static constexpr int kBytesASender = Config::kOwnedUnits * Config::kUnitBytes + kRows * sizeof(float2);

  __device__ __forceinline__ int unit(int i) const {
    return rank_ * Config::kOwnedUnits + i;
  }
  __device__ __forceinline__ int senders() const {
    return min(blocks_, kTeam);
  }

  TeamMemory<Config>& team_;
  const int thread_;
  const std::uint32_t number_;
  const int blocks_;
  const int rank_;
};

}  // namespace flashlatent::etap
