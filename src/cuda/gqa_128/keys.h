// What gqa_128 is compiled for, as data.
#pragma once

#include <array>

#include "flashlatent/dtype.h"

namespace flashlatent::gqa_128 {

/// What rows attend to, and how.
enum class Kind {
  kPlain,
  kTransforms,  ///< With a soft cap or ALiBi.
  kShared,      ///< Rows are of several requests, against a prefix that they share (common/prefix_units.h).
  kSegments,    ///< The plan's segments, whose results may be partial (`gqa_128_split`); soft cap, ALiBi or
                ///< none.
};

/// What a kernel is compiled for; Config says what the fields mean.
struct InstanceKey {
  Dtype dtype;
  int dim;
  Kind kind;

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

/// Warpgroups that compute, 64 rows each; of segments of up to 64 rows both have the same.
constexpr int warpgroups_of(int dim, Kind kind) {
  return dim == 64 && kind == Kind::kPlain ? 3 : 2;
}
/// Query rows a tile.
constexpr int tile_rows_of(const InstanceKey& key) {
  return 64 * warpgroups_of(key.dim, key.kind);
}
/// Decode is cut into parts of few blocks, which are small therefore: 32 KB of keys and values up to d 128.
constexpr int block_tokens_of(int dim, Kind kind) {
  return dim <= (kind == Kind::kSegments ? 64 : 128) ? 128 : 64;
}

/// Blocks that there is room for. Of segments, whose warpgroups take blocks in turns, an even number: a stage
/// is one warpgroup's then as long as a job lasts. Who had not seen one of its uses could not tell by a
/// barrier's parity whether the next one has come.
constexpr int stages_of(int dim, Kind kind) {
  if (dim == 256) return 2;
  if (kind == Kind::kSegments) return dim == 64 ? 6 : 4;
  return dim == 64 ? 4 : 2;
}

/// Rows of a tile that share a prefix.
inline constexpr int kSharedTileRows = 128;

/// Rows of a segment's tile, at most.
inline constexpr int kSegmentTileRows = 64 * warpgroups_of(128, Kind::kSegments);

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
/// The same of segments.
constexpr std::array<InstanceKey, 3> segment_keys(Dtype dtype) {
  return {{{dtype, 64, Kind::kSegments}, {dtype, 128, Kind::kSegments}, {dtype, 256, Kind::kSegments}}};
}
inline constexpr auto kBf16Keys = keys(Dtype::kBF16), kFp16Keys = keys(Dtype::kF16);
inline constexpr auto kBf16SegmentKeys = segment_keys(Dtype::kBF16),
                      kFp16SegmentKeys = segment_keys(Dtype::kF16);

}  // namespace flashlatent::gqa_128
