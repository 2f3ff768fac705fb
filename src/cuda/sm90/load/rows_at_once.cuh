// fp8_584 rows and records by indices for a CTA that has two blocks at most: every thread, computing threads
// included, loads its bytes of both blocks before it converts the first. There is no stage, no ring and no
// role that loads: from indices to tiles there are two trips to memory, one for entries and lengths together,
// one for rows.
//
// Which blocks a CTA has follows from shapes; lengths say which of their tokens count. So a list's blocks
// begin as if the lists before it were as long as shapes allow.
#pragma once

#include "cuda/sm90/load/fp8_rows.cuh"
#include "cuda/sm90/load/record_rows.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"

namespace flashlatent::sm90 {

/// Scales of odd tiles go where those of even tiles are: a byte a tile.
template <class Scales>
__device__ __forceinline__ void move_scales(Scales& scales, bool is_odd) {
  const int shift = is_odd ? 8 : 0;
  scales.x >>= shift;
  scales.y >>= shift;
}

/// What a thread has of a row of fp8_584: 16 elements of every other tile. A quad of lanes has a row;
/// `is_odd`: the odd tiles, the last of which is RoPE, bf16.
class Fp8_584Bytes {
  using Rows = Fp8_584Rows;

 public:
  static constexpr int kPairs = Rows::kTiles / 2;
  static_assert(Rows::kRopeTile == Rows::kTiles - 1 && Rows::kTiles % 2 == 0);

  /// What a cache's constants say of its rows.
  struct Format {
    __device__ __forceinline__ static Format of(const ListedCache&) { return {}; }
    __device__ __forceinline__ static int token_bytes() { return Rows::kDataBytes; }
    __device__ __forceinline__ static int scales_offset(const Divisor& page_size, int in_page) {
      return Rows::scales_offset(page_size.value, in_page);
    }
  };

  /// Loads them. `turned`: which half of RoPE comes first, so that stores of two rows use all banks.
  __device__ __forceinline__ void ask(const std::uint8_t* data, const std::uint8_t* scales, Format,
                                      bool is_odd, int quad_lane, int turned) {
    data += quad_lane * 16 + (is_odd ? 64 : 0);
    constexpr int kLast = kPairs - 1;
#pragma unroll
    for (int k = 0; k < kLast; ++k) raw_[k] = ptx::load_16_bytes(data + 128 * k);
    const int half = is_odd ? turned * 64 : 0;
    raw_[kLast] = ptx::load_16_bytes(data + 128 * kLast + half);
    scales_ = Rows::load_scales(scales);
    if (is_odd) raw_[kLast + 1] = ptx::load_16_bytes(data + 128 * kLast + (half ^ 64));
  }
  __device__ __forceinline__ void settle(bool is_odd) {
    move_scales(scales_, is_odd);
  }
  /// Stores those of a pair of tiles as bf16. `line`: the row's place in the thread's tile.
  template <int kPair>
  __device__ __forceinline__ void convert(std::uint32_t line, Format, bool is_odd, int row, int quad_lane,
                                          int turned) const {
    if (kPair == kPairs - 1 && is_odd) {
      const std::uint32_t to = line + unit_in_row(row, turned * 4 + quad_lane);
      ptx::store_16_bytes(to, raw_[kPair]);
      ptx::store_16_bytes(to ^ 64, raw_[kPairs]);
    } else {
      const Rows::Scale scale = Rows::scale_of<2 * kPair>(scales_);
      const uint4& raw = raw_[kPair];
      const uint2 a = Rows::convert(raw.x, scale), b = Rows::convert(raw.y, scale);
      const uint2 c = Rows::convert(raw.z, scale), d = Rows::convert(raw.w, scale);
      const std::uint32_t to = line + unit_in_row(row, quad_lane * 2);
      ptx::store_16_bytes(to, make_uint4(a.x, a.y, b.x, b.y));
      ptx::store_16_bytes(to ^ 16, make_uint4(c.x, c.y, d.x, d.y));
    }
  }

 private:
  uint4 raw_[kPairs + 1];  // RoPE has twice 16 bytes
  Rows::Scales scales_;
};

/// The same of records, mxfp8_528 and nvfp4_288: a list names its format.
class RecordBytes {
  using Rows = RecordRows;

 public:
  static constexpr int kPairs = Rows::kTiles / 2;

  struct Format {
    Record record;
    bool apart;
    int bytes;

    __device__ __forceinline__ static Format of(const ListedCache& cache) {
      return {cache.record, cache.scales_apart, static_cast<int>(cache.token_bytes)};
    }
    __device__ __forceinline__ int token_bytes() const { return bytes; }
    __device__ __forceinline__ int scales_offset(const Divisor& page_size, int in_page) const {
      struct {
        Record record;
        bool scales_apart;
        const Divisor& page_size;
      } cache = {record, apart, page_size};
      return Rows::scales_offset(cache, in_page);
    }
  };

  __device__ __forceinline__ void ask(const std::uint8_t* data, const std::uint8_t* scales,
                                      const Format& format, bool is_odd, int quad_lane, int) {
    if (Rows::is_e2m1(format.record)) {
      data += quad_lane * 8 + (is_odd ? 32 : 0);
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        const uint2 codes = __ldg(reinterpret_cast<const uint2*>(data + 64 * k));
        raw_[k] = make_uint4(codes.x, codes.y, 0, 0);
      }
    } else {
      data += quad_lane * 16 + (is_odd ? 64 : 0);
#pragma unroll
      for (int k = 0; k < kPairs; ++k) raw_[k] = ptx::load_16_bytes(data + 128 * k);
    }
    scales_ = Rows::load_scales(scales, format.record, quad_lane);
  }
  __device__ __forceinline__ void settle(bool is_odd) {
    move_scales(scales_, is_odd);
  }
  template <int kPair>
  __device__ __forceinline__ void convert(std::uint32_t line, const Format& format, bool, int row,
                                          int quad_lane, int) const {
    const Rows::Values values = Rows::convert<2 * kPair>(raw_[kPair], scales_, format.record);
    const std::uint32_t to = line + unit_in_row(row, quad_lane * 2);
    ptx::store_16_bytes(to, values.low);
    ptx::store_16_bytes(to ^ 16, values.high);
  }

 private:
  uint4 raw_[kPairs];
  Rows::Scales scales_;
};

/// A loader in what it tells a kernel's Config (kv_loader.cuh); load() differs.
///
/// Warps w and w + 8 have rows 8 w to 8 w + 7 of each block, a quad of lanes a row: the former even tiles,
/// the latter odd ones.
template <class Bytes>
class RowsAtOnce {
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
  __device__ __forceinline__ RowsAtOnce(const DecodeArguments& args, const RowTile& tile, int begin,
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
    convert(block[0], 0, buffers[0].tiles, states[0]);
    if (blocks > 1) convert(block[1], 1, buffers[1].tiles, states[1]);
    return blocks;
  }

 private:
  static constexpr int kRows = 8;  // a warp's

  /// A thread's bytes of a block.
  struct Block {
    Bytes bytes;
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

  /// Which half of RoPE a thread has first.
  __device__ __forceinline__ static int turned() {
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
    format_[i] = Bytes::Format::of(of);
    asm volatile("" : "+l"(page_bytes_[i]), "+r"(pages_[i]), "+r"(reach_[i]));
    asm volatile("" : "+r"(page_size_[i].value));
    asm volatile("" : "+r"(page_size_[i].multiplier), "+r"(page_size_[i].shift));
  }

  /// Loads this thread's bytes of a block.
  __device__ __forceinline__ void ask(Block& block, int i, int entry, int count) const {
    const int page = page_size_[i].quotient(entry), in_page = page_size_[i].remainder(entry);
    const bool live = entry >= 0 && start_[i] + row() < count && page < pages_[i];
    const std::uint8_t* data = data_[i] + page * page_bytes_[i] + in_page * format_[i].token_bytes();
    const std::uint8_t* scales = data + format_[i].scales_offset(page_size_[i], in_page);
    data = live ? data : dead_;
    scales = live ? scales : dead_;
    block.live = __ballot_sync(0xffffffff, __shfl_sync(0xffffffff, live, lane() % 8 * 4)) & 0xFF;
    block.bytes.ask(data, scales, format_[i], is_odd(), lane() % 4, turned());
  }

  template <class State>
  __device__ __forceinline__ void convert(Block& block, int i, Tile* tiles, State& state) const {
    if (!is_odd() && lane() == 0) {
      reinterpret_cast<std::uint8_t*>(&state.live[0])[row() / 8] = static_cast<std::uint8_t>(block.live);
    }
    block.bytes.settle(is_odd());
    convert_pairs(block, i, ptx::shared_address(tiles + is_odd()), state,
                  std::make_integer_sequence<int, Bytes::kPairs>());
  }
  template <class State, int... kPair>
  __device__ __forceinline__ void convert_pairs(const Block& block, int i, std::uint32_t tiles, State& state,
                                                std::integer_sequence<int, kPair...>) const {
    (convert_pair<kPair>(block, i, tiles + 2 * kPair * static_cast<std::uint32_t>(sizeof(Tile)), state), ...);
  }
  template <int kPair, class State>
  __device__ __forceinline__ void convert_pair(const Block& block, int i, std::uint32_t tile,
                                               State& state) const {
    block.bytes.template convert<kPair>(tile + row() * kRowBytes, format_[i], is_odd(), row(), lane() % 4,
                                        turned());
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
  [[no_unique_address]] typename Bytes::Format format_[kMostBlocks];
};
using Fp8_584AtOnce = RowsAtOnce<Fp8_584Bytes>;
using RecordsAtOnce = RowsAtOnce<RecordBytes>;

}  // namespace flashlatent::sm90
