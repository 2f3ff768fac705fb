// The memory of a rank that its peers write to, byte by byte, for host and device.
//
//   count    how many calls this rank has done (Epoch): exchanges of results and gatherings of queries
//   words    [parity][sender][lines][32]
//
// A pack is neighbouring data of a row: 16 elements of a result with the row's lse, or 48 bytes of a query.
// It travels as some words of 16 bytes, each with 12 bytes of the pack and a tag that says to which call it
// belongs. A word is written and read in one access, so a reader that finds the tag has the data too: the
// message is its own flag. (The idea is that of NCCL's LL protocol.) Packs are counted over all rows of a
// rank, whatever the shapes; those of a warp lie in as many lines as a pack has words, so that each of its
// stores is 512 bytes.
//
// Why two parities are enough. A rank R sends call e + 2 after its launch of e + 1 has ended. That launch has
// read a word of e + 1 from every peer P. P sent it after its launch of e had ended, and so had read
// everything of e that R overwrites now. All ranks make the same calls, and a call without rows is none, so
// each call has a word from each rank to each. What a call is does not matter: gatherings alone, exchanges
// alone and both in any order are the same, as long as a half is at one place for both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace flashlatent::exchange {

/// Sixteen neighbouring elements of a row of results, and the row's lse: 36 bytes, all used.
struct ResultPack {
  static constexpr int kExtent = 16;  // elements of 16 bits
  static constexpr int kWords = 3;
};
/// 48 bytes of a row of queries.
struct QueryPack {
  static constexpr int kExtent = 48;  // bytes
  static constexpr int kWords = 4;
};

inline constexpr int kWordBytes = 16;
inline constexpr int kWordData = 12;
inline constexpr int kGroup = 32;  // words of a line, packs of a warp
inline constexpr std::size_t kLineBytes = std::size_t{kGroup} * kWordBytes;
inline constexpr std::size_t kCountBytes = 256;

/// The number of a call. Every CTA of a launch reads the count, and then adds its arrivals. All CTAs together
/// add one exchange, and some of them add less, so all read the same number.
struct Epoch {
  static constexpr int kArrivalBits = 12;
  static constexpr int kMostCtas = 1 << kArrivalBits;

  std::uint64_t number;  // 1 of the first

  FLASHLATENT_HOST_DEVICE explicit Epoch(std::uint64_t count) : number((count >> kArrivalBits) + 1) {}
  FLASHLATENT_HOST_DEVICE static std::uint64_t arrivals(int cta, int ctas) {
    return cta == 0 ? kMostCtas - (ctas - 1) : 1;
  }

  FLASHLATENT_HOST_DEVICE int parity() const { return static_cast<int>(number % 2); }
  /// Memory that was never written has tag 0, which no call has. Other tags of a parity come again after
  /// 2^32 calls; a word that was not written since would have to be read in just that one.
  FLASHLATENT_HOST_DEVICE std::uint32_t tag() const {
    const auto low = static_cast<std::uint32_t>(number);
    return low == 0 ? 1 : low;  // an odd one is of the other parity
  }
};

template <class Pack>
struct Layout {
  int world;
  int packs;          // in a row
  std::size_t lines;  // of words from one rank that there is room for, whatever the packs

  /// The first word of a pack that `sender` writes in `receiver`'s memory; the others are `kGroup` words on.
  FLASHLATENT_HOST_DEVICE std::size_t word(int parity, int sender, int receiver, int pack) const {
    const int place = sender < receiver ? sender : sender - 1;  // nobody sends to itself
    const std::size_t half = (std::size_t(parity) * (world - 1) + place) * lines;
    const std::size_t line = half + std::size_t(pack / kGroup) * Pack::kWords;
    return kCountBytes + (line * kGroup + pack % kGroup) * kWordBytes;
  }
  std::size_t bytes() const { return kCountBytes + 2 * (std::size_t(world) - 1) * lines * kLineBytes; }
  /// How many rows of a rank fit. Packs of all peers are counted in 30 bits, so that the number of a thread's
  /// next pack is an int.
  std::size_t rows() const {
    const std::size_t most = (std::size_t{1} << 30) / (std::size_t(world) - 1);
    return std::min(lines / Pack::kWords * kGroup, most) / static_cast<std::size_t>(std::max(packs, 1));
  }
};

template <class Pack>
int packs_of(int extent) {
  return (extent + Pack::kExtent - 1) / Pack::kExtent;
}

/// The smallest layout for `rows` rows of a rank, each of the given elements or bytes.
template <class Pack>
Layout<Pack> layout_for(int rows, int extent, int world) {
  const int packs = packs_of<Pack>(extent);
  return {world, packs, (std::size_t(rows) * packs + kGroup - 1) / kGroup * Pack::kWords};
}

/// What `bytes` are, among two ranks or more: the same in calls of any shapes and packs.
template <class Pack>
Layout<Pack> layout_of(std::size_t bytes, int extent, int world) {
  const std::size_t words = bytes > kCountBytes ? bytes - kCountBytes : 0;
  return {world, packs_of<Pack>(extent), words / (2 * (std::size_t(world) - 1) * kLineBytes)};
}

}  // namespace flashlatent::exchange
