// What calls take by their geometry, for picks between kernels. Plans are cut by schedule::CostModel, whose
// costs of segments and merges say what a cut is worth; a call's time may differ from their sum.
#pragma once

#include "cost/table.h"
#include "plan/call_times.h"
#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent::cost {

/// Lengths are unknown when a kernel is picked. If they vary, their mean is taken to be this fraction of the
/// longest. For normal lengths with a deviation of a third it is 0.84 with 2 requests and 0.52 with 256.
inline constexpr double kMeanOfLongest = 0.6;

/// A page table that reaches farther than this, as an engine's does, says little about lengths. With varied
/// lengths the longest request is then taken to have so many tokens.
inline constexpr std::int32_t kFarTokens = 49152;

/// The time of a block for each of several row tiles of a KV head, as a fraction of its bytes' time: with a
/// CTA for each tile, and with one CTA, which reads the block once.
inline constexpr double kTilesApart = 0.92, kTilesTogether = 0.75;
/// The least time of a block while few CTAs read memory, as a fraction of its time while all do.
inline constexpr double kLeastAlone = 0.7;

/// The time by which kernels are picked: the geometric mean of both times, so that a pick loses as little if
/// lengths vary as if they do not.
double expected(const schedule::CallTimes& times);

/// Nanoseconds of a kernel whose parts have items, or splits of items, one after another.
struct ItemTimes {
  double whole_call = 0;  ///< A call of whole items, beside its segments.
  double cut_call = 0;    ///< A call whose items are cut.
  double segment = 0;     ///< A segment beside its blocks.
  double rounding = 0;    ///< Added to a cut call, whose blocks cannot be divided evenly.
  double merge = 0;       ///< A merge of a cut call.
  /// A call in which each item has two parts or more, and a part one segment (plan/line_shares.h); 0: as any
  /// cut call.
  double lone_share = 0;
  double merge_of_share = 0;  ///< Added to lone_share for each share of an item.
  double block = 0;           ///< While all parts have work; likewise while few have (block_cost.h) ...
  double block_alone = 0;     ///< ... and, between, while memory is an H200's.
  double block_near = 0;

  /// From a row of costs on a device. per_call is both `whole_call` and `cut_call`.
  static ItemTimes of(const Costs& costs, const schedule::Workers& workers);
};

/// Parts with a share, if a line of items of the greatest length gives each part one share of one item; else
/// 0.
std::int32_t single_shares(const schedule::Geometry& g);

enum class Items { kWhole, kCut, kFaster };

/// A call of a line, or of whole items. `parts`: how many the device does at once.
schedule::CallTimes of_line(const schedule::Geometry& g, const ItemTimes& times, Items items, int parts);
/// A call in which each part has one share of an item, by g.cost.
schedule::CallTimes of_shares(const schedule::Geometry& g);
/// A call by teams; `costs`: on the device.
schedule::CallTimes of_team_parts(const schedule::Geometry& g, const TeamCosts& costs);
/// The call for which g.cost was measured: on a line everything but per_call, per_split and per_merge is
/// proportional to lengths.
schedule::CallTimes as_cut(const schedule::Geometry& g);

/// Adds `more` to both times.
schedule::CallTimes with(schedule::CallTimes times, double more);

}  // namespace flashlatent::cost
