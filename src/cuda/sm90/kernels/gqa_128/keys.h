// What gqa_128's kernels are compiled for, as data.
#pragma once

#include <array>

#include "flashlatent/dtype.h"

namespace flashlatent::gqa_128 {

/// What rows attend to, and how.
enum class Kind {
  kPlain,
  kTransforms,  ///< With a soft cap or ALiBi.
  kShared,      ///< Rows of several requests against a prefix that they share (host/prefix_units.h).
  /// gqa_128_split: a plan's segments, whose results may be partial; with or without soft cap and ALiBi.
  kSegments,
};

/// The key of a compiled kernel; Config says what the fields mean.
struct InstanceKey {
  Dtype dtype;
  int dim;
  Kind kind;
  bool e4m3 = false;

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

/// Computing warpgroups, 64 rows each. With segments of up to 64 rows both have the same rows. From e4m3
/// there are two at d 64, too: the loading warps need the registers that a third one would take.
constexpr int warpgroups_of(int dim, Kind kind, bool e4m3) {
  return dim == 64 && kind == Kind::kPlain && !e4m3 ? 3 : 2;
}
/// Query rows of a tile.
constexpr int tile_rows_of(const InstanceKey& key) {
  return 64 * warpgroups_of(key.dim, key.kind, key.e4m3);
}
/// Tokens of a block. Segments have few blocks, so blocks are small: 32 KB of keys and values up to d 128.
constexpr int block_tokens_of(int dim, Kind kind) {
  return dim <= (kind == Kind::kSegments ? 64 : 128) ? 128 : 64;
}

/// Stages of the ring. Warpgroups alternate the blocks of a segment, so the number is even: then a stage
/// belongs to one warpgroup during a job. A warpgroup that had missed one use of a stage could not tell from
/// the barrier's parity whether the next use has come.
constexpr int stages_of(int dim, Kind kind, bool e4m3) {
  if (dim == 256 || e4m3) return 2;
  if (kind == Kind::kSegments) return dim == 64 ? 6 : 4;
  return dim == 64 ? 4 : 2;
}

/// Slots for the e4m3 bytes of a block's keys, and as many for its values. Segments have more, since their
/// blocks are smaller and bytes must be in flight while blocks are converted.
constexpr int code_slots_of(int dim, Kind kind) {
  if (kind == Kind::kSegments) return 4;
  return dim == 64 ? 2 : 1;
}

/// Rows of a tile against a shared prefix.
inline constexpr int kSharedTileRows = 128;

/// The most rows of a segment's tile.
inline constexpr int kSegmentTileRows = 64 * warpgroups_of(128, Kind::kSegments, false);

/// d up to 64, 128 and 256, each for three kinds.
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
/// The same for segments.
constexpr std::array<InstanceKey, 3> segment_keys(Dtype dtype) {
  return {{{dtype, 64, Kind::kSegments}, {dtype, 128, Kind::kSegments}, {dtype, 256, Kind::kSegments}}};
}
/// All kinds but kShared from e4m3 keys and values; `dtype` is that of queries. At d 256 shared memory has no
/// room for their bytes.
constexpr std::array<InstanceKey, 6> e4m3_keys(Dtype dtype) {
  return {{{dtype, 64, Kind::kPlain, true},
           {dtype, 64, Kind::kTransforms, true},
           {dtype, 64, Kind::kSegments, true},
           {dtype, 128, Kind::kPlain, true},
           {dtype, 128, Kind::kTransforms, true},
           {dtype, 128, Kind::kSegments, true}}};
}
inline constexpr auto kBf16E4m3Keys = e4m3_keys(Dtype::kBF16), kFp16E4m3Keys = e4m3_keys(Dtype::kF16);
inline constexpr auto kBf16Keys = keys(Dtype::kBF16), kFp16Keys = keys(Dtype::kF16);
inline constexpr auto kBf16SegmentKeys = segment_keys(Dtype::kBF16),
                      kFp16SegmentKeys = segment_keys(Dtype::kF16);

}  // namespace flashlatent::gqa_128
