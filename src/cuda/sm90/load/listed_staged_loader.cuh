// FP8 rows by lists of tokens, through a small stage, for kernels whose shared memory has no room for a
// block's rows. In each step cp.async loads 16 bytes a lane, kSlots steps ahead. A thread converts what it
// has itself loaded, so threads need not synchronise. Meanwhile the rest of the next block is prefetched to
// L2.
#pragma once

#include "cuda/sm90/load/listed_rows.cuh"
#include "cuda/sm90/load/record_rows.cuh"

namespace flashlatent::sm90 {

/// By eight warps, in a cluster of two by four warps of each CTA.
template <class Format_, int kCluster, int kSlots>
class ListedStagedLoader : public ListedRows<Format_, 8 / kCluster, kCluster> {
  using Base = ListedRows<Format_, 8 / kCluster, kCluster>;
  using Base::lane, Base::first_tile, Base::last_tile;

 public:
  using Format = Format_;
  using Base::kThreads;
  static constexpr bool kWholeBlocks = false;
  static constexpr bool kSparesRegisters = true;
  static constexpr bool kOneLoop = true;
  /// The next block's rows as they were found, so that they take no registers.
  struct Found {
    const std::uint8_t* data[Base::kLocated];
    std::int32_t scales_offset[Base::kLocated];
    std::uint32_t live;
    int left;  // blocks of the range that are to be converted
  };
  struct FoundRecord : Found {
    Record record;
  };
  using FoundRows = std::conditional_t<kIsRecord<Format>, FoundRecord, Found>;
  struct alignas(16) Memory {
    uint4 slots[kSlots][kThreads];
    typename Base::Kept kept[kThreads / 32];
    FoundRows found[kThreads / 32];
  };

  __device__ __forceinline__ ListedStagedLoader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                                Memory& memory)
      : Base(cache, thread, memory.kept[thread / 32]),
        found_(memory.found[thread / 32]),
        slot_(ptx::shared_address(&memory.slots[0][thread])),
        end_(slot_ + sizeof(memory.slots)) {
    if (lane() == 0) this->kept_.init();
    __syncwarp();
  }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const ListedRange& range, Announce announce) {
    __syncwarp();  // all lanes have seen the end of the previous range
    if (lane() == 0) found_.left = range.end - range.begin;
    __syncwarp();
    if (found_.left > 0 && !under_way_) {
      find_next();
      enter();
      ask_first(std::make_integer_sequence<int, kSlots>());
    }
    announce();
    pipe.begin_range();
#pragma unroll 1
    while (found_.left > 0) {
      convert_block(pipe, std::make_integer_sequence<int, kSteps>());
      pipe.next_block();
      __syncwarp();
      if (lane() == 0) --found_.left;
      __syncwarp();
    }
  }

 private:
  /// A step is a tile, or half of RoPE's tile, which has 128 bytes a row.
  static constexpr bool kHasRope = Format::kRopeTile >= 0;
  static constexpr int kSteps = Format::kTiles + kHasRope;
  static_assert(!kHasRope || Format::kRopeTile == Format::kTiles - 1);
  static_assert(kSlots < kSteps);
  static constexpr int kEnters = kSteps - kSlots;  // the step before which loads turn to the next block
  __host__ __device__ static constexpr int tile_of(int step) {
    return step < Format::kTiles ? step : Format::kTiles - 1;
  }
  __host__ __device__ static constexpr bool is_rope(int step) {
    return kHasRope && step >= Format::kRopeTile;
  }

  /// Where the next block's rows are, if there is one.
  __device__ __forceinline__ void find_next() {
    under_way_ = this->has_more();
    if (!under_way_) return;
    Record record = {};
    if constexpr (kIsRecord<Format>) record = this->record_of_next();
    const typename Base::Row row = this->locate();
    __syncwarp();  // all lanes have entered the previous block
    if constexpr (kIsRecord<Format>) {
      if (lane() == 0) found_.record = record;
    }
    if (lane() < Base::kLocated) {
      found_.data[lane()] = row.data;
      found_.scales_offset[lane()] = row.scales_offset;
    }
    if (lane() == 0) found_.live = row.live;
    prefetch(row, record);
    this->look_up();
    __syncwarp();
  }

  /// Prefetches them to L2: lanes with the same row take different lines of it.
  __device__ __forceinline__ void prefetch(const typename Base::Row& row, Record record) const {
    if constexpr (kIsRecord<Format>) {
      const int bytes = Format::data_bytes(record), offset = this->locator() * 128;
      if (offset < bytes) ptx::prefetch_line_to_l2(row.data + offset);
      // A row may begin within a line.
      if (this->locator() < 2) {
        ptx::prefetch_line_to_l2(row.data + (this->locator() == 0 ? bytes - 1 : row.scales_offset));
      }
      return;
    }
    constexpr int kLines = (Format::kDataBytes + 127) / 128;
    constexpr int kAll = kLines + 1 + Format::kScalesApart;
#pragma unroll
    for (int first = 0; first < kAll; first += 4) {
      const int line = first + this->locator();
      const int offset = line < kLines    ? line * 128
                         : line == kLines ? Format::kDataBytes - 1
                                          : row.scales_offset;
      if (line < kAll) ptx::prefetch_line_to_l2(row.data + offset);
    }
  }

  /// From now on loads are of the block found last.
  __device__ __forceinline__ void enter() {
    const int from = this->locating_lane();
    row_ = found_.data[from];
    if constexpr (kIsRecord<Format>) {
      next_record_ = found_.record;
      next_scales_ = Format::load_scales(row_ + found_.scales_offset[from], next_record_, lane() % 4);
      row_ += lane() % 4 * (Format::is_e2m1(next_record_) ? 8 : 16);
    } else {
      if constexpr (!kHasCacheScale<Format>)
        next_scales_ = Format::load_scales(row_ + found_.scales_offset[from]);
      row_ += lane() % 4 * 16;
    }
  }

  /// Loads a step of the block entered last, into the slot that is taken next.
  template <int kStep>
  __device__ __forceinline__ void ask() const {
    if constexpr (kIsRecord<Format>) {
      if (Format::is_e2m1(next_record_)) {
        ptx::copy_8_bytes(slot_, row_ + kStep * 32);
        return;
      }
    }
    const int half = is_rope(kStep) ? rope_half<kStep>() * 64 : 0;
    ptx::copy_16_bytes(slot_, row_ + Base::offset_of_tile(tile_of(kStep)) + half);
  }
  /// Which 64 bytes of its row's RoPE a lane takes in a step, 16 a lane of the quad: shared memory counts a
  /// cp.async by sectors of 32 bytes. Odd rows begin with the second half, so that two rows' lanes have all
  /// banks between them when they store.
  template <int kStep>
  __device__ __forceinline__ int rope_half() const {
    return (kStep - Format::kRopeTile) ^ (lane() / 4 & 1);
  }
  /// Where these go in their tile.
  template <int kStep, class Pipe>
  __device__ __forceinline__ std::uint32_t rope_place(const Pipe& pipe) const {
    constexpr std::uint32_t kInRow = kRowBytes - 1;
    const std::uint32_t unit = 4 * rope_half<kStep>() + lane() % 4;
    const std::uint32_t row = this->template place_in<tile_of(kStep)>(pipe) & ~kInRow;
    return row + (unit ^ lane() / 4) * 16;
  }

  template <int... kStep>
  __device__ __forceinline__ void ask_first(std::integer_sequence<int, kStep...>) {
    ((ask<kStep>(), ptx::copy_commit(), next_slot()), ...);
  }
  __device__ __forceinline__ void next_slot() {
    constexpr std::uint32_t kSlot = kThreads * sizeof(uint4);
    slot_ += kSlot;
    if (slot_ == end_) slot_ -= kSlots * kSlot;
  }

  template <class Pipe, int... kStep>
  __device__ __forceinline__ void convert_block(Pipe& pipe, std::integer_sequence<int, kStep...>) {
    scales_ = next_scales_;
    if constexpr (kIsRecord<Format>) record_ = next_record_;
    (convert_step<kStep>(pipe), ...);
  }

  /// Takes a step, starts the load kSlots steps ahead, and converts.
  template <int kStep, class Pipe>
  __device__ __forceinline__ void convert_step(Pipe& pipe) {
    constexpr int kTile = tile_of(kStep), kUnit = kTile / 2;
    static_assert(Format::kTiles % 2 == 0);
    ptx::copy_wait<kSlots - 1>();
    const uint4 raw = ptx::load_shared_16_bytes(slot_);
    if constexpr (kStep == 1) find_next();
    if constexpr (kStep < kEnters) {
      ask<kStep + kSlots>();
    } else if (under_way_) {
      if constexpr (kStep == kEnters) enter();
      ask<kStep - kEnters>();
    }
    ptx::copy_commit();
    next_slot();
    typename Base::Converted values;  // ready before a tile is free
    if constexpr (kIsRecord<Format>) {
      const auto converted = Format::template convert<kTile>(raw, scales_, record_);
      values = {converted.low, converted.high};
    } else if constexpr (!is_rope(kStep)) {
      values = Base::template convert<kTile>(raw, scales_);
    }
    if constexpr (kStep == first_tile(kUnit)) pipe.wait_empty(last_tile(kUnit));
    if constexpr (kStep == 0) this->publish_live(pipe, found_.live);
    if constexpr (is_rope(kStep)) {
      ptx::store_16_bytes(rope_place<kStep>(pipe), raw);
    } else {
      this->template store<kTile>(pipe, values);
    }
    if constexpr (kStep == kSteps - 1 || tile_of(kStep + 1) > last_tile(kUnit))
      this->template publish<kUnit>(pipe);
  }

  FoundRows& found_;
  std::uint32_t slot_;                 // of this thread's next step
  const std::uint32_t end_;            // behind its last one
  const std::uint8_t* row_ = nullptr;  // 16 bytes of the token that this thread converts
  typename Format::Scales scales_ = {}, next_scales_ = {};
  bool under_way_ = false;                 // is there a block found last, not yet converted?
  Record record_ = {}, next_record_ = {};  // where lists say it: as scales_
};

}  // namespace flashlatent::sm90
