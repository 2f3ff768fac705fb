// The warp that loads keys to shared memory. Adjacent keys of a page are one copy: a TMA box for fp8_132
// keys, whose rows of 128 bytes are swizzled as wgmma reads them; a bulk copy for mxfp4_68 keys, which
// threads read.
#pragma once

#include "cuda/sm90/kernels/index_topk/smem_layout.cuh"
#include "cuda/sm90/kernels/index_topk/walk.cuh"
#include "cuda/sm90/load/ring_place.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::cuda::indexer {

/// 40 MB of keys: with scores they fit in L2, so a launch that reads them again finds them.
inline constexpr int kMostKeysThatStay = 40'000'000 / 132;

/// Arrivals at a full barrier: one of each lane, when its scales have landed, and one for plain stores.
inline constexpr int kLoaderArrivals = 33;

/// A lane's key of 32. The page number is read only where it is used, two tiles after its load began, so that
/// nothing waits for it.
struct KeyPlace {
  int page = -1;
  int offset = 0;
  int left = 0;  ///< Keys that are seen from this one on.
};

__device__ __forceinline__ KeyPlace find_key(const IndexCall& call, const Group& group, int place) {
  std::int64_t position = place;
  if (call.candidates > 0) {
    if (place >= call.span) return {};
    position = call.position(call.blocks.at(group.request, group.token), place);
  }
  if (position < 0 || position >= group.most) return {};
  const auto at = static_cast<unsigned>(position), size = static_cast<unsigned>(call.page_size);
  return {call.block_table[group.request * call.table_stride + at / size], static_cast<int>(at % size),
          group.most - static_cast<int>(at)};
}

template <class Config, IndexFormat kFormat>
class Loader {
 public:
  /// `map`: the map of fp8_132 keys, with boxes of keys_of_run() keys.
  __device__ __forceinline__ Loader(const ScoreArguments& arguments, const CUtensorMap& map, const Run& run,
                                    std::uint8_t* ring, Fixed<Config>& fixed)
      : call_(arguments.call),
        map_(map),
        ring_(ring),
        fixed_(fixed),
        ahead_(arguments, run),
        tiles_(run.tiles),
        reads_once_(!arguments.call.ragged && arguments.groups_of_request == 1 &&
                    run.all_tiles > kMostKeysThatStay / kTile) {}

  __device__ __forceinline__ void load() {
    switch (keys_of_run(call_)) {
      case 32:
        return load_runs<32>();
      case 8:
        return load_runs<8>();
      default:
        return load_apart();
    }
  }

 private:
  static constexpr int kTile = Config::kTile, kBytes = index_keys::data_bytes(kFormat), kParts = kTile / 32,
                       kStages = Config::stages(kFormat);

  /// Page numbers are loaded two tiles before they are used. `find` fills a Place, `copy` copies its tile.
  template <class Place, class Find, class Copy>
  __device__ __forceinline__ void load_tiles(Find find, Copy copy) const {
    Place even, odd;
    find(even);
    find(odd);
    for (int n = 0; n < tiles_; n += 2) {
      copy(n, even);
      find(even);
      if (n + 1 == tiles_) break;
      copy(n + 1, odd);
      find(odd);
    }
  }

  /// Runs of neighbouring tiles, one a lane.
  struct Batch {
    KeyPlace key;
    int tiles = 0;
  };

  /// A lone warp takes 6 to 11 clocks for each instruction. So it finds the runs of several tiles at once,
  /// and has few instructions a tile.
  template <int kRun>
  __device__ __forceinline__ void load_runs() {
    Batch batch, next;
    find_runs<kRun>(batch);
#pragma unroll 1
    while (batch.tiles > 0) {
      copy_runs<kRun>(batch, next);
      batch = next;
    }
  }

  template <int kRun>
  __device__ __forceinline__ void find_runs(Batch& batch) {
    constexpr int kTilesOfBatch = 32 / (kTile / kRun);
    batch.tiles = 0;
    if (ahead_.done()) return;
    batch.tiles = min(kTilesOfBatch, ahead_.tiles_here());
    batch.key = lane_ < batch.tiles * (kTile / kRun)
                    ? find_key(call_, ahead_.group(), ahead_.first_place() + lane_ * kRun)
                    : KeyPlace{};
    ahead_.skip(batch.tiles);
  }

  /// Finds the next batch behind the first tile's copies: a launch waits for the first keys.
  template <int kRun>
  __device__ __forceinline__ void copy_runs(const Batch& batch, Batch& next) {
    constexpr int kRuns = kTile / kRun;  // of a tile
    constexpr std::uint32_t kMask = 0xFFFFFFFF >> (32 - kRuns);
    const KeyPlace& key = batch.key;
    const bool there = key.page >= 0 && key.page < call_.pages;
    std::uint32_t left = __ballot_sync(0xFFFFFFFF, there);
    const std::uint32_t exists = !there ? 0 : key.left >= kRun ? 0xFFFFFFFF : (1U << key.left) - 1;
    const std::uint8_t* page = call_.index_cache + key.page * call_.page_stride;
    const std::uint8_t* data = page + index_keys::data_offset(kFormat, key.offset);
    const std::uint8_t* scales = page + index_keys::scale_offset(kFormat, call_.page_size, key.offset);
    const int my_tile = lane_ / kRuns, run = lane_ % kRuns;
#pragma unroll 1
    for (int tile = 0; tile < batch.tiles; ++tile, place_.next()) {
      const int stage = place_.index();
      ptx::Barrier& full = fixed_.full[stage];
      ptx::wait(fixed_.empty[stage], place_.parity() ^ 1);
      // Copies first: bytes may land before they are expected, since the phase also waits for the arrivals.
      if (my_tile == tile && there) {
        std::uint8_t* to = ring_ + (stage * kTile + run * kRun) * kBytes;
        std::uint32_t* scales_to = &fixed_.scales[stage][run * kRun];
        constexpr std::uint32_t kScales = kRun * index_keys::kScaleBytes;
        if (reads_once_) {
          if constexpr (kFormat == IndexFormat::kFp8_132) {
            ptx::copy_box(to, map_, 0, key.offset, 0, key.page, full, policy_);
          } else {
            ptx::copy_bytes(to, data, kRun * kBytes, full, policy_);
          }
          ptx::copy_bytes(scales_to, scales, kScales, full, policy_);
        } else {
          if constexpr (kFormat == IndexFormat::kFp8_132) {
            ptx::copy_box(to, map_, 0, key.offset, 0, key.page, full);
          } else {
            ptx::copy_bytes(to, data, kRun * kBytes, full);
          }
          ptx::copy_bytes(scales_to, scales, kScales, full);
        }
      }
      if (my_tile == tile) {
        if constexpr (kRun == 32) {
          fixed_.exists[stage][run] = exists;
        } else {
          reinterpret_cast<std::uint8_t*>(fixed_.exists[stage])[run] = static_cast<std::uint8_t>(exists);
        }
      }
      __syncwarp();
      if (lane_ == 0) {
        ptx::expect(full, __popc(left & kMask) * kRun * (kBytes + index_keys::kScaleBytes));
        ptx::arrive(full, kLoaderArrivals);
      }
      if constexpr (kRuns < 32) left >>= kRuns;
      if (tile == 0) find_runs<kRun>(next);
    }
  }

  /// For keys that may lie apart: each lane has one of 32.
  __device__ __forceinline__ void load_apart() {
    struct Keys {
      KeyPlace of_part[kParts];
    };
    load_tiles<Keys>([&](Keys& keys) { find(keys.of_part); },
                     [&](int n, const Keys& keys) { copy(n, keys.of_part); });
    ptx::copy_commit();
    ptx::copy_wait<0>();
  }

  __device__ __forceinline__ int wait_for_stage(int n) {
    const int stage = n % kStages;
    if (n >= kStages) ptx::wait(fixed_.empty[stage], (n / kStages - 1) & 1);
    return stage;
  }

  /// Starts loading the page numbers of the next tile, if there is one.
  __device__ __forceinline__ void find(KeyPlace (&keys)[kParts]) {
    if (ahead_.done()) return;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      keys[i] = find_key(call_, ahead_.group(), ahead_.first_place() + i * 32 + lane_);
    }
    ahead_.next();
  }

  __device__ __forceinline__ void copy(int n, const KeyPlace (&keys)[kParts]) {
    const int stage = wait_for_stage(n);
    std::uint32_t exists[kParts];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      exists[i] = __ballot_sync(0xFFFFFFFF, keys[i].page >= 0 && keys[i].page < call_.pages);
      count += __popc(exists[i]);
    }
    if (lane_ == 0) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) fixed_.exists[stage][i] = exists[i];
      ptx::expect(fixed_.full[stage], count * kBytes);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (exists[i] >> lane_ & 1) copy_key(stage, i * 32 + lane_, keys[i]);
    }
    __syncwarp();
    ptx::copy_arrive(fixed_.full[stage]);
    if (lane_ == 0) ptx::arrive(fixed_.full[stage]);
  }

  /// Copies a lane's key, 16 bytes at a time, swizzled as TMA would have swizzled it.
  __device__ __forceinline__ void copy_key(int stage, int key, const KeyPlace& place) {
    const std::uint8_t* page = call_.index_cache + place.page * call_.page_stride;
    ptx::copy_4_bytes(ptx::shared_address(&fixed_.scales[stage][key]),
                      page + index_keys::scale_offset(kFormat, call_.page_size, place.offset));
    const std::uint8_t* from = page + index_keys::data_offset(kFormat, place.offset);
    std::uint8_t* to = ring_ + (stage * kTile + key) * kBytes;
    if constexpr (kFormat == IndexFormat::kFp8_132) {
#pragma unroll 1
      for (int unit = 0; unit < kBytes / 16; ++unit) {
        ptx::copy_bytes(to + (unit ^ (key & 7)) * 16, from + unit * 16, 16, fixed_.full[stage]);
      }
    } else {
      ptx::copy_bytes(to, from, kBytes, fixed_.full[stage]);
    }
  }

  const IndexCall& call_;
  const CUtensorMap& map_;
  std::uint8_t* ring_;
  Fixed<Config>& fixed_;
  Walk<Config> ahead_;
  const int tiles_;
  /// Keys of one group of query tokens make way in L2 before scores do, which are read soon, unless all keys
  /// may stay there.
  const bool reads_once_;
  const std::uint64_t policy_ = ptx::evict_first_policy();
  sm90::RingPlace<kStages> place_;
  const int lane_ = threadIdx.x % 32;
};

}  // namespace flashlatent::cuda::indexer
