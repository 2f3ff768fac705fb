// FP8 rows by lists of tokens, through a stage: a warp's rows of a block come to shared memory by bulk
// copies, one a row, into the warp's own places, and the warp converts them. Bulk copies take a seventh of
// the clocks of shared memory that cp.async's 16 bytes a lane take. Warps need not synchronise: each converts
// what it has itself loaded.
#pragma once

#include "cuda/sm90/load/listed_rows.cuh"

namespace flashlatent::sm90 {

/// By eight warps. kStages: blocks under way.
template <class Format_, int kStages>
class ListedBulkLoader : public ListedRows<Format_, 8, 1> {
  using Base = ListedRows<Format_, 8, 1>;
  using Base::kRows, Base::kUnits, Base::lane, Base::first_tile, Base::last_tile;

 public:
  using Format = Format_;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kSparesRegisters = false;

  /// A warp's rows of a block.
  struct Stage {
    std::uint8_t rows[kRows][Format::kPitch];
    std::uint8_t scales[Format::kScalesApart ? kRows * fp8_584::kScaleBytes : 16];
  };
  struct alignas(16) Memory {
    Stage stages[8][kStages];
    typename Base::Kept kept[8];
    std::uint32_t live[8][kStages];
    ptx::Barrier full[8][kStages];
  };

  __device__ __forceinline__ ListedBulkLoader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                              Memory& memory)
      : Base(cache, thread, memory.kept[thread / 32]), memory_(memory), warp_(thread / 32) {
    if (lane() == 0) {
      this->kept_.init();
#pragma unroll
      for (ptx::Barrier& full : memory.full[warp_]) ptx::init(full, Format::kScalesApart ? 1 + kRows : 1);
      ptx::publish_barriers();
    }
    __syncwarp();
  }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const ListedRange& range, Announce announce) {
    pipe.begin_range();
    bool announced = false;
#pragma unroll 1
    for (int left = range.end - range.begin;; --left) {
#pragma unroll 1
      while (ahead_ < kStages && this->has_more()) request();
      if (!announced) announce();
      announced = true;
      if (left == 0) break;
      take();
      convert_block(pipe, std::make_integer_sequence<int, kUnits>());
      pipe.next_block();
    }
  }

 private:
  /// 16 bytes of each tile of this lane's row, 32 of RoPE.
  static constexpr int kPieces = Format::kTiles + (Format::kRopeTile >= 0 ? 1 : 0);

  /// Starts loading the next block's rows.
  __device__ __forceinline__ void request() {
    const typename Base::Row row = this->locate();
    const int stage = asked_;
    Stage& to = memory_.stages[warp_][stage];
    ptx::Barrier& full = memory_.full[warp_][stage];
    asked_ = asked_ + 1 < kStages ? asked_ + 1 : 0;
    ++ahead_;
    if (lane() == 0) {
      memory_.live[warp_][stage] = row.live;
      ptx::arrive_expecting(full, kRows * Format::kDataBytes);
    }
    __syncwarp();
    if (lane() < kRows) {
      ptx::copy_bytes(to.rows[lane()], row.data, Format::kDataBytes, full, policy_);
      if constexpr (Format::kScalesApart) {
        ptx::copy_8_bytes(ptx::shared_address(to.scales + lane() * fp8_584::kScaleBytes),
                          row.data + row.scales_offset);
        ptx::copy_arrive(full);
      }
    }
    __syncwarp();
    this->look_up();
  }

  /// Takes the next block's rows out of its stage, all at once: the stage is then free, and there is one wait
  /// for all pieces.
  __device__ __forceinline__ void take() {
    ptx::wait(memory_.full[warp_][taken_], parity_);
    const Stage& stage = memory_.stages[warp_][taken_];
    const int row = lane() / 4;
    const std::uint32_t from = ptx::shared_address(stage.rows[row]);
    if constexpr (!kHasCacheScale<Format>) {
      scales_ = Format::load_shared_scales(
          Format::kScalesApart ? ptx::shared_address(stage.scales + row * fp8_584::kScaleBytes)
                               : from + fp8_656::kScaleOffset);
    }
    live_ = memory_.live[warp_][taken_];
    const std::uint32_t quad = from + lane() % 4 * 16;
#pragma unroll
    for (int tile = 0; tile < Format::kTiles; ++tile) {
      const bool rope = tile == Format::kRopeTile;
      const std::uint32_t place = quad + Base::offset_of_tile(tile) + (rope ? lane() % 4 * 16 : 0);
      pieces_[tile] = ptx::load_shared_16_bytes(place);
      if (rope) pieces_[Format::kTiles] = ptx::load_shared_16_bytes(place + 16);
    }
    __syncwarp();  // all have read the stage
    --ahead_;
    taken_ = taken_ + 1 < kStages ? taken_ + 1 : 0;
    if (taken_ == 0) parity_ ^= 1;
  }

  template <class Pipe, int... kUnit>
  __device__ __forceinline__ void convert_block(Pipe& pipe, std::integer_sequence<int, kUnit...>) {
    (convert_unit<kUnit>(pipe), ...);
  }

  template <int kUnit, class Pipe>
  __device__ __forceinline__ void convert_unit(Pipe& pipe) {
    pipe.wait_empty(last_tile(kUnit));
    if constexpr (kUnit == 0) this->publish_live(pipe, live_);
    convert_tile<first_tile(kUnit)>(pipe);
    if constexpr (Base::tiles_of(kUnit) == 2) convert_tile<last_tile(kUnit)>(pipe);
    this->template publish<kUnit>(pipe);
  }
  template <int kTile, class Pipe>
  __device__ __forceinline__ void convert_tile(Pipe& pipe) {
    if constexpr (kTile == Format::kRopeTile) {
      this->template store<kTile>(pipe, {pieces_[kTile], pieces_[Format::kTiles]});
    } else {
      this->template store<kTile>(pipe, Base::template convert<kTile>(pieces_[kTile], scales_));
    }
  }

  Memory& memory_;
  const int warp_;
  const std::uint64_t policy_ = ptx::evict_first_policy();
  uint4 pieces_[kPieces] = {};  // of the block taken last
  typename Format::Scales scales_ = {};
  std::uint32_t live_ = 0;
  int ahead_ = 0;              // blocks whose loads have begun and that are not converted yet
  int asked_ = 0, taken_ = 0;  // the stage of the next one
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::sm90
