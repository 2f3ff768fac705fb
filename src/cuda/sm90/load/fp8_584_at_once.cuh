// fp8_584 rows by indices for a CTA that has two blocks at most: every thread, computing threads included,
// loads its bytes of both blocks before it converts the first. There is no stage, no ring and no role that
// loads: from indices to tiles there are two trips to memory, one for entries and lengths together, one for
// rows.
//
// Which blocks a CTA has follows from shapes; lengths say which of their tokens count. So a list's blocks
// begin as if the lists before it were as long as shapes allow.
#pragma once

#include "cuda/sm90/load/fp8_rows.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"

namespace flashlatent::sm90 {

/// A loader in what it tells a kernel's Config (kv_loader.cuh); load() differs.
///
/// Warps w and w + 8 have rows 8 w to 8 w + 7 of each block, a quad of lanes a row: the former even tiles,
/// the latter odd ones, the last of which is RoPE.
class Fp8_584AtOnce {
  using Rows = Fp8_584Rows;

 public:
  static constexpr bool kLists = true;
  static constexpr bool kAtOnce = true;
  static constexpr int kMostBlocks = 2;
  static constexpr int kThreads = 256;  // beside the computing ones
  static constexpr int kArrivals = 512;
  static constexpr bool kZeroesDead = true;
  static constexpr bool kReaderFences = true;
  static constexpr bool kAllReadersArrive = false;
  static constexpr bool kPairs = true;
  struct Memory {};

  __device__ __forceinline__ static void prepare(const CUtensorMap&) {}

  /// A loader of blocks [begin, begin + blocks) of a tile's item. The constructor computes where to read, and
  /// reads nothing from memory.
  __device__ __forceinline__ Fp8_584AtOnce(const DecodeArguments& args, const RowTile& tile, int begin,
                                           int blocks)
      : args_(args), blocks_(blocks), dead_(pinned(reinterpret_cast<const std::uint8_t*>(kZeroRow))) {
    const int first_blocks = (args.geometry.list[0].reach + 63) / 64;
#pragma unroll
    for (int i = 0; i < kMostBlocks; ++i) {
      const int block = begin + i;
      second_[i] = block >= first_blocks;
      start_[i] = (second_[i] ? block - first_blocks : block) * 64;
      find_cache(i);
    }
    find_asked(tile);
  }

  /// Called by all threads of the CTA, once. Returns the number of blocks; the last one is left out if by
  /// lengths it has no tokens. `meanwhile()` is called while the bytes of rows are under way.
  template <class Buffer, class State, class Meanwhile>
  __device__ __forceinline__ int load(Buffer* buffers, State* states, Meanwhile meanwhile) {
    const int asked = __ldcg(asked_);
    int entries[kMostBlocks], counts[kMostBlocks];
#pragma unroll
    for (int i = 0; i < kMostBlocks; ++i) {
      entries[i] = __shfl_sync(0xffffffff, asked, i * kRows + lane() / 4);
      const int count = __shfl_sync(0xffffffff, asked, kMostBlocks * kRows + i);
      counts[i] = has_counts_[i] ? min(count, reach_[i]) : reach_[i];
    }
    const int blocks = blocks_ > 1 && start_[1] < counts[1] ? 2 : 1;
    Block block[kMostBlocks];
    ask(block[0], 0, entries[0], counts[0]);
    if (blocks > 1) ask(block[1], 1, entries[1], counts[1]);
    meanwhile();
    convert(block[0], buffers[0].tiles, states[0]);
    if (blocks > 1) convert(block[1], buffers[1].tiles, states[1]);
    return blocks;
  }

 private:
  static constexpr int kRows = 8;  // a warp's
  static constexpr int kPairsOfTiles = Rows::kTiles / 2;
  static_assert(Rows::kRopeTile == Rows::kTiles - 1 && Rows::kTiles % 2 == 0);

  /// A thread's bytes of a block.
  struct Block {
    uint4 raw[kPairsOfTiles + 1];  // RoPE has twice 16 bytes
    Rows::Scales scales;
    std::uint32_t live;  // a bit for each of the warp's rows
  };

  __device__ __forceinline__ static bool is_odd() {
    return threadIdx.x >= 256;
  }
  __device__ __forceinline__ static int lane() {
    return threadIdx.x % 32;
  }
  __device__ __forceinline__ static int row() {
    return threadIdx.x / 4 % 64;
  }

  /// Which half of RoPE a thread has first: odd rows the second half, so that stores of two rows use all
  /// banks.
  __device__ __forceinline__ static int rope_half() {
    return row() % 2;
  }

  __device__ __forceinline__ const std::int32_t* zeros() const {
    return reinterpret_cast<const std::int32_t*>(dead_);
  }
  /// Computed here, and not where it is read.
  template <class T>
  __device__ __forceinline__ static const T* pinned(const T* x) {
    asm volatile("" : "+l"(x));
    return x;
  }

  /// What a lane reads first, all with one load: entries of the warp's rows of both blocks, then the tokens
  /// of the blocks' lists. So entries are read before lengths are known: all columns of indices may be.
  __device__ __forceinline__ void find_asked(const RowTile& tile) {
    const int i = lane() < kMostBlocks * kRows ? lane() / kRows : lane() % kMostBlocks;
    const bool second = i == 0 ? second_[0] : second_[1];
    const int token = (i == 0 ? start_[0] : start_[1]) + row() / kRows * kRows + lane() % kRows;
    asked_ = zeros();
    if (lane() < kMostBlocks * kRows) {
      const ListedCache& of = args_.cache.listed[second];
      if (i < blocks_ && token < args_.geometry.list[second].reach) {
        asked_ = of.entries + tile.request * of.entries_stride + tile.first_token * of.entries_token_stride +
                 token;
      }
    } else if (lane() < kMostBlocks * (kRows + 1)) {
      const schedule::ListLengths& given = args_.cache.list_lengths.list[second];
      if (given.lengths != nullptr) {
        asked_ = given.lengths + tile.request * given.request_stride + tile.first_token * given.token_stride;
      }
    }
    asked_ = pinned(asked_);
  }

  /// Constants for addresses in block i's cache: a constant's first read takes long.
  __device__ __forceinline__ void find_cache(int i) {
    const ListedCache& of = args_.cache.listed[second_[i]];
    has_counts_[i] = args_.cache.list_lengths.list[second_[i]].lengths != nullptr;
    reach_[i] = args_.geometry.list[second_[i]].reach;
    data_[i] = pinned(of.data);
    page_bytes_[i] = of.page_bytes;
    page_size_[i] = of.page_size;
    pages_[i] = of.pages;
    asm volatile("" : "+l"(page_bytes_[i]), "+r"(pages_[i]), "+r"(reach_[i]));
    asm volatile("" : "+r"(page_size_[i].value));
    asm volatile("" : "+r"(page_size_[i].multiplier), "+r"(page_size_[i].shift));
  }

  /// Loads this thread's bytes of a block.
  __device__ __forceinline__ void ask(Block& block, int i, int entry, int count) const {
    const int page = page_size_[i].quotient(entry), in_page = page_size_[i].remainder(entry);
    const bool live = entry >= 0 && start_[i] + row() < count && page < pages_[i];
    const std::uint8_t* data = data_[i] + page * page_bytes_[i] + in_page * Rows::kDataBytes;
    const std::uint8_t* scales = data + Rows::scales_offset(page_size_[i].value, in_page);
    data = live ? data : dead_;
    scales = live ? scales : dead_;
    block.live = __ballot_sync(0xffffffff, __shfl_sync(0xffffffff, live, lane() % 8 * 4)) & 0xFF;
    data += lane() % 4 * 16 + (is_odd() ? 64 : 0);
    constexpr int kLast = kPairsOfTiles - 1;
#pragma unroll
    for (int k = 0; k < kLast; ++k) block.raw[k] = ptx::load_16_bytes(data + 128 * k);
    const int half = is_odd() ? rope_half() * 64 : 0;
    block.raw[kLast] = ptx::load_16_bytes(data + 128 * kLast + half);
    block.scales = Rows::load_scales(scales);
    if (is_odd()) block.raw[kLast + 1] = ptx::load_16_bytes(data + 128 * kLast + (half ^ 64));
  }

  template <class State>
  __device__ __forceinline__ void convert(Block& block, Tile* tiles, State& state) const {
    if (!is_odd() && lane() == 0) {
      reinterpret_cast<std::uint8_t*>(&state.live[0])[row() / 8] = static_cast<std::uint8_t>(block.live);
    }
    // Scales of odd tiles go where those of even tiles are.
    const int shift = is_odd() ? 8 : 0;
    block.scales.x >>= shift;
    block.scales.y >>= shift;
    convert_pairs(block, ptx::shared_address(tiles + is_odd()), state,
                  std::make_integer_sequence<int, kPairsOfTiles>());
  }
  template <class State, int... kPair>
  __device__ __forceinline__ void convert_pairs(const Block& block, std::uint32_t tiles, State& state,
                                                std::integer_sequence<int, kPair...>) const {
    (convert_pair<kPair>(block, tiles + 2 * kPair * static_cast<std::uint32_t>(sizeof(Tile)), state), ...);
  }
  template <int kPair, class State>
  __device__ __forceinline__ void convert_pair(const Block& block, std::uint32_t tile, State& state) const {
    const std::uint32_t line = tile + row() * kRowBytes;
    if (kPair == kPairsOfTiles - 1 && is_odd()) {
      const std::uint32_t to = line + unit_in_row(row(), rope_half() * 4 + lane() % 4);
      ptx::store_16_bytes(to, block.raw[kPair]);
      ptx::store_16_bytes(to ^ 64, block.raw[kPairsOfTiles]);
    } else {
      const Rows::Scale scale = Rows::scale_of<2 * kPair>(block.scales);
      const uint4& raw = block.raw[kPair];
      const uint2 a = Rows::convert(raw.x, scale), b = Rows::convert(raw.y, scale);
      const uint2 c = Rows::convert(raw.z, scale), d = Rows::convert(raw.w, scale);
      const std::uint32_t to = line + unit_in_row(row(), lane() % 4 * 2);
      ptx::store_16_bytes(to, make_uint4(a.x, a.y, b.x, b.y));
      ptx::store_16_bytes(to ^ 16, make_uint4(c.x, c.y, d.x, d.y));
    }
    ptx::arrive(state.full[2 * kPair + 1]);
  }

  const DecodeArguments& args_;
  const int blocks_;
  bool second_[kMostBlocks];   // is the block of the second list?
  int start_[kMostBlocks];     // its first token there
  const std::int32_t* asked_;  // find_asked()
  bool has_counts_[kMostBlocks];
  int reach_[kMostBlocks];          // the most tokens of its list
  const std::uint8_t* const dead_;  // a row of zeros
  const std::uint8_t* data_[kMostBlocks];
  std::int64_t page_bytes_[kMostBlocks];
  int pages_[kMostBlocks];
  Divisor page_size_[kMostBlocks];
};

}  // namespace flashlatent::sm90
