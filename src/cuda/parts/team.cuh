// A team: the kTeam CTAs of a cluster, each with a share of a segment's blocks. What they have is merged
// without a trip to memory: the output (unnormalised) is cut into units, four values of each of 128 threads;
// every CTA sends each unit to the unit's owner, and its rows' statistics to all owners, by asynchronous
// stores that the owner's barrier counts; the owner adds them up in the order of ranks and writes. All CTAs
// of a team walk the same segments, and each is an exchange; a CTA without blocks sends zeros.
//
// Barriers (arrivals) of each CTA, and why none is waited for with a wrong parity:
// - received (1: this CTA's, which announces the bytes of all that send): phase n is the n-th exchange. Bytes
//   of exchange n + 1 come after this CTA has said that it has read those of the n-th (next).
// - may_send (kTeam): phase n is complete when all CTAs have read what came in exchange n. Each CTA says so
//   when it begins exchange n + 1, and then waits for the others before it sends. It is not two phases ahead:
//   the next one needs this CTA's own arrival.
// Within a CTA exchanges follow one another: all computing threads meet after each. The cluster meets once,
// before the first. Nobody need wait for others at the end: what is sent to a CTA it waits for, and arrivals
// at may_send come only in exchanges that all take part in.
//
// A kernel's Config says how its output is cut:
//   kUnits, kOwnedUnits, kOwners     units of a tile, those of an owner, and how many own any
//   unit_row(), unit_column()        of (unit, thread): where the first of the thread's values is
//   kPairApart                       they are columns column + {0, 1} + {0, kPairApart}
//   SentUnit                         what is sent of a unit (sent_unit.cuh)
//   kLargestP                        by which outputs are too large for their sums
//   kTeamsAtOnce                     that a thread adds up, of those that share a request (team_merge.cuh)
// and its SharedMemory has `team`, a TeamMemory, and incoming(sender, owner), where the owner gets what
// `sender` has of its units.
#pragma once

#include "cuda/parts/arguments.h"
#include "cuda/parts/sent_unit.cuh"
#include "cuda/parts/softmax.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

/// A query row's maximum, in base 2, and its sum.
struct RowStatistics {
  float max, sum;
};

template <class Config>
struct TeamMemory {
  float2 statistics[Config::kTeam][Config::kRows];  // from each rank: maximum in base 2, sum
  ptx::Barrier received;
  ptx::Barrier may_send;
  bool is_last[Config::kOwnedUnits];  // of the teams that share a request, by unit

  /// One thread, before the cluster meets.
  __device__ __forceinline__ void init() {
    ptx::init(received, 1);
    ptx::init(may_send, Config::kTeam);
  }
};

/// What the owner of units gets from one CTA.
template <class Config>
using TeamUnits = typename Config::SentUnit[Config::kOwnedUnits];

/// Where a computing thread's four of a unit are.
struct UnitPlace {
  int unit;  // or -1: this thread has none
  int n;     // row
  int column;

  /// Is it the one that keeps its row's statistics?
  __device__ __forceinline__ bool begins_row() const { return column % 64 == 0; }
};

/// One CTA's side of an exchange.
template <class Shared>
class Exchange {
 public:
  using Config = typename Shared::Config;

  /// `number`: exchanges before this one.
  __device__ __forceinline__ Exchange(Shared& shared, std::uint32_t number)
      : shared_(shared), team_(shared.team), number_(number), rank_(rank()) {}

  /// Which of the owned units this thread adds up; of teams of 4 two, one after another.
  static constexpr int kTurns = (Config::kOwnedUnits + 1) / 2;
  __device__ __forceinline__ static int slot_of(int turn) { return threadIdx.x / 128 + 2 * turn; }

  /// What this thread adds up.
  __device__ __forceinline__ static UnitPlace own_place(int turn = 0) {
    const int slot = slot_of(turn), thread = threadIdx.x % 128;
    if (rank() >= Config::kOwners || slot >= Config::kOwnedUnits) return {-1, 0, 0};
    const int unit = rank() * Config::kOwnedUnits + slot;
    return {unit, Config::unit_row(unit, thread), Config::unit_column(unit, thread)};
  }

  /// Announces what this CTA will get; afterwards it may send.
  __device__ __forceinline__ void open() {
    if (threadIdx.x == 0) {
      ptx::arrive_expecting(team_.received, rank_ < Config::kOwners ? kTeam * kBytesASender : 0);
    }
    if (number_ == 0) return;
    if (threadIdx.x < kTeam) ptx::arrive_at(threadIdx.x, team_.may_send);
    ptx::wait(team_.may_send, (number_ - 1) & 1);
  }

  /// Rows' statistics to all owners; `row_of(n)` is asked by one thread for each.
  template <class RowOf>
  __device__ __forceinline__ void send_statistics(RowOf row_of) const {
    static_assert(Config::kOwners <= Config::kComputeThreads / Config::kRows);
    const int owner = threadIdx.x / Config::kRows, n = threadIdx.x % Config::kRows;
    if (owner >= Config::kOwners) return;
    const RowStatistics row = row_of(n);
    ptx::send(ptx::address_in(owner, &team_.statistics[rank_][n]), make_float2(row.max, row.sum),
              ptx::address_in(owner, &team_.received));
  }

  /// The way of a unit to its owner.
  struct Route {
    std::uint32_t to, received;

    /// What belongs so many bytes from its begin.
    template <class Value>
    __device__ __forceinline__ void send(int at, Value value) const {
      ptx::send(to + at, value, received);
    }
  };
  __device__ __forceinline__ Route route(int unit) const {
    const int owner = unit / Config::kOwnedUnits;
    return {ptx::address_in(owner, &shared_.incoming(rank_, owner)[unit % Config::kOwnedUnits]),
            ptx::address_in(owner, &team_.received)};
  }

  /// Waits until all that others send is here.
  __device__ __forceinline__ void receive() { ptx::wait_for_cluster(team_.received, number_ & 1); }

  /// The thread's values of all CTAs together, in the order of ranks, unnormalised, and their row.
  __device__ __forceinline__ RowStatistics add_up(float (&x)[4], int n, int turn) const {
    constexpr int kAtOnce = 8;
    const int slot = slot_of(turn), thread = threadIdx.x % 128;
    RowStatistics all{-INFINITY, 0};
#pragma unroll kAtOnce
    for (int rank = 0; rank < kTeam; ++rank) all.max = fmaxf(all.max, team_.statistics[rank][n].x);
    const float base = finite_or_zero(all.max);
    x[0] = x[1] = x[2] = x[3] = 0;
#pragma unroll kAtOnce
    for (int rank = 0; rank < kTeam; ++rank) {
      const float2 row = team_.statistics[rank][n];
      const float weight = exp2_fast(row.x - base);
      all.sum += row.y * weight;
      shared_.incoming(rank, rank_)[slot].add_to(x, thread, weight);
    }
    return all;
  }

 private:
  static constexpr int kTeam = Config::kTeam;
  static constexpr int kBytesASender =
      static_cast<int>(sizeof(TeamUnits<Config>) + Config::kRows * sizeof(float2));

  __device__ __forceinline__ static int rank() {
    return blockIdx.x % kTeam;
  }

  Shared& shared_;
  TeamMemory<Config>& team_;
  const std::uint32_t number_;
  const int rank_;
};

}  // namespace flashlatent::parts
