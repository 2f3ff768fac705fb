// The plan, built on the host.
#pragma once

#include <optional>

#include "flashlatent/problem.h"
#include "plan/building.h"
#include "plan/plan_memory.h"
#include "plan/ragged_lengths.h"

namespace flashlatent::schedule {

/// Do the fields make sense, and do the longest lengths fit the plan's integers (int64 costs, int32 partial
/// rows)?
Status validate(const Geometry& geometry);

/// Writes the plan for these lengths (one for length_sharers requests; null: all max_tokens) into `memory`,
/// plan_bytes(geometry) long.
void build_on_host(const Geometry& geometry, const std::int32_t* lengths, void* memory,
                   const Building& building = {});
/// The same of items with two lists, and of ragged ones, whose splits are not fixed.
void build_on_host(const Geometry& geometry, const UnionLengths& lengths, void* memory,
                   const Building& building = {});
void build_on_host(const Geometry& geometry, const RaggedLengths& lengths, void* memory,
                   const Building& building = {});

/// What the cost model makes of a call whose requests are all as long as the page table reaches (where a
/// kernel is picked no length is known): per_call and the largest part, of whole
/// requests or of equal shares, whichever is shorter. With kFixedSplits it is the workers'
/// time for one split of every row tile: the batch must not change which kernel, and so which bits, a request
/// gets.
std::int64_t estimate(const Geometry& geometry);

/// The same with a part an item (kWhole), if there are no more items than parts and splits are not
/// fixed: no combine step and no workspace, but the longest request is one part's.
std::optional<Geometry> whole_items(Geometry geometry);

/// The same with whole items in turn (kTurns).
Geometry turns(Geometry geometry);

/// The same with as many parts an item (kEvenShares), of at least a block each where it is as long as can be,
/// if that is at least two and splits are not fixed. For items that are as long as each other, or nearly.
std::optional<Geometry> even_items(Geometry geometry);

/// The same with parts by length (kSharesByLength), of which there must be two an item, too.
std::optional<Geometry> items_by_length(Geometry geometry);

/// Would a lone request as long as the page table reaches, which is what gains most from splits, take no
/// longer whole, as `whole` (of whole_items()) has it? `saved`: what that spares a call, beside its costs.
bool never_gains_from_splits(const Geometry& geometry, const Geometry& whole, std::int64_t saved = 0);

/// Lanes, rounds and parts for `tiles` row tiles (of all KV heads) on `workers` SMs or threads: the most
/// lanes that divide the tiles and keep nine tenths of the workers busy, since lanes read the same KV block
/// at the same time and meet in the cache.
/// A worker may be a team.
void set_workers(Geometry& geometry, int tiles, int workers);

}  // namespace flashlatent::schedule
