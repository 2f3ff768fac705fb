// What the loaders of an fp8_656 or e4m3 cache have in common: which tokens a block has, how values become
// bf16, and how tiles are announced.
//
// A block is loaded in five units: the RoPE part (one tile; fp8_656's as it is), then four groups of 128
// elements (two tiles each). Four lanes (a quad) load a token: half a unit in a step, 16 bytes a lane. No
// register in a loop over blocks may spill: a reload would wait for the loads of KV that are under way.
//
// A value costs 3 instructions (docs/log/fp8.md): e4m3 to fp16 by pairs, fp16 to fp32, times the
// scale, fp32 to bf16 by pairs. This is right for any fp32 scale, and NaN stays NaN.
#pragma once

#include <type_traits>
#include <utility>

#include "cuda/sm90/load/fp8_rows.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/kv_tokens.cuh"

namespace flashlatent::sm90 {

/// For kWarps loading warps. kCluster = 2: CTAs that hold two tiles of query rows of the same tokens each
/// convert half of a block and give it to the other ("crossover"). The pipe takes RoPE first, then a block's
/// other columns in order.
///
/// All lanes arrive on barriers. That takes mla_64_pingpong no measurable time, and lets racecheck see whose
/// writes a barrier orders. In a cluster one lane of a warp fences, then copies the warp's rows. Otherwise
/// the reader of a tile fences (kReaderFences): a fence of the loader would be a memory barrier, which waits
/// for the loads that are under way.
///
/// Tokens are located in three steps, each one block ahead of the next step: look_up() loads a block's
/// entries; locate() computes places from them, one token for each lane; then a loader passes the places to
/// the lanes that load the rows. kHasRegisters: what is needed once a block is kept in registers.
template <int kWarps, int kCluster, bool kHasRegisters, class Format = Fp8_656Rows>
class Fp8Tokens {
 public:
  static constexpr int kThreads = 32 * kWarps;
  __device__ __forceinline__ static int threads(const CacheArguments&) { return kThreads; }
  static constexpr int kArrivals = kThreads;
  static constexpr bool kZeroesDead = true;
  static constexpr bool kReaderFences = kCluster == 1;
  static constexpr bool kAllReadersArrive = false;
  static constexpr bool kPairs = true;
  static constexpr bool kLeavesScale = kHasCacheScale<Format>;

  __device__ __forceinline__ static void prepare(const CUtensorMap&) {}

  __device__ __forceinline__ void look_ahead(const BlockRange& range) {
    keep(kept_.next_entries, range.entries);
    keep(kept_.next_length, range.length);
    keep(kept_.next_begin, range.begin);
    keep(kept_.next_end, range.end);
    __syncwarp();
    if (block_ == end_) look_up();
  }

 protected:
  static constexpr int kUnits = (Format::kTiles + 1) / 2;
  static constexpr bool kRopeIsBf16 = Format::kRopeTile == 0;
  static constexpr int kRopeBytes = kRopeIsBf16 ? 32 : 16;  // for each lane of the quad
  static constexpr int kOwnRows = kTileRows / kCluster;
  static constexpr int kWarpRows = kOwnRows / kWarps;
  static_assert(kWarpRows == 8, "a quad a token");

  /// What a warp needs once a block.
  struct Kept {
    const std::int32_t *entries, *next_entries;  // of the range that is being located, and of the next range
    int length, next_length;
    int next_begin, next_end;  // equal: no range is announced whose entries have not been loaded
    std::uint32_t live;        // which of its 32 tokens count, in the block located last
  };

  using KeptOrPlace = std::conditional_t<kHasRegisters, const Kept&, Kept&>;
  __device__ __forceinline__ Fp8Tokens(const CacheArguments& cache, int thread, KeptOrPlace kept)
      : cache_(cache), kept_(kept) {
    const int first_row = (kCluster == 1 ? 0 : ptx::rank_in_cluster() * kOwnRows) + thread / 32 * kWarpRows;
    const int lane = thread % 32;
    token_ = first_row / 32 * 32 + lane;
    place_ = unit_offset(first_row + lane / 4, lane % 4 * 2);
  }

  /// Hides the value from the compiler, so that what is computed from it is computed again and gets no
  /// register of its own.
  template <class T>
  __device__ __forceinline__ static T opaque(T x) {
    if constexpr (!kHasRegisters) asm volatile("" : "+r"(x));
    return x;
  }
  __device__ __forceinline__ int lane() const { return opaque(token_) % 32U; }
  /// The row that this thread loads, in its half of the block.
  __device__ __forceinline__ int row_in_half() const { return opaque(place_) / kRowBytes % 32U; }

  /// to = from: by all lanes if `to` is a register, by one lane if it is in shared memory.
  template <class T>
  __device__ __forceinline__ void keep(T& to, const T& from) {
    if (kHasRegisters || lane() == 0) to = from;
  }

  /// Loads the entries of the block after the one located last, if that block is announced.
  __device__ __forceinline__ void look_up() {
    if (block_ == end_) {
      __syncwarp();
      block_ = kept_.next_begin;
      end_ = kept_.next_end;
      __syncwarp();
      keep(kept_.entries, kept_.next_entries);
      keep(kept_.length, kept_.next_length);
      keep(kept_.next_end, kept_.next_begin);
      __syncwarp();
    }
    if (block_ < end_) {
      entry_ = entry_of(cache_, {kept_.entries, kept_.length, 0, 0, 0}, block_ * 64 + token_);
    }
  }

  /// Locates the next block, if there is one. kPrefetches: prefetches its tokens to L2.
  template <bool kPrefetches>
  __device__ __forceinline__ void locate() {
    offset_ = -1;
    under_way_ = block_ < end_;
    if (!under_way_) return;
    const TokenPlace place = place_of(cache_, entry_, block_ * 64 + token_);
    if (place.page >= 0) offset_ = offset_of(cache_, place, 0);
    keep(kept_.live, __ballot_sync(0xffffffff, offset_ >= 0));
    // This warp's tokens among the 32 that it has located.
    if (kPrefetches && offset_ >= 0 && (lane() ^ row_in_half()) / kWarpRows == 0) {
      const std::uint8_t* token = static_cast<const std::uint8_t*>(cache_.data) + offset_;
#pragma unroll
      for (int i = 0; i < Format::kDataBytes; i += 128) ptx::prefetch_line_to_l2(token + i);
    }
    ++block_;
  }

  /// The token that this thread's quad loads, in the block located last; `zero` is 0.
  __device__ __forceinline__ const std::uint8_t* token_of_quad(std::uint32_t zero = 0) const {
    const std::int64_t offset = __shfl_sync(0xffffffff, offset_, row_in_half() | zero);
    return offset < 0 ? reinterpret_cast<const std::uint8_t*>(kZeroRow)
                      : static_cast<const std::uint8_t*>(cache_.data) + offset;
  }

  /// Where a step's 16 bytes of a lane begin, without the offset of its place in the quad. bf16's RoPE: the
  /// two 16-byte units that the lane's values have in a tile, so that they are stored to the same places.
  /// e4m3's RoPE: 16 bytes. A group: 16 bytes in each half.
  __host__ __device__ static constexpr int from(int unit, int half) {
    if (unit > 0) return Format::codes_offset(2 * unit - 1 + half);
    return half * 16 + (kRopeIsBf16 ? Format::kRopeOffset : Format::codes_offset(0));
  }
  /// Does the unit have that half?
  __host__ __device__ static constexpr bool has_half(int unit, int half) {
    return half == 0 || unit > 0 || kRopeIsBf16;
  }
  /// Where a lane reads RoPE, and by how much nearer to the token's begin it reads everything else.
  __device__ __forceinline__ int rope_begin() const {
    return lane() % 4 * kRopeBytes;
  }
  __device__ __forceinline__ int rope_excess() const {
    return lane() % 4 * (kRopeBytes - 16);
  }

  /// A unit's scale, from the quad's lanes.
  template <int kUnit>
  __device__ __forceinline__ static float scale_of(float scales) {
    return kHasCacheScale<Format> || kUnit == 0 ? 0 : __shfl_sync(0xffffffff, scales, kUnit - 1, 4);
  }

  /// The tile of half a unit.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ static std::uint32_t tile(const Pipe& pipe, int half) {
    return ptx::shared_address(&pipe.tile(kUnit == 0 ? 0 : 2 * kUnit - 1 + half));
  }

  /// Converts sixteen e4m3 into a tile. Returns the last two values.
  __device__ __forceinline__ std::uint32_t store_converted(std::uint32_t tile, const uint4& raw,
                                                           float scale) const {
    const auto convert = [scale](std::uint32_t codes) {
      if constexpr (kHasCacheScale<Format>) {
        return as_bf16(codes);
      } else {
        return times_fp32(codes, scale);
      }
    };
    const uint2 a = convert(raw.x), b = convert(raw.y);
    ptx::store_16_bytes(tile + place_, make_uint4(a.x, a.y, b.x, b.y));
    const uint2 c = convert(raw.z), d = convert(raw.w);
    ptx::store_16_bytes(tile + (place_ ^ 16), make_uint4(c.x, c.y, d.x, d.y));
    return d.y;
  }

  /// Converts a unit into its tiles, which must be free. Returns the last two values.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ std::uint32_t store_unit(Pipe& pipe, const uint4& first, const uint4& second,
                                                      float scale) const {
    if constexpr (kUnit == 0 && !kRopeIsBf16) {
      return store_converted(tile<0>(pipe, 0), first, scale);
    } else if constexpr (kUnit == 0) {
      ptx::store_16_bytes(tile<0>(pipe, 0) + place_, first);
      ptx::store_16_bytes(tile<0>(pipe, 0) + (place_ ^ 16), second);
      return second.w;
    } else {
      store_converted(tile<kUnit>(pipe, 0), first, scale);
      return store_converted(tile<kUnit>(pipe, 1), second, scale);
    }
  }

  __device__ __forceinline__ static std::uint32_t other() {
    return ptx::rank_in_cluster() ^ 1;
  }

  /// Does this warp write which of its 32 tokens count?
  __device__ __forceinline__ bool tells_live() const {
    return row_in_half() < kWarpRows;
  }

  /// Writes which of 32 tokens count, with tile 0. Only one lane reads it, which may have written it.
  template <class Pipe>
  __device__ __forceinline__ void publish_live(Pipe& pipe, const std::uint32_t& of_32) {
    if (!tells_live() || lane() != 0) return;
    auto& live = reinterpret_cast<std::uint32_t*>(&pipe.live())[opaque(token_) / 32U];
    live = of_32;
    if constexpr (kCluster > 1) {
      ptx::send(ptx::address_in(other(), &live), of_32, ptx::address_in(other(), &pipe.full(0)));
    }
  }

  /// Announces this warp's rows of a unit's tiles.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void publish(Pipe& pipe) {
    ptx::Barrier& full = pipe.full(2 * kUnit);
    if constexpr (kCluster == 1) {
      ptx::arrive(full);
    } else {
      __syncwarp();
      if (!ptx::elect_one()) return ptx::arrive(full);
      ptx::fence_for_async_proxy();
      // The bytes from the same warp of the other CTA.
      constexpr std::uint32_t kBytes = kWarpRows * kRowBytes;
      ptx::arrive_expecting(full, kUnit > 0 ? 2 * kBytes : tells_live() ? kBytes + 4 : kBytes);
#pragma unroll
      for (int i = kUnit == 0 ? 0 : 2 * kUnit - 1; i <= 2 * kUnit; ++i) {
        ptx::copy_to_cta(other(), pipe.tile(i).bytes + place_ / kBytes * kBytes, kBytes, full);
      }
    }
  }

  const CacheArguments& cache_;
  int token_;            // the token of a block that this lane locates
  std::uint32_t place_;  // in a tile: unit 2 (lane % 4) of this thread's row

  std::conditional_t<kHasRegisters, Kept, Kept&> kept_;
  int block_ = 0, end_ = 0;   // blocks of the range of kept_.entries that are not located yet
  bool under_way_ = false;    // is a block located but not yet converted?
  int entry_ = 0;             // of this lane's token in the block after it
  std::int64_t offset_ = -1;  // of this lane's token; negative: it does not count
};

}  // namespace flashlatent::sm90
