// The memory of a rank that its peers write to in an exchange, byte by byte, for host and device.
//
//   count    how many exchanges this rank has done (Epoch)
//   words    [parity][sender][32 packs][3][32]
//
// A pack is 16 neighbours of a row and the row's lse. It travels as three words of 16 bytes, each 12 bytes of
// the pack and a tag that says which exchange it is of. A word is written and read as one, so who finds the
// tag has the rest: the message is its own flag. (The idea is that of NCCL's LL protocol.) Packs are counted
// over all rows of a rank, whatever the shapes; those of a warp lie so that each of its stores is 512 bytes.
//
// Why two parities are enough. A rank R sends exchange e + 2 after its launch of e + 1 has ended. That launch
// has read a word of e + 1 from every peer P. P sent it after its launch of e had ended, and so had read
// everything of e that R overwrites now. All ranks make the same calls, and a call without rows is none, so
// each exchange has a word from each rank to each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define FLASHLATENT_EXCHANGE_FUNCTION __host__ __device__ __forceinline__
#else
#define FLASHLATENT_EXCHANGE_FUNCTION inline
#endif

namespace flashlatent::exchange {

inline constexpr int kPackElements = 16;  // with an lse 36 bytes: three words, without a byte to spare
inline constexpr int kPackWords = 3;
inline constexpr int kWordBytes = 16;
inline constexpr int kGroup = 32;  // packs
inline constexpr std::size_t kCountBytes = 256;

/// Which exchange it is. Every CTA of a launch reads the count, and adds its arrivals when it has. What all
/// of them add is one exchange, and what some of them add is less, so all read the same number.
struct Epoch {
  static constexpr int kArrivalBits = 12;
  static constexpr int kMostCtas = 1 << kArrivalBits;

  std::uint64_t number;  // 1 of the first

  FLASHLATENT_EXCHANGE_FUNCTION explicit Epoch(std::uint64_t count) : number((count >> kArrivalBits) + 1) {}
  FLASHLATENT_EXCHANGE_FUNCTION static std::uint64_t arrivals(int cta, int ctas) {
    return cta == 0 ? kMostCtas - (ctas - 1) : 1;
  }

  FLASHLATENT_EXCHANGE_FUNCTION int parity() const { return static_cast<int>(number % 2); }
  /// Memory that was never written has tag 0, which no exchange has. Other tags of a parity come again after
  /// 2^32 exchanges; a word that was not written since would have to be read in just that one.
  FLASHLATENT_EXCHANGE_FUNCTION std::uint32_t tag() const {
    const auto low = static_cast<std::uint32_t>(number);
    return low == 0 ? 1 : low;  // an odd one is of the other parity
  }
};

struct Layout {
  int world, v_dim;
  std::size_t groups;  // of packs from one rank that there is room for

  /// In a row.
  FLASHLATENT_EXCHANGE_FUNCTION int packs() const { return (v_dim + kPackElements - 1) / kPackElements; }
  /// The first word of a pack that `sender` writes in `receiver`'s memory; the others are `kGroup` words on.
  FLASHLATENT_EXCHANGE_FUNCTION std::size_t word(int parity, int sender, int receiver, int pack) const {
    const int place = sender < receiver ? sender : sender - 1;  // nobody sends to itself
    const std::size_t group = (std::size_t(parity) * (world - 1) + place) * groups + pack / kGroup;
    return kCountBytes + (group * kPackWords * kGroup + pack % kGroup) * kWordBytes;
  }
  FLASHLATENT_EXCHANGE_FUNCTION static constexpr std::size_t group_bytes() {
    return std::size_t{kGroup} * kPackWords * kWordBytes;
  }
  std::size_t bytes() const { return kCountBytes + 2 * (std::size_t(world) - 1) * groups * group_bytes(); }
  /// How many rows of a rank there is room for. Packs are counted in 30 bits, so that a thread's next is an
  /// int.
  std::size_t rows() const {
    return std::min(groups * kGroup, std::size_t{1} << 30) / static_cast<std::size_t>(std::max(packs(), 1));
  }
};

/// The least layout for `rows` rows of a rank.
inline Layout layout_for(int rows, int v_dim, int world) {
  Layout layout{world, v_dim, 0};
  layout.groups = (std::size_t(rows) * layout.packs() + kGroup - 1) / kGroup;
  return layout;
}

/// What `bytes` are, among two ranks or more: the same in calls of any shapes.
inline Layout layout_of(std::size_t bytes, int v_dim, int world) {
  const std::size_t words = bytes > kCountBytes ? bytes - kCountBytes : 0;
  return {world, v_dim, words / (2 * (std::size_t(world) - 1) * Layout::group_bytes())};
}

}  // namespace flashlatent::exchange
