// What dense kernels are compiled for, as data. Every build chooses by these keys, and files of instances are
// checked against them (of_keys()).
#pragma once

#include <array>

#include "flashlatent/dtype.h"

namespace flashlatent::cuda {

/// How a kernel loads KV blocks.
enum class Loading {
  kBoxes,   ///< TMA boxes of pages.
  kTokens,  ///< Token by token: small or odd pages, indices.
  kFp8,     ///< Token by token from an fp8_656 or e4m3 cache, converted to bf16.
  // By lists of tokens (walk/listed_tokens.cuh), from page tables or indices:
  kRopeRecords,   ///< fp8_584.
  kRecords,       ///< mxfp8_528, nvfp4_288 and fp8_528; each list says which.
  kListedFp8,     ///< fp8_656 and e4m3.
  kListedTokens,  ///< bf16 and fp16.
};

/// What a kernel is compiled for.
struct InstanceKey {
  Dtype dtype;  ///< kU8: an e4m3 cache.
  int qk_dim;
  int v_dim;
  int tile_rows;
  Loading loading;
  int cluster = 1;  ///< CTAs, each with a row tile, that share KV blocks.
  int team = 1;     ///< CTAs that share the blocks of a segment; 0: as many as the geometry says.
  /// Sparse prefill: items by schedule::Partition::kTurns, and the largest scores are written.
  bool turns = false;
  bool edges = false;  ///< Has it the edges of the layer in its own passes?

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

/// The same of sparse prefill.
constexpr InstanceKey in_turn(InstanceKey key) {
  key.turns = true;
  return key;
}

/// One table of several.
template <class Row, std::size_t... kCounts>
constexpr auto joined(const std::array<Row, kCounts>&... tables) {
  std::array<Row, (kCounts + ...)> all = {};
  std::size_t count = 0;
  const auto add = [&](const auto& table) {
    for (const Row& row : table) all[count++] = row;
  };
  (add(tables), ...);
  return all;
}

/// bf16 and fp16, each by boxes and token by token.
constexpr std::array<InstanceKey, 4> plain_keys(int qk_dim, int v_dim, int tile_rows, int team = 1) {
  return {{{Dtype::kBF16, qk_dim, v_dim, tile_rows, Loading::kBoxes, 1, team},
           {Dtype::kBF16, qk_dim, v_dim, tile_rows, Loading::kTokens, 1, team},
           {Dtype::kF16, qk_dim, v_dim, tile_rows, Loading::kBoxes, 1, team},
           {Dtype::kF16, qk_dim, v_dim, tile_rows, Loading::kTokens, 1, team}}};
}

}  // namespace flashlatent::cuda
