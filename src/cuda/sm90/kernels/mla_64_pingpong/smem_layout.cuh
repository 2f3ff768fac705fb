// Every byte of shared memory of the mla_64_pingpong kernel, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/mla_64_pingpong/config.h"
#include "cuda/sm90/kernels/mla_64_pingpong/team_part.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/shared_max.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/walk/listed_items.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::mla_64_pingpong {

struct TeamMemory {
  ptx::Barrier received;  // what other CTAs send to this one (team.cuh)
};
/// What a team of any size has in shared memory (any_team.cuh).
struct AnyTeamMemory {
  ptx::Barrier received;
  TeamPart part;
  uint2 routes[TeamPart::kMostPieces];  // of each piece: where it goes, and the barrier that counts it
  float largest[8][8];                  // with edges, of computing warps (merge/row_edge.cuh)
};
struct NoTeam {};
struct NoMerge {};
struct QueryMax {
  std::uint32_t of_warp[8];  // that compute (query_units.cuh)
};
struct NoQueryMax {};
struct RowSums {
  float of[2][2][64];  // of each warpgroup, at the end; segments alternate
};
/// Sums of rows for sparse prefill, with the largest scores, base 2.
struct RowEnds {
  float sums[2][64];
  sm90::SharedMax maxima[2][64];

  __device__ __forceinline__ void begin(int warpgroup, int row) {
    maxima[warpgroup][row].init();
    maxima[warpgroup][row + 8].init();
  }
  __device__ __forceinline__ void raise(int warpgroup, int row, sm90::RowPair max) {
    maxima[warpgroup][row].raise(max.low);
    maxima[warpgroup][row + 8].raise(max.high);
  }
};
/// Each loading warp's place among the segments.
template <class Config>
struct Items {
  using Walk =
      std::conditional_t<Config::kListShares || Config::kTurns, sm90::ItemsInTurn, sm90::PlannedItems>;
  typename Walk::Memory of_warp[Config::kLoaderThreads / 32];
};
struct NoItems {};
struct NoRowSums {};  // sums are stored in row_base (warpgroup.cuh)

template <class Config>
struct alignas(1024) SharedMemory {
  sm90::Tile q[Config::kQkChunks];
  typename Config::Buffer kv[2];
  sm90::Tile p;           // for the other warpgroup, of the even and the odd block alternately
  float row_base[2][64];  // after the even and after the odd block
  std::conditional_t<Config::kTurns, RowEnds, std::conditional_t<Config::kUnits, NoRowSums, RowSums>>
      row_sums;
  alignas(16) sm90::PoisonedRows poisoned_rows[Config::kVDim];  // by column
  int poisoned[2];                                              // is there any? Segments take turns
  ptx::Barrier handed_over[3];                                  // P (enum HandOver) and row_base are there
  ptx::Barrier scored;  // the left warpgroup's QK^T is under way: it is the right one's turn
  ptx::Barrier q_full, q_empty;
  ptx::Barrier meeting;  // of both warpgroups, at a segment's end
  typename Config::State state[2];
  sm90::WorkQueue work;
  typename Config::Loader::Memory loader;
  std::conditional_t<Config::kWarpsWalk, Items<Config>, NoItems> items;
  std::conditional_t<Config::kAtOnce, AnyTeamMemory,
                     std::conditional_t<(Config::kTeam > 1), TeamMemory, NoTeam>>
      team;
  std::conditional_t<Config::kMerges, sm90::MergeBegun, NoMerge> merge;
  std::conditional_t<Config::kUnits, QueryMax, NoQueryMax> query_max;
};

// DeepSeek's 576/512: 72 KB of Q, 2 x 72 KB of KV, 8 KB of P and about 1.5 KB.
inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace flashlatent::mla_64_pingpong
