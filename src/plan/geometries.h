// Whether a geometry is sound, how long a call of it is estimated to take, and geometries of other
// partitions.
#pragma once

#include <optional>

#include "flashlatent/problem.h"
#include "plan/schedule.h"

namespace flashlatent::schedule {

/// Do the fields make sense, and do the longest lengths fit the plan's integers (int64 costs, int32 partial
/// rows)? kInternal if not.
Status validate(const Geometry& geometry);

/// Estimated time of a call whose requests are all as long as the page table reaches (no length is known when
/// a kernel is picked): per_call plus the largest part, of whole requests or of equal shares, whichever is
/// shorter. With kFixedSplits: the workers' time for one split of every row tile, because the batch must not
/// change which kernel, and so which bits, a request gets.
std::int64_t estimate(const Geometry& geometry);

/// Do items of the greatest length stay whole, by estimate()? For kWhole, kTurns and a line.
bool stays_whole(const Geometry& geometry);

/// The geometry with one part an item (kWhole): no combine step and no workspace, but one part has the
/// longest request. Empty if there are more items than parts, or if splits are fixed.
std::optional<Geometry> whole_items(Geometry geometry);

/// The geometry with kTurns.
Geometry turns(Geometry geometry);

/// The geometry with the same number of parts for each item (kEvenShares), each part at least a block of an
/// item of the greatest length. Empty if that leaves fewer than two parts an item, or if splits are fixed.
/// Suits items of equal or nearly equal lengths.
std::optional<Geometry> even_items(Geometry geometry);

/// The geometry with parts by length (kSharesByLength). Empty as for even_items().
std::optional<Geometry> items_by_length(Geometry geometry);

/// The geometry with a per_call by which a merge is estimated to take `per_merge` if a line gives each
/// request two parts or more: then a part has one segment, and requests merge at the same time. Plans are
/// still cut by cost.per_merge, the time of merges if parts have several segments.
Geometry with_shares_merged_in(Geometry geometry, std::int32_t per_merge);

/// Do splits never pay? The request that gains most from splits is a lone one as long as the page table
/// reaches: is it as fast whole, by the geometry `whole` of whole_items()? `saved`: nanoseconds that a call
/// of whole items saves beyond its costs.
bool never_gains_from_splits(const Geometry& geometry, const Geometry& whole, std::int64_t saved = 0);

/// Sets lanes, rounds and parts for `tiles` row tiles (of all KV heads) on `workers` SMs, threads or teams:
/// the most lanes that divide the tiles and keep nine tenths of the workers busy. Lanes read the same KV
/// block at the same time, so all lanes but one find it in the cache.
void set_workers(Geometry& geometry, int tiles, int workers);

}  // namespace flashlatent::schedule
