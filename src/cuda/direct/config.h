// Compile-time shape of the direct kernel.
#pragma once

#include <cstdint>

#include "core/fp8_656.h"

namespace flashlatent::direct {

struct Config {
  static constexpr int kRows = 16;  // query rows a tile, wgmma's N
  // Those that compute: each scores a block in turn, and has a part of the output of all. Two take 0.122 ms
  // where four take 0.111 (dense, b 128, 16 heads, 4,096 tokens).
  static constexpr int kWarpgroups = 4;
  static constexpr int kVDim = fp8_656::kLatentDim;
  static constexpr int kPartDim = kVDim / kWarpgroups;
  static constexpr int kPartChunks = kPartDim / 64;  // products with M = 64
  static constexpr int kPartGroups = fp8_656::kGroups / kWarpgroups;

  static constexpr int kComputeThreads = kWarpgroups * 128;
  static constexpr int kThreads = kComputeThreads + 128;
  static constexpr int kLaunchRegisters = 96;  // what a launch gets
  static constexpr int kLoaderRegisters = 32;
  static constexpr int kComputeRegisters = 112;
  static_assert(kWarpgroups * kComputeRegisters + kLoaderRegisters == (kWarpgroups + 1) * kLaunchRegisters);

  static constexpr int kBlockBytes = 64 * fp8_656::kTokenBytes;
  static constexpr int kTileBytes = kRows * 128;  // 64 columns of Q, or 64 tokens of P
  static constexpr int kQueryTiles = kVDim / 64 + 1;
  static constexpr int kReservedBytes = 9 * 1024;  // statistics, barriers
  static constexpr int kSlots =
      (227 * 1024 - (kQueryTiles + kWarpgroups) * kTileBytes - kReservedBytes) / kBlockBytes;
  static_assert(kSlots >= 4, "four blocks may be worked on");
};

}  // namespace flashlatent::direct
