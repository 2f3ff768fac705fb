// What calls take by their geometry: for picks between kernels. Plans are cut by schedule::CostModel, whose
// costs of segments and merges are what cuts are worth; a call's time may differ from their sum.
#pragma once

#include "cost/table.h"
#include "plan/call_times.h"
#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent::cost {

/// Lengths are unknown when a kernel is picked. Where they vary, their mean is taken to be this part of the
/// longest; of normal lengths with a deviation of a third it is 0.84 of two and 0.52 of 256.
inline constexpr double kMeanOfLongest = 0.6;

/// A page table that reaches farther than this says little of lengths: an engine's does. The longest is then
/// taken to have as many tokens, where lengths vary.
inline constexpr std::int32_t kFarTokens = 49152;

/// The time of a block for each of several row tiles of a KV head, of its bytes' time: in CTAs of their own,
/// and in one CTA, which reads it once.
inline constexpr double kTilesApart = 0.92, kTilesTogether = 0.75;
/// The least time of a block, while few CTAs read memory, of that while all do.
inline constexpr double kLeastAlone = 0.7;

/// What a kernel is picked by: the geometric mean of both times, so that a pick loses as little if lengths
/// vary as if they do not.
double expected(const schedule::CallTimes& times);

/// Nanoseconds of a kernel whose parts have items, or pieces of items, one after another.
struct ItemTimes {
  double whole_call = 0;  ///< A call of whole items, beside its segments.
  double cut_call = 0;    ///< A call whose items are cut.
  double segment = 0;     ///< A segment beside its blocks.
  double rounding = 0;    ///< Blocks of a cut call are not shared out evenly.
  double merge = 0;       ///< A cut call's.
  /// A call in which each item has two parts or more, and a part one segment (plan/line_shares.h); 0: as of
  /// any cut call.
  double lone_share = 0;
  double merge_of_share = 0;  ///< Added to lone_share for each share of an item.
  double block = 0;           ///< While all parts have work; likewise while few have (block_cost.h) ...
  double block_alone = 0;     ///< ... and, between, while memory is an H200's.
  double block_near = 0;

  /// By a row of costs on a device. per_call: `whole_call` and `cut_call`.
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
/// The call for which g.cost was measured: of a line everything but per_call, per_split and per_merge is in
/// proportion to lengths.
schedule::CallTimes as_cut(const schedule::Geometry& g);

/// `more` in both times.
schedule::CallTimes with(schedule::CallTimes times, double more);

}  // namespace flashlatent::cost
