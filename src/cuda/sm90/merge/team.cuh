// A team: the kTeam CTAs of a cluster, each with a share of a segment's blocks. Their results are merged
// without a trip to memory. The output (unnormalised) is cut into units, four values of each of 128 threads,
// and each unit has an owner. Every CTA sends each unit to its owner, and its rows' statistics to all owners,
// by asynchronous stores that the owner's barrier counts. The owner adds up its units in the order of ranks
// and writes the result, or first merges it with other teams' results (team_merge.cuh). A team has one
// segment; a CTA without blocks sends zeros.
//
// Each CTA has one barrier for this, `received` (1 arrival: its own, which announces the bytes of all
// senders). The cluster synchronises once before any CTA sends. It need not at the end, because a CTA waits
// for everything that is sent to it.
//
// A kernel's Config says how its output is cut:
//   kUnits, kOwnedUnits, kOwners     units of a tile, units of an owner, number of owners
//   unit_row(), unit_column()        of (unit, thread): where the first of the thread's values is
//   kPairApart                       the values are columns column + {0, 1} + {0, kPairApart}
//   SentUnit                         what is sent of a unit (sent_unit.cuh)
//   kLargestP                        the factor by which outputs are too large for their sums
// Its SharedMemory has `team`, a TeamMemory, and incoming(sender, owner), where the owner gets the sender's
// part of its units.
#pragma once

#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/merge/sent_unit.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

/// A query row's maximum, in base 2, and its sum.
struct RowStatistics {
  float max, sum;
};

/// Slices of a unit that CTAs have left unmerged (team_merge.cuh).
struct Unmerged {
  std::uint32_t declined;        // by this CTA
  std::uint32_t left;            // by others, to this CTA
  ptx::Barrier stored, settled;  // all of this CTA's part is in memory; `left` is known

  __device__ __forceinline__ void init() {
    declined = 0;
    ptx::init(stored, 128);
    ptx::init(settled, 1);
  }
};

template <class Config>
struct TeamMemory {
  float2 statistics[Config::kTeam][Config::kRows];  // from each rank: maximum in base 2, sum
  ptx::Barrier received;
  Unmerged unmerged[Config::kOwnedUnits];

  /// Called by one thread before the cluster synchronises.
  __device__ __forceinline__ void init() {
    ptx::init(received, 1);
    for (Unmerged& unit : unmerged) unit.init();
  }
};

/// What an owner of units gets from one CTA.
template <class Config>
using TeamUnits = typename Config::SentUnit[Config::kOwnedUnits];

/// The place of a computing thread's four values of a unit.
struct UnitPlace {
  int unit;  // -1: this thread has none
  int n;     // row
  int column;

  /// Is this the thread that keeps its row's statistics?
  __device__ __forceinline__ bool begins_row() const { return column % 64 == 0; }
};

/// One CTA's side of an exchange.
template <class Shared>
class Exchange {
 public:
  using Config = typename Shared::Config;

  __device__ __forceinline__ explicit Exchange(Shared& shared)
      : shared_(shared), team_(shared.team), rank_(rank()) {}

  /// Owned units that a thread adds up, one after another: two in teams of 4.
  static constexpr int kTurns = (Config::kOwnedUnits + 1) / 2;
  __device__ __forceinline__ static int slot_of(int turn) { return threadIdx.x / 128 + 2 * turn; }

  /// The place of the values that this thread adds up.
  __device__ __forceinline__ static UnitPlace own_place(int turn = 0) {
    const int slot = slot_of(turn), thread = threadIdx.x % 128;
    if (rank() >= Config::kOwners || slot >= Config::kOwnedUnits) return {-1, 0, 0};
    const int unit = rank() * Config::kOwnedUnits + slot;
    return {unit, Config::unit_row(unit, thread), Config::unit_column(unit, thread)};
  }

  /// Announces the bytes that this CTA will get.
  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) {
      ptx::arrive_expecting(team_.received, rank_ < Config::kOwners ? kTeam * kBytesASender : 0);
    }
  }

  /// Sends the rows' statistics to all owners; one thread calls `row_of(n)` for each row.
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

    /// Sends a value to its place, `at` bytes from the unit's begin.
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

  /// Waits for everything that others send.
  __device__ __forceinline__ void receive() const { ptx::wait_for_cluster(team_.received, 0); }

  /// Adds up the thread's values from all CTAs in the order of ranks, unnormalised, and returns their row's
  /// statistics.
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
  const int rank_;
};

}  // namespace flashlatent::sm90
