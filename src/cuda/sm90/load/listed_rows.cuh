// What loaders of FP8 rows by lists of tokens (listed_tokens.cuh) share: which tokens a block has, where
// their bytes are, and how converted tiles are announced.
//
// A warp loads eight tokens of every block, and four lanes (a quad) convert one: 16 elements a lane and tile.
#pragma once

#include "cuda/sm90/load/fp8_rows.cuh"
#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/walk/listed_tokens.cuh"

namespace flashlatent::sm90 {

/// kCluster = 2: CTAs that hold two tiles of query rows of the same tokens each convert half of a block, and
/// give it to the other ("crossover").
///
/// Tokens are located in three steps, each one block ahead of the next step: look_up() loads a block's
/// entries, locate() computes addresses from them, then a loader reads the rows.
template <class Format_, int kWarps, int kCluster>
class ListedRows {
 public:
  using Format = Format_;
  static constexpr bool kLists = true;
  static constexpr int kThreads = 32 * kWarps;
  __device__ __forceinline__ static int threads(const CacheArguments&) { return kThreads; }
  static constexpr int kArrivals = kCluster == 1 ? kThreads : kWarps;
  static constexpr bool kZeroesDead = true;
  static constexpr bool kReaderFences = kCluster == 1;
  static constexpr bool kAllReadersArrive = false;
  static constexpr bool kPairs = true;
  static constexpr bool kLeavesScale = kHasCacheScale<Format>;

  __device__ __forceinline__ static void prepare(const CUtensorMap&) {}

  __device__ __forceinline__ void look_ahead(const ListedRange& range) {
    __syncwarp();  // all lanes have read the range: ptxas reads next_begin along with `end`
    if (lane() == 0) {
      kept_.next = range.lists;
      kept_.next_begin = range.begin;
      kept_.next_end = range.end;
    }
    __syncwarp();
    if (!has_more()) look_up();
  }

 protected:
  static constexpr int kRows = 8;  // a warp's
  static constexpr int kOwnRows = kTileRows / kCluster;
  static_assert(kOwnRows == kRows * kWarps);

  /// What each warp keeps in shared memory.
  struct Kept {
    ListRange now, next;  // of the blocks that are being located, and of the next ones
    int end, next_begin, next_end;
    __device__ __forceinline__ void init() { end = next_begin = next_end = 0; }
  };

  __device__ __forceinline__ ListedRows(const CacheArguments& cache, int thread, Kept& kept)
      : cache_(cache), kept_(kept) {
    const int first = (kCluster == 1 ? 0 : ptx::rank_in_cluster() * kOwnRows) + thread / 32 * kRows;
    self_ = first * 32 + thread % 32;
    place_ = unit_offset(first + thread % 32 / 4, thread % 4 * 2);
  }

  /// Hidden from the compiler, so that what is computed from them gets no register of its own.
  __device__ __forceinline__ int lane() const { return opaque(self_) % 32U; }
  __device__ __forceinline__ int first_row() const { return opaque(self_) / 32U; }

  /// Tokens that a warp locates, by one or four lanes each: its own rows, or in a cluster the rows of all
  /// warps of its CTA, of which the first warp says which tokens count.
  static constexpr int kLocated = kCluster == 1 ? kRows : kOwnRows;
  /// The lane that locates the token which this one converts.
  __device__ __forceinline__ int locating_lane() const {
    return kCluster == 1 ? lane() / 4 : first_row() % kOwnRows + lane() / 4;
  }
  /// The number of this lane, or warp, among the four that locate a token.
  __device__ __forceinline__ int locator() const {
    return kCluster == 1 ? lane() / kRows : first_row() % kOwnRows / kRows;
  }

  /// Loads the entries of the block after the one located last, if that block is announced.
  __device__ __forceinline__ void look_up() {
    if (!has_more()) {
      block_ = kept_.next_begin;
      __syncwarp();
      if (lane() == 0) {
        kept_.now = kept_.next;
        kept_.end = kept_.next_end;
        kept_.next_end = kept_.next_begin;
      }
      __syncwarp();
    }
    if (has_more()) entry_ = entry_of(cache_, kept_.now, place());
  }

  /// 0, in a way that ptxas cannot see.
  __device__ __forceinline__ std::uint32_t never() const { return opaque(self_) >> 31; }

  /// Is there a block that is not located yet?
  __device__ __forceinline__ bool has_more() const { return block_ < kept_.end; }

  struct Row {
    const std::uint8_t* data;
    int scales_offset;
    std::uint32_t live;  // a bit for each of the tokens located
  };
  /// The row of the lane's token in the next block.
  __device__ __forceinline__ Row locate() {
    const ListedToken found = token_of(cache_, kept_.now, place(), entry_, 0);
    Row row;
    if constexpr (kIsRecord<Format>) {
      row = {found.data, Format::scales_offset(cache_.listed[place().second], found.in_page), 0};
    } else {
      row = {found.data, Format::scales_offset(found.page_size, found.in_page), 0};
    }
    ++block_;
    row.live = __ballot_sync(0xffffffff, row.data != nullptr);
    if (kLocated < 32) row.live &= (1U << kLocated % 32) - 1;
    if (row.data == nullptr)
      row = {reinterpret_cast<const std::uint8_t*>(kZeroRow), fp8_656::kScaleOffset, row.live};
    return row;
  }

  /// The format of the next block's tokens, if lists name it; call before locate().
  __device__ __forceinline__ Record record_of_next() const { return cache_.listed[place().second].record; }

  /// A unit's tiles are [first_tile, last_tile], in the order of loading.
  static constexpr int kUnits = (Format::kTiles + 1) / 2;
  __host__ __device__ static constexpr int first_tile(int unit) {
    return Format::kTiles % 2 == 0 ? 2 * unit : unit == 0 ? 0 : 2 * unit - 1;
  }
  __host__ __device__ static constexpr int last_tile(int unit) {
    return Format::kTiles % 2 == 0 ? 2 * unit + 1 : 2 * unit;
  }
  __host__ __device__ static constexpr int tiles_of(int unit) {
    return last_tile(unit) - first_tile(unit) + 1;
  }

  /// Where in a row a lane's 16 elements of a tile begin, without the quad lane's 16 bytes (RoPE: 32).
  __host__ __device__ static constexpr int offset_of_tile(int tile) {
    return tile == Format::kRopeTile ? Format::kRopeOffset : Format::codes_offset(tile);
  }

  template <int kTile, class Pipe>
  __device__ __forceinline__ std::uint32_t place_in(const Pipe& pipe) const {
    return ptx::shared_address(&pipe.tile(kTile)) + place_;
  }
  /// 16 elements of a tile.
  struct Converted {
    uint4 low, high;
  };
  template <int kTile>
  __device__ __forceinline__ static Converted convert(const uint4& raw,
                                                      const typename Format::Scales& scales) {
    const typename Format::Scale scale = Format::template scale_of<kTile>(scales);
    const uint2 a = Format::convert(raw.x, scale), b = Format::convert(raw.y, scale);
    const uint2 c = Format::convert(raw.z, scale), d = Format::convert(raw.w, scale);
    return {make_uint4(a.x, a.y, b.x, b.y), make_uint4(c.x, c.y, d.x, d.y)};
  }
  template <int kTile, class Pipe>
  __device__ __forceinline__ void store(const Pipe& pipe, const Converted& values) const {
    const std::uint32_t to = place_in<kTile>(pipe);
    ptx::store_16_bytes(to, values.low);
    ptx::store_16_bytes(to ^ 16, values.high);
  }

  __device__ __forceinline__ static std::uint32_t other() { return ptx::rank_in_cluster() ^ 1; }
  /// In a cluster: does this warp say which tokens count?
  __device__ __forceinline__ bool tells_live() const { return first_row() % kOwnRows == 0; }

  /// Which tokens count; before the first unit is published.
  template <class Pipe>
  __device__ __forceinline__ void publish_live(Pipe& pipe, std::uint32_t live) const {
    if (lane() != 0) return;
    if constexpr (kCluster == 1) {
      reinterpret_cast<std::uint8_t*>(&pipe.live())[first_row() / kRows] = static_cast<std::uint8_t>(live);
    } else if (tells_live()) {
      auto& word = reinterpret_cast<std::uint32_t*>(&pipe.live())[first_row() / kOwnRows];
      word = live;
      ptx::send(ptx::address_in(other(), &word), live, ptx::address_in(other(), &pipe.full(last_tile(0))));
    }
  }

  /// Publishes this warp's rows of a unit's tiles. Without a cluster all lanes arrive, and a tile's readers
  /// fence (docs/log/fp8.md); in a cluster one lane copies the rows to the other CTA.
  template <int kUnit, class Pipe>
  __device__ __forceinline__ void publish(Pipe& pipe) const {
    ptx::Barrier& full = pipe.full(last_tile(kUnit));
    if constexpr (kCluster == 1) {
      ptx::arrive(full);
    } else {
      static_assert(kOwnRows == 32 && kWarps == 4);
      __syncwarp();
      if (!ptx::elect_one()) return;
      ptx::fence_for_async_proxy();
      constexpr std::uint32_t kBytes = kRows * kRowBytes;
      ptx::arrive_expecting(full, tiles_of(kUnit) * kBytes + (kUnit == 0 && tells_live() ? 4 : 0));
#pragma unroll
      for (int i = first_tile(kUnit); i <= last_tile(kUnit); ++i) {
        ptx::copy_to_cta(other(), pipe.tile(i).bytes + first_row() * kRowBytes, kBytes, full);
      }
    }
  }

  const CacheArguments& cache_;
  Kept& kept_;
  int self_;             // the first row of a block that is this warp's, and the lane
  std::uint32_t place_;  // in a tile: unit 2 (lane % 4) of the row that this thread converts

 private:
  __device__ __forceinline__ static std::uint32_t opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  /// The token that this lane locates.
  __device__ __forceinline__ ListPlace place() const {
    return place_in_list(kept_.now, block_, first_row() / kLocated * kLocated + lane() % kLocated);
  }

  int block_ = 0;  // the next to locate of the range of kept_.now
  int entry_ = 0;  // of this lane's token in that block
};

}  // namespace flashlatent::sm90
