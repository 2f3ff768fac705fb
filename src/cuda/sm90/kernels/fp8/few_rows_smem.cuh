// Every byte of shared memory of the kernel of few rows, once.
#pragma once

#include <type_traits>

#include "cuda/sm90/kernels/fp8/few_rows_config.h"
#include "cuda/sm90/load/rows_behind.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/merge/team_unit.cuh"
#include "cuda/sm90/walk/listed_items.cuh"
#include "cuda/sm90/walk/segment_list.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::fp8::few_rows {

/// A team's segment; `segment` is this CTA's share of it.
struct TeamWork : sm90::Work {
  sm90::SharingTeam team;
  bool is_known;  // the computing threads know its tile and have begun
};

/// Values and statistics from the other ranks, in rank order.
template <class Config>
struct TeamMemory : sm90::TeamMemory<Config> {
  sm90::TeamUnits<Config> units[Config::kTeam - 1];
};
struct NoTeam {};
struct NoMerge {};

/// The address of a row's columns; null: there is no such row.
struct QueryRow {
  const uint4 *first, *rope;
};

/// Walks of loading warps, each its own.
template <class Config>
struct WalkMemory {
  using Items = std::conditional_t<Config::kAlone, sm90::ItemsInTurn, sm90::PlannedItems>;
  typename Items::Memory of_warp[4];
};
struct NoWalk {};

/// Additions for the edges of the layer.
template <class Config>
struct LayerEdges {
  int request, token;                  // of the tile's query token
  std::uint8_t* codes[Config::kRows];  // of rows; null: no such row
};
struct NoEdges {};

template <class Config>
using WorkQueue = sm90::WorkQueueOf<std::conditional_t<(Config::kTeam > 1), TeamWork, sm90::Work>>;

/// Flags of a block whose P is ready.
enum BlockFlags : int {
  kShrinks = 1,  // sums so far are rescaled for it
  kMasked = 2,   // e4m3: some rows do not attend to some of its tokens
};

template <class Config_>
struct alignas(1024) SharedMemory {
  using Config = Config_;

  std::uint8_t q[Config::kQueryTiles][Config::kTileBytes];  // fp16; RoPE in bf16, last, but for e4m3
  // P of a block; where RoPE is value then P for it, without units and in bf16.
  std::uint8_t p[Config::kPlaces + Config::kRopeTiles][Config::kTileBytes];
  std::uint8_t blocks[Config::kSlots][Config::kBlockBytes];  // tokens as they are in the cache
  union {
    alignas(16) std::uint16_t ratio[Config::kPlaces][Config::kGroups][64];  // math/fp8_units.cuh
    float row_scale[Config::kRows];                                         // e4m3: factors of scores, to
                                                                            // base 2
  };
  float warp_max[Config::kWarpgroups][4][Config::kRows];
  float base[Config::kRows];                     // -inf: no base yet
  float finite_base[Config::kRows];              // subtracted from scores
  float factor[Config::kPlaces][Config::kRows];  // of sums and outputs, for the block
  int flags[Config::kPlaces];                    // a block's BlockFlags
  float warp_sum[Config::kWarpgroups][4][Config::kRows];
  float row_factor[Config::kRows];
  sm90::RowsBehind<Config::kRows> rows;
  QueryRow row_query[Config::kRows];
  sm90::RowPlace<typename Config::Element> row_place[Config::kRows];
  sm90::PoisonedRows poisoned_rows[Config::kVDim];  // by column (fp8/poison.cuh)
  int poisoned[Config::kWarpgroups];                // is there any in its columns?
  int query_max[Config::kWarpgroups * 4];           // of each warp
  std::uint64_t live[Config::kSlots];               // which tokens of a block count
  ptx::Barrier full[Config::kSlots], empty[Config::kSlots];
  ptx::Barrier has_p[Config::kWarpgroups];  // P and its statistics are ready
  ptx::Barrier has_query;                   // Q has come from memory; of two lists, the call's first
  ptx::Barrier meeting;                     // of all warpgroups
  std::conditional_t<Config::kListsSegments, sm90::SegmentList, WorkQueue<Config>> segments;
  std::conditional_t<(Config::kTeam > 1), TeamMemory<Config>, NoTeam> team;
  std::conditional_t<Config::kMerges, sm90::MergeBegun, NoMerge> merge;
  std::conditional_t<Config::kLists, WalkMemory<Config>, NoWalk> walks;
  std::conditional_t<Config::kEdges, LayerEdges<Config>, NoEdges> edges;

  /// What the loader by lists waits for after its first block.
  __device__ __forceinline__ ptx::Barrier& first_query() { return has_query; }
  /// A CTA's own values take the place of P.
  __device__ __forceinline__ sm90::TeamUnits<Config>& incoming(int sender, int owner) {
    if (sender == owner) return reinterpret_cast<sm90::TeamUnits<Config>&>(p);
    return team.units[sender - (sender > owner)];
  }
};

inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace flashlatent::fp8::few_rows
