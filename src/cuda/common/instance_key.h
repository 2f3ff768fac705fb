// What dense kernels are compiled for, as data: for those who choose one, in any build, and for the files of
// instances, which are held to it (of_keys()).
#pragma once

#include <array>

#include "flashlatent/dtype.h"

namespace flashlatent::cuda {

/// How a kernel gets its KV blocks.
enum class Loading {
  kBoxes,   ///< Boxes of pages by TMA.
  kTokens,  ///< Token by token: small or odd pages, indices.
  kFp8,     ///< Token by token from an fp8_656 or e4m3 cache, dequantised.
  // By two lists of tokens (parts/listed_tokens.cuh), whatever names them.
  kFp8_584,       ///< fp8_584.
  kListedFp8,     ///< fp8_656 and e4m3.
  kListedTokens,  ///< bf16 and fp16.
};

/// What a kernel is compiled for.
struct InstanceKey {
  Dtype dtype;  ///< kU8: of an e4m3 cache.
  int qk_dim;
  int v_dim;
  int tile_rows;
  Loading loading;
  int cluster = 1;  ///< Row tiles, and CTAs, that share KV blocks.
  int team = 1;     ///< CTAs that share the blocks of a segment.
  bool turns =
      false;  ///< Sparse prefill: items come in turn (schedule::Partition::kTurns), largest scores are told.

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

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

/// Two dtypes, each by boxes and token by token.
constexpr std::array<InstanceKey, 4> plain_keys(int qk_dim, int v_dim, int tile_rows, int team = 1) {
  return {{{Dtype::kBF16, qk_dim, v_dim, tile_rows, Loading::kBoxes, 1, team},
           {Dtype::kBF16, qk_dim, v_dim, tile_rows, Loading::kTokens, 1, team},
           {Dtype::kF16, qk_dim, v_dim, tile_rows, Loading::kBoxes, 1, team},
           {Dtype::kF16, qk_dim, v_dim, tile_rows, Loading::kTokens, 1, team}}};
}

}  // namespace flashlatent::cuda
