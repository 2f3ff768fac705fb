// The bytes of a plan, for every partition.
#pragma once

#include "plan/fixed_splits.h"
#include "plan/line.h"

namespace flashlatent::schedule {

/// Upper bound of Header::merges.
FLASHLATENT_HOST_DEVICE std::int64_t max_merges(const Geometry& g) {
  switch (g.partition) {
    case Partition::kLine:
      return line_merges(g);
    case Partition::kFixedSplits:
      return fixed_merges(g);
    case Partition::kEvenShares:
    case Partition::kSharesByLength:
      return g.requests;
    case Partition::kWhole:
    case Partition::kTeamShares:
    case Partition::kTurns:
      break;
  }
  return 0;
}

/// Upper bound of Header::partials.
FLASHLATENT_HOST_DEVICE std::int64_t max_partials(const Geometry& g) {
  switch (g.partition) {
    case Partition::kLine:
      return line_partials(g);
    case Partition::kFixedSplits:
      return fixed_partials(g);
    case Partition::kTeamShares:
      return g.parts;
    // an upper bound, because a smaller batch must not need more than a larger one
    case Partition::kEvenShares:
    case Partition::kSharesByLength:
      return g.parts - 1 + max_merges(g);
    case Partition::kWhole:
    case Partition::kTurns:
      break;
  }
  return 0;
}

/// A plan: header | cuts[parts + 1] | merges[max_merges] | cost prefix[requests + 1] | successors[requests]
/// (has_order()) or partial prefix[requests + 1] (kFixedSplits). A prefix has, for one round, the sum over
/// the requests before each request, and over all; only the builder uses it.
struct PlanView {
  Header* header;
  Cut* cuts;  ///< With is_shares() each is a ShareCut (shares.h).
  Merge* merges;
  std::int64_t* cost_prefix;
  std::int32_t* partial_prefix;
  /// The request after each on the line; for the last one, ~ of the first. Null: the request after r is r +
  /// 1.
  std::int32_t* successors;
};

FLASHLATENT_HOST_DEVICE std::int64_t plan_bytes(const Geometry& g) {
  return static_cast<std::int64_t>(sizeof(Header)) + (g.parts + 1LL) * sizeof(Cut) +
         max_merges(g) * sizeof(Merge) + (g.requests + 1LL) * sizeof(std::int64_t) +
         (cuts_line(g.partition) ? (g.requests + 1LL) * sizeof(std::int32_t) : 0);
}

FLASHLATENT_HOST_DEVICE PlanView plan_view(const Geometry& g, void* memory) {
  PlanView view;
  view.header = static_cast<Header*>(memory);
  view.cuts = reinterpret_cast<Cut*>(view.header + 1);
  view.merges = reinterpret_cast<Merge*>(view.cuts + g.parts + 1);
  view.cost_prefix = reinterpret_cast<std::int64_t*>(view.merges + max_merges(g));
  view.partial_prefix = reinterpret_cast<std::int32_t*>(view.cost_prefix + g.requests + 1);
  view.successors = has_order(g) ? view.partial_prefix : nullptr;
  return view;
}

/// FNV-1a over the geometry's fields. The shard, and which items share a length, count only if lengths decide
/// what is partial: otherwise a plan for another rank's tokens is right, if not balanced.
FLASHLATENT_HOST_DEVICE std::uint64_t fingerprint(const Geometry& g) {
  const bool by_lengths = g.partition == Partition::kFixedSplits;
  const TokenShard all, decisive = by_lengths ? g.shard : all;
  const std::int32_t shard[] = {decisive.rank, decisive.world, decisive.run.value};
  const std::int32_t fields[] = {g.requests,
                                 g.parts,
                                 g.lanes,
                                 g.rounds,
                                 g.tile_rows,
                                 g.block_tokens,
                                 g.max_tokens,
                                 g.fixed_split,
                                 by_lengths ? g.length_sharers : 0,
                                 g.cost.per_block,
                                 g.cost.per_split,
                                 g.cost.per_merge,
                                 g.team,
                                 static_cast<std::int32_t>(g.partition),
                                 g.cost.per_block_alone,
                                 g.cost.per_block_near,
                                 g.lists,
                                 g.list[0].reach,
                                 g.list[0].window,
                                 g.list[0].causal,
                                 g.list[1].reach,
                                 shard[0],
                                 shard[1],
                                 shard[2]};
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (std::int32_t field : fields) hash = (hash ^ static_cast<std::uint32_t>(field)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace flashlatent::schedule
