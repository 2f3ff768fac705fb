// What the prefill kernel is compiled for, as data.
#pragma once

#include <array>

#include "flashlatent/dtype.h"

namespace flashlatent::prefill {

/// What rows attend to, and how.
enum class Kind {
  kPlain,
  kTransforms,  ///< With a soft cap or ALiBi.
  kShared,      ///< Rows are of several requests, against a prefix that they share (common/prefix_units.h).
};

/// What a kernel is compiled for; Config says what the fields mean.
struct InstanceKey {
  Dtype dtype;
  int dim;
  Kind kind;

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

/// Warpgroups that compute, 64 rows each.
constexpr int warpgroups_of(int dim, Kind kind) {
  return dim == 64 && kind == Kind::kPlain ? 3 : 2;
}
/// Query rows a tile.
constexpr int tile_rows_of(const InstanceKey& key) {
  return 64 * warpgroups_of(key.dim, key.kind);
}
constexpr int block_tokens_of(int dim) {
  return dim <= 128 ? 128 : 64;
}

/// Rows of a tile that share a prefix.
inline constexpr int kSharedTileRows = 128;

/// d up to 64, 128, 256, each of three kinds.
constexpr std::array<InstanceKey, 9> keys(Dtype dtype) {
  return {{{dtype, 64, Kind::kPlain},
           {dtype, 64, Kind::kTransforms},
           {dtype, 64, Kind::kShared},
           {dtype, 128, Kind::kPlain},
           {dtype, 128, Kind::kTransforms},
           {dtype, 128, Kind::kShared},
           {dtype, 256, Kind::kPlain},
           {dtype, 256, Kind::kTransforms},
           {dtype, 256, Kind::kShared}}};
}
inline constexpr auto kBf16Keys = keys(Dtype::kBF16), kFp16Keys = keys(Dtype::kF16);

}  // namespace flashlatent::prefill
