// The KV tiles in shared memory as a ring: block after block, tile after tile, across segments.
#pragma once

#include "cuda/sm90/kernels/mla_16_transposed/smem_layout.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::mla_16_transposed {

/// The place of a block's tiles; the loader and each warpgroup keep one and move it on block by block.
template <class Config>
class RingPosition {
 public:
  using Element = typename Config::Element;
  static constexpr int kQkChunks = Config::kQkChunks;
  static constexpr bool kWholeBlocks =
      Config::kRingTiles % kQkChunks == 0;  // none lies across the ring's end

  __device__ __forceinline__ explicit RingPosition(SharedMemory<Config>& shared) : shared_(shared) {}

  __device__ __forceinline__ void next_block() {
    slot_ += kQkChunks;
    if (slot_ >= Config::kRingTiles) {
      slot_ -= Config::kRingTiles;
      parity_ ^= 1;
    }
    live_slot_ = live_slot_ + 1 < Config::kLiveSlots ? live_slot_ + 1 : 0;
  }

  __device__ __forceinline__ int chunk(int i) const { return Config::chunk_order(i); }
  __device__ __forceinline__ sm90::Tile& tile(int i) const { return shared_.ring[slot(i)]; }

  /// Descriptors of the block's tiles, whose low words count from the first tile's. ptxas knows that one to
  /// be the same in all lanes, so it makes the others in uniform registers (13 R2UR a block, not 209).
  class TileDescriptors {
   public:
    /// `descriptor` makes one from a tile's address.
    template <class Descriptor>
    __device__ __forceinline__ TileDescriptors(const RingPosition& ring, Descriptor descriptor)
        : end_(descriptor(ptx::shared_address(ring.shared_.ring + Config::kRingTiles))),
          first_(__shfl_sync(
              0xffffffff, static_cast<std::uint32_t>(descriptor(ptx::shared_address(&ring.tile(0)))), 0)) {}
    __device__ __forceinline__ std::uint64_t operator[](int i) const {
      constexpr std::uint32_t kTile = sizeof(sm90::Tile) / 16;
      const std::uint32_t low = first_ + i * kTile;
      const bool wraps = !kWholeBlocks && low >= static_cast<std::uint32_t>(end_);
      return ptx::with_low_word(end_, wraps ? low - Config::kRingTiles * kTile : low);
    }

   private:
    std::uint64_t end_;  // of the place behind the ring
    std::uint32_t first_;
  };
  __device__ __forceinline__ ptx::Barrier& full(int i) const { return shared_.full[slot(i)]; }
  __device__ __forceinline__ ptx::Barrier& empty(int i) const { return shared_.empty[slot(i)]; }
  __device__ __forceinline__ std::uint64_t& live() const { return shared_.live[live_slot_]; }
  __device__ __forceinline__ void wait_full(int i) const { ptx::wait(full(i), parity(i)); }
  __device__ __forceinline__ void wait_empty(int i) const { ptx::wait(empty(i), parity(i) ^ 1); }

  /// The i-th tile, and its barrier, of the block two before this one.
  __device__ __forceinline__ sm90::Tile& tile_two_back(int i) const { return shared_.ring[slot_two_back(i)]; }
  __device__ __forceinline__ ptx::Barrier& empty_two_back(int i) const {
    return shared_.empty[slot_two_back(i)];
  }

  __device__ __forceinline__ void begin_range() {}  // segments follow one another in the ring

 private:
  __device__ __forceinline__ int slot(int i) const {
    const int s = slot_ + i;
    return kWholeBlocks || s < Config::kRingTiles ? s : s - Config::kRingTiles;
  }
  __device__ __forceinline__ int slot_two_back(int i) const {
    if constexpr (Config::kRingTiles == 2 * kQkChunks) return slot_ + i;
    const int s = slot_ - 2 * kQkChunks + i;
    return s >= 0 ? s : s + Config::kRingTiles;
  }
  __device__ __forceinline__ std::uint32_t parity(int i) const {
    return kWholeBlocks || slot_ + i < Config::kRingTiles ? parity_ : parity_ ^ 1;
  }

  SharedMemory<Config>& shared_;
  int slot_ = 0;
  int live_slot_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::mla_16_transposed
