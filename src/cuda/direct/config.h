// Compile-time shape of the direct kernel.
#pragma once

#include <cstdint>

#include "core/fp8_656.h"

namespace flashlatent::direct {

/// kRows_ (16 or 64): query rows a tile, wgmma's N.
template <int kRows_>
struct Config {
  static constexpr int kRows = kRows_;
  static constexpr int kVDim = fp8_656::kGroups * fp8_656::kGroup;
  static constexpr int kHalfDim = kVDim / 2;        // of the output, a warpgroup's
  static constexpr int kHalfChunks = kHalfDim / 64;  // products with M = 64

  static constexpr int kComputeThreads = 256;  // two warpgroups
  static constexpr int kThreads = kComputeThreads + 128;
  static constexpr int kLoaderRegisters = 40;
  static constexpr int kComputeRegisters = 232;
  static_assert(2 * kComputeRegisters + kLoaderRegisters == 3 * 168);  // what a launch gets

  static constexpr int kBlockBytes = 64 * fp8_656::kTokenBytes;
  static constexpr int kTileBytes = kRows * 128;  // 64 columns of Q, or 64 tokens of P
  static constexpr int kQueryTiles = kVDim / 64 + 1;
  static constexpr int kReservedBytes = 9 * 1024;  // statistics, barriers
  static constexpr int kSlots =
      (227 * 1024 - (kQueryTiles + 2) * kTileBytes - kReservedBytes) / kBlockBytes;  // 4 and 3
  static_assert(kSlots >= 3, "two blocks are worked on, one is under way");
};

}  // namespace flashlatent::direct
