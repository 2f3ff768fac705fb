// Dense decode of few query rows, transposed ("ETAP", arXiv 2506.01969): KV tokens on wgmma's M side, query
// rows on N, so that no tensor work is padding and the output takes few registers.
//
//   S^T = K Q^T          64 tokens x kRows
//   P^T = exp2(S^T - max)  the maximum over M: lanes, then warps through shared memory
//   O^T += V^T P^T       d_v x kRows, all of it in one warpgroup
//
// The two warpgroups take blocks alternately, each with its own maximum, sums and output. At a segment's end
// the warpgroup that is done first hands its sums to the one with the last block, which writes the result,
// and begins the next segment: they never synchronise, and memory never waits. Code is kept short: between
// segments instructions come from memory that is busy with KV, at 1 to 2 us a miss.
//
// Barriers (arrivals), and why none is waited for with a wrong parity:
// - full (loader), empty (4, a lane of each warp that computes the block, or 128, all lanes, for which one of
//   a warp may arrive): phase n of both is the slot's n-th tile. Tiles used to hand over are freed by the
//   warpgroup that takes. A place's n-th tile may be the other warpgroup's: a wait for the next tile first
//   waits for its release.
// - q_full (128), q_empty (4): phase n of both is the n-th segment with blocks. Who has the first block of
//   segment n + 1 did not have the last of segment n: it waits for the other's arrival at q_empty after the
//   last score of n, stores Q, and arrives at q_full, for which all wait who have a block. None is ever two
//   phases ahead: who has no block in n (it has one only) has the first of n + 1.
// - has_handed[i] (128): the n-th segment of two or more blocks uses i = n % 2, phase n / 2, and handed[i].
//   Who would hand over in segment n + 2 waits for its Q, which comes after an arrival of the other warpgroup
//   in a segment after the n-th (at q_empty, or at q_full): with the n-th it is done.
#pragma once

#include "cuda/sm90/kernels/mla_16_transposed/attention.cuh"
#include "cuda/sm90/kernels/mla_16_transposed/output.cuh"
#include "cuda/sm90/kernels/mla_16_transposed/query.cuh"
#include "cuda/sm90/load/kv_loader.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/walk/segments.cuh"
#include "cuda/sm90/walk/shares.cuh"

namespace flashlatent::mla_16_transposed {

template <class Config>
using Segments = sm90::Segments<1, true, sm90::kTakesLists<typename Config::Loader>, Config::kTurns>;
template <class Config>
using PartPlace = sm90::PartPlace<1, Config::kTurns>;

/// One of the two computing warpgroups: the first takes the CTA's even blocks, the second the odd blocks,
/// counted through all segments.
template <class Config>
class Warpgroup : Attention<Config, Config::kVChunks> {
  using Base = Attention<Config, Config::kVChunks>;

 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Warpgroup(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Base(shared, args) {}

  /// Computes one segment, from waiting for Q to writing the result. `lane`: which of the part's row tiles it
  /// is.
  __device__ __forceinline__ void run(const schedule::Segment& segment, const sm90::RowTile& tile, int lane) {
    const int blocks = segment.block_end - segment.block_begin;
    if (blocks > 0) take_query(tile, blocks);
    tile_ = tile;
    this->start(segment.length);
    for (int block = segment.block_begin; block < segment.block_end; ++block) {
      if (turn_ == me_) attend(block, segment.block_end - block);
      ring_.next_block();
      turn_ ^= 1;
    }
    const bool has_last = turn_ != me_;
    if (has_last || blocks > 1) {
      this->publish_statistics(has_last ? shared_.own[me_] : shared_.handed[handing_ & 1]);
      this->meet_alone();  // statistics are ready; no product reads a tile
      if (!has_last) {
        hand_over();
      } else {
        finish(segment, blocks > 1, lane);
      }
      handing_ += blocks > 1;
    }
  }

 private:
  using Base::args_;
  using Base::arrivals_;
  using Base::column;
  using Base::fragment_;
  using Base::kFirstV;
  using Base::kRows;
  using Base::me_;
  using Base::o_;
  using Base::rescale;
  using Base::ring_;
  using Base::s_;
  using Base::shared_;
  using Base::thread_;
  using Base::tile_;
  static constexpr int kFirstHanded = Config::kVChunks - Config::kHandedTiles;  // of V's tiles

  /// Waits for Q; the warpgroup with the first block loads it.
  __device__ __forceinline__ void take_query(const sm90::RowTile& tile, int blocks) {
    if (turn_ == me_) {
      const QueryShare<Config> share(args_.query, tile, thread_);
      ptx::wait(shared_.q_empty, q_parity_ ^ 1);
      share.store(shared_.q);
      ptx::arrive(shared_.q_full);
    }
    if (turn_ == me_ || blocks > 1) ptx::wait(shared_.q_full, q_parity_);
    q_parity_ ^= 1;
  }

  /// `left`: blocks of the segment from this block on.
  __device__ __forceinline__ void attend(int block, int left) {
    score();
    if (left == 1) this->arrive_as_warp(shared_.q_empty);
    this->softmax(block * 64);
    this->silence(block * 64, [&](int i) -> sm90::Tile& { return ring_.tile(kFirstV + i); });
    ptx::fence_for_async_proxy();
    this->meet_alone();  // all of P is ready
    multiply(left == 2);
  }

  /// s = K Q^T, tile by tile as they land; in several sums, so that a product need not wait for the previous
  /// one (two sums: 1.0 us a block instead of 1.6).
  __device__ __forceinline__ void score() {
    const std::uint64_t q = ptx::descriptor_k_major(ptx::shared_address(shared_.q));
    const typename RingPosition<Config>::TileDescriptors tiles(ring_, ptx::descriptor_k_major);
    constexpr int kMore = Config::kScoreSums - 1;
    float more[kMore][kRows / 2];
    // The block that was here before has been read, so all its tiles have landed. While a tile is still in
    // flight, its previous phase has the parity that is waited for below.
    if constexpr (Config::kSharesPlaces) ring_.wait_empty(0);
#pragma unroll
    for (int i = 0; i < Config::kQkChunks; ++i) {
      if (i == 0 || Config::barrier_of(i) != Config::barrier_of(i - 1)) {
        ring_.wait_full(Config::barrier_of(i));
        if constexpr (Config::Loader::kReaderFences) ptx::fence_for_async_proxy();
      }
      ptx::wgmma_fence();
      const std::uint64_t a = tiles[i];
      const std::uint64_t b = q + ring_.chunk(i) * kRows * sm90::kRowBytes / 16;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int sum = step % Config::kScoreSums;
        ptx::Wgmma<Element, kRows>::template ss<false>(
            sum == 0 ? s_ : more[sum > 0 ? sum - 1 : 0], a + step * ptx::kStepAlongRow,
            b + step * ptx::kStepAlongRow, i > 0 || step >= Config::kScoreSums);
      }
    }
    ptx::wgmma_commit();
    this->take_live();  // meanwhile
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
#pragma unroll
    for (auto& sum : more) {
      ptx::pin_registers(sum);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s_[i] += sum[i];
    }
#pragma unroll
    for (int i = 0; i < kFirstV; ++i) release(i);
  }

  /// o += V^T P^T; a tile is freed as soon as its product is done, except tiles used to hand over.
  __device__ __forceinline__ void multiply(bool hands_over) {
    const std::uint64_t p =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.p[me_]), 0));
    const typename RingPosition<Config>::TileDescriptors tiles(
        ring_, [](std::uint32_t address) { return ptx::descriptor_n_major(address, sizeof(sm90::Tile)); });
#pragma unroll
    for (auto& chunk : o_) ptx::pin_registers(chunk);
    ptx::wgmma_fence();
#pragma unroll
    for (int first = 0; first < Config::kVChunks; first += Config::kTogether) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int chunk = first; chunk < first + Config::kTogether; ++chunk) {
          const std::uint64_t v = tiles[kFirstV + chunk];
          ptx::Wgmma<Element, kRows>::template ss<false, true>(o_[chunk], v + step * ptx::kStepAlongRows,
                                                               p + step * ptx::kStepAlongRow, true);
        }
      }
      ptx::wgmma_commit();
    }
    release_in_order(hands_over, std::make_integer_sequence<int, Config::kVChunks>());
#pragma unroll
    for (auto& chunk : o_) ptx::pin_registers(chunk);
  }

  template <int... kChunk>
  __device__ __forceinline__ void release_in_order(bool hands_over, std::integer_sequence<int, kChunk...>) {
    (finish_product<kChunk>(hands_over), ...);
  }
  template <int kChunk>
  __device__ __forceinline__ void finish_product(bool hands_over) {
    if constexpr (Config::barrier_of(kFirstV + kChunk) == kFirstV + kChunk) {
      ptx::wgmma_wait<(Config::kVChunks - 1 - kChunk) / Config::kTogether>();
      if (kChunk < kFirstHanded || !hands_over) release(kFirstV + kChunk);
    }
  }

  __device__ __forceinline__ void release(int i) {
    if (Config::barrier_of(i) == i) give_back(ring_.empty(i));
  }
  /// One arrival a warp, once all its lanes are done, or each lane's.
  __device__ __forceinline__ void give_back(ptx::Barrier& empty) {
    if constexpr (Config::Loader::kAllReadersArrive) {
      ptx::arrive(empty);
    } else if constexpr (Config::kCountsLanes) {
      __syncwarp();
      if (arrivals_ != 0) ptx::arrive(empty, arrivals_);
    } else {
      this->arrive_as_warp(empty);
    }
  }
  /// The same for a tile that all lanes have read by themselves.
  __device__ __forceinline__ void give_back_read(ptx::Barrier& empty) {
    if constexpr (Config::kReleases == 128) {
      ptx::arrive(empty);
    } else {
      this->arrive_as_warp(empty);
    }
  }
  /// This thread's i-th four values that are handed over, as they lie in registers; both warpgroups have the
  /// same layout.
  __device__ __forceinline__ float4& handed(int i) {
    constexpr int kTileValues = sizeof(sm90::Tile) / (128 * sizeof(float4));
    auto* tile =
        reinterpret_cast<float4*>(ring_.tile_two_back(kFirstV + kFirstHanded + i / kTileValues).bytes);
    return tile[i % kTileValues * 128 + thread_];
  }

  /// Stores raw sums of V into the last tiles of this warpgroup's last block, by now two blocks back.
  __device__ __forceinline__ void hand_over() {
#pragma unroll
    for (int i = 0; i < Config::kVChunks * kRows / 8; ++i) {
      const float* x = &o_[i / (kRows / 8)][i % (kRows / 8) * 4];
      handed(i) = make_float4(x[0], x[1], x[2], x[3]);
    }
    ptx::fence_for_async_proxy();
    ptx::arrive(shared_.has_handed[handing_ & 1]);
  }

  /// The factors by which both warpgroups' sums of a row are multiplied before they are added.
  struct MergedRow {
    RowStatistics row;
    float mine, theirs;
  };

  /// The merged statistics of row n.
  __device__ __forceinline__ MergedRow merge_statistics(int n, bool takes) const {
    const RowStatistics own = Base::row_of(shared_.own[me_], n);
    RowStatistics other = {-INFINITY, 0.0F};
    if (takes) other = Base::row_of(shared_.handed[handing_ & 1], n);
    MergedRow merged;
    merged.row.max = fmaxf(own.max, other.max);
    const float base = sm90::finite_or_zero(merged.row.max);
    merged.mine = sm90::exp2_fast(own.max - base);
    merged.theirs = sm90::exp2_fast(other.max - base);
    merged.row.sum = own.sum * merged.mine + other.sum * merged.theirs;
    return merged;
  }

  /// This thread's columns of values that each lane has computed for a row.
  __device__ __forceinline__ sm90::ColumnValues<kRows> spread(float of_row) const {
    sm90::ColumnValues<kRows> values;
#pragma unroll
    for (int i = 0; i < sm90::ColumnValues<kRows>::kCount; ++i) {
      values[i] = __shfl_sync(0xffffffff, of_row, column(i));
    }
    return values;
  }

  /// o = mine * o + theirs * the values that the other warpgroup has handed over.
  __device__ __forceinline__ void add_handed(const sm90::ColumnValues<kRows>& mine,
                                             const sm90::ColumnValues<kRows>& theirs, bool takes) {
    rescale(mine);
    if (takes) {
#pragma unroll
      for (int i = 0; i < Config::kVChunks * kRows / 8; ++i) {
        const int j = i % (kRows / 8);
        float* x = &o_[i / (kRows / 8)][j * 4];
        const float4 y = handed(i);
        x[0] += y.x * theirs[2 * j];
        x[1] += y.y * theirs[2 * j + 1];
        x[2] += y.z * theirs[2 * j];
        x[3] += y.w * theirs[2 * j + 1];
      }
      ptx::fence_for_async_proxy();
    }
    this->meet_alone();  // all threads have read
    if (takes) {
#pragma unroll
      for (int i = 0; i < Config::kHandedTiles; ++i) {
        const int tile = kFirstV + kFirstHanded + i;
        if (Config::barrier_of(tile) == tile) give_back_read(ring_.empty_two_back(tile));
      }
    }
  }

  __device__ __forceinline__ void wait_handed() {
    ptx::wait(shared_.has_handed[handing_ & 1], handing_ >> 1 & 1);
  }

  /// Takes what the other warpgroup hands over, if it had blocks, and writes the result.
  __device__ __forceinline__ void finish(const schedule::Segment& segment, bool takes, int lane) {
    const std::int64_t slot = this->slot_of(segment, lane);
    if (takes) wait_handed();
    const int n = thread_ % kRows;
    const MergedRow merged = merge_statistics(n, takes);
    const float factor = this->finish_row(segment.partial, slot, n, merged.row, thread_ < kRows);
    add_handed(spread(merged.mine * factor), spread(merged.theirs * factor), takes);
    if (segment.partial >= 0) {
      write_partial<kRows>(o_, this->partial_out(slot), tile_.rows, fragment_);
    } else {
      write_output<Element, kRows>(o_, args_, tile_, thread_);
    }
  }

  int turn_ = 0;                // which warpgroup has the next block
  std::uint32_t q_parity_ = 0;  // segments with blocks so far, modulo 2
  std::uint32_t handing_ = 0;   // segments of two or more blocks so far
};

template <class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                        const PartPlace<Config>& place) {
  sm90::wait_for_launch_before();
  Segments<Config> segments(args, place);
  __syncthreads();
  Warpgroup<Config> warpgroup(shared, args);
  for (schedule::Segment segment; segments.next(segment);) {
    warpgroup.run(segment, segments.tile_of(segment), segments.lane());
  }
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                     const CUtensorMap& kv_map, const PartPlace<Config>& place) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  auto set_up = [] { __syncthreads(); };
  sm90::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) {
    set_up();
  } else {
    sm90::load_segments(args, Loader(args.cache, kv_map, thread, shared.loader), RingPosition<Config>(shared),
                        place, set_up, [](const sm90::Work&) {});
  }
}

/// A part by lists that is a share of one item, or the whole item.
using Part = sm90::Part<true, true, true>;

template <class Config>
__device__ __forceinline__ void compute_share(SharedMemory<Config>& shared,
                                              const sm90::DecodeArguments& args) {
  Part part(args);
  sm90::wait_for_launch_before();
  const sm90::Work& work = part.find();
  __syncthreads();
  if (work.is_end()) return;
  Warpgroup<Config> warpgroup(shared, args);
  warpgroup.run(work.segment, work.tile, args.lanes.remainder(blockIdx.x));
}

template <class Config>
__device__ __forceinline__ void load_share(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                           const CUtensorMap& kv_map) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  static_assert(Loader::kThreads == Config::kLoaderThreads);
  Part part(args);
  sm90::wait_for_launch_before();
  const sm90::Work& work = part.find();
  if (work.is_end()) return __syncthreads();
  Loader loader(args.cache, kv_map, thread, shared.loader);
  const auto range = sm90::range_of<Loader>(args, work.segment, work.tile);
  loader.look_ahead(range);
  __syncthreads();
  RingPosition<Config> ring(shared);
  loader.load(ring, range, [] {});
}

/// By one thread of each of three warps: lanes of one warp would run one after another (1.2 us).
template <class Config>
__device__ __forceinline__ void set_up_barriers(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
#pragma unroll
    for (ptx::Barrier& barrier : shared.full) ptx::init(barrier, Config::Loader::kArrivals);
    ptx::publish_barriers();
  } else if (threadIdx.x == 32) {
#pragma unroll
    for (ptx::Barrier& barrier : shared.empty) ptx::init(barrier, Config::kReleases);
    ptx::publish_barriers();
  } else if (threadIdx.x == 64) {
    ptx::init(shared.q_full, 128);
    ptx::init(shared.q_empty, 4);
    for (ptx::Barrier& barrier : shared.has_handed) ptx::init(barrier, 128);
    ptx::publish_barriers();
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ sm90::DecodeArguments args, const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= 227 * 1024);
  if (sm90::leaves(args)) return;
  set_up_barriers<Config>(shared);
  if (threadIdx.x == Config::kComputeThreads) Config::Loader::prepare(kv_map);
  const PartPlace<Config> place(args);

  if (threadIdx.x >= Config::kComputeThreads) {
    ptx::give_registers<Config::kLoaderRegisters>();
    if constexpr (Config::kHasShare) {
      load_share<Config>(shared, args, kv_map);
    } else {
      load<Config>(shared, args, kv_map, place);
    }
  } else {
    ptx::take_registers<Config::kComputeRegisters>();
    if constexpr (Config::kHasShare) {
      compute_share<Config>(shared, args);
    } else {
      compute<Config>(shared, args, place);
    }
  }
}

}  // namespace flashlatent::mla_16_transposed
