// The ways of making parts. Each has a file of its own with its cuts and the bounds of its merges.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace flashlatent::schedule {

/// How items become parts. Every geometry has this tag; the numbers' order means nothing.
enum class Partition : std::int32_t {
  kLine = 0,   ///< line.h: the line of items is cut where balance wants.
  kWhole = 1,  ///< whole.h: part k is item k, for any lengths.
  /// team_shares.h: teams share an item, more teams where it costs more, and merge in the kernel.
  kTeamShares = 2,
  kEvenShares = 3,      ///< even_shares.h: each item has the same number of shares, for any lengths.
  kSharesByLength = 4,  ///< shares_by_length.h: the longest share of all items is as short as can be.
  kFixedSplits = 5,     ///< fixed_splits.h: the line is cut at multiples of a fixed number of blocks.
  kTurns = 6,           ///< turns.h: part k does whole items k, k + parts, k + 2 parts, ...
};

/// All partitions, for code that walks or tests each.
inline constexpr Partition kPartitions[] = {
    Partition::kLine,           Partition::kWhole,       Partition::kTeamShares, Partition::kEvenShares,
    Partition::kSharesByLength, Partition::kFixedSplits, Partition::kTurns};

/// The name for people and JSON; null for a value that is no partition.
constexpr const char* name_of(Partition partition) {
  switch (partition) {
    case Partition::kLine:
      return "line";
    case Partition::kWhole:
      return "whole";
    case Partition::kTeamShares:
      return "team shares";
    case Partition::kEvenShares:
      return "even shares";
    case Partition::kSharesByLength:
      return "shares by length";
    case Partition::kFixedSplits:
      return "fixed splits";
    case Partition::kTurns:
      return "turns";
  }
  return nullptr;
}

/// Do parts lie on the line, so that a part may have several items?
FLASHLATENT_HOST_DEVICE constexpr bool cuts_line(Partition partition) {
  return partition == Partition::kLine || partition == Partition::kFixedSplits;
}

/// Does the combine step merge the shares of an item? Kernels of these partitions have one share a CTA.
FLASHLATENT_HOST_DEVICE constexpr bool combines_shares(Partition partition) {
  return partition == Partition::kEvenShares || partition == Partition::kSharesByLength;
}

/// Is each part a share of one item?
FLASHLATENT_HOST_DEVICE constexpr bool is_shares(Partition partition) {
  return partition == Partition::kTeamShares || combines_shares(partition);
}

/// May the combine step have something to merge?
FLASHLATENT_HOST_DEVICE constexpr bool may_merge(Partition partition) {
  return cuts_line(partition) || combines_shares(partition);
}

}  // namespace flashlatent::schedule
