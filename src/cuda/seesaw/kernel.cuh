// Dense decode, 64 query rows a tile, two KV blocks in flight ("seesaw").
//
// The 64 x d_v output is cut into a left and a right half, one a warpgroup, in registers. Warpgroup 0 scores
// even blocks, warpgroup 1 odd ones; each multiplies its own P, from registers, and the other's P, from
// shared memory, with its half of V:
//
//   warpgroup 0 (left)                          warpgroup 1 (right)
//   S0 = Q K0^T, max, P0           --P0,max-->  S1 = Q K1^T
//   O_l += P0 V0_l                              O_r += P0 V0_r, meanwhile max, P1
//   O_l += P1 V1_l                 <--P1,max--  O_r += P1 V1_r
//
// The running maximum passes from block to block, so that both halves have the same scale.
#pragma once

#include "cuda/parts/arguments.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/pv_mma.cuh"
#include "cuda/parts/q_loader.cuh"
#include "cuda/parts/qk_mma.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/parts/softmax.cuh"
#include "cuda/seesaw/smem_layout.cuh"

namespace flashlatent::seesaw {

enum class Role { kLeft = 0, kRight = 1, kLoader = 2 };

inline constexpr int kAlone = 1;  // + kMe: the named barrier of one warpgroup

/// One of the two computing warpgroups: its half of the output and its rows' statistics. kMe = 0: even blocks
/// and the left half; kMe = 1: odd blocks and the right half.
template <class Config, int kMe>
class Warpgroup {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Warpgroup(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : shared_(shared), args_(args), thread_(threadIdx.x % 128), fragment_(parts::fragment_of(thread_)) {}

  /// All of one segment, from loading Q to writing the result.
  __device__ __forceinline__ void run(const schedule::Segment& segment, const parts::RowTile& tile,
                                      int lane) {
    const int blocks = segment.block_end - segment.block_begin;
    if (blocks > 0) load_query(tile);
    start(tile, segment.length);
    for (int i = 0; i < blocks; i += 2) {
      first_block_ = segment.block_begin + i;
      if constexpr (kMe == 0) {
        attend_left(i + 1 < blocks);
      } else {
        attend_right(i + 1 < blocks);
      }
    }
    finish(segment, tile, lane);
  }

 private:
  static constexpr int kFirstColumn = kMe * Config::kHalfDim;
  static constexpr int kFirstTile = kMe * Config::kHalfChunks;

  __device__ __forceinline__ void start(const parts::RowTile& tile, int length) {
#pragma unroll
    for (float& x : o_) x = 0;
    max_ = {-INFINITY, -INFINITY};
    sum_ = {0, 0};
    auto limit = [&](int row) {
      return args_.causal ? length - args_.query.tokens + tile.token(args_.query, row) + 1 : length;
    };
    limit_low_ = limit(fragment_.row);
    limit_high_ = limit(fragment_.row + 8);
    least_limit_ = limit(0);
    length_ = length;
    first_row_ = tile.first;
  }

  /// Both warpgroups. Not a named barrier: racecheck loses sight of one that is waited for while another
  /// completes.
  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.meeting);
    ptx::wait(shared_.meeting, meeting_parity_);
    meeting_parity_ ^= 1;
  }

  __device__ __forceinline__ void load_query(const parts::RowTile& tile) {
    meet();  // the segment before has read its Q and P
    for (int i = threadIdx.x; i < Config::kVDim; i += Config::kComputeThreads) {
      shared_.poison_from[i] = parts::kNoPoison;
    }
    if (threadIdx.x == 0) shared_.poisoned = 0;
    parts::load_query<Element, parts::kTileRows, Config::kSharedQChunks, Config::kComputeThreads>(
        shared_.q[0].bytes, args_.query, tile, threadIdx.x);
    if constexpr (Config::kRegisterChunks > 0) {
      parts::load_query_fragment<Element, Config::kSharedQChunks>(q_fragment_, args_.query, tile, fragment_);
    }
    meet();
  }

  /// Blocks first_block_ (even) and, where there is one, first_block_ + 1 (odd), seen from the left.
  __device__ __forceinline__ void attend_left(bool has_odd) {
    score();
    const parts::RowPair factor = softmax(max_);
    hand_over_probabilities();
    parts::rescale(o_, factor);
    multiply_own();
    finish_products(0);
    if (!has_odd) return;
    take_over(1);
    multiply_others(1);
    finish_products(1);
  }

  /// The same from the right.
  __device__ __forceinline__ void attend_right(bool has_odd) {
    if (has_odd) score();
    take_over(0);
    multiply_others(0);  // runs while this warpgroup takes its exponentials
    if (!has_odd) {
      finish_products(0);
      return;
    }
    const parts::RowPair factor = softmax(max_);
    hand_over_probabilities();
    finish_products(0);
    parts::rescale(o_, factor);
    multiply_own();
    finish_products(1);
  }

  /// s = Q K^T of this warpgroup's block, chunk by chunk as tiles land.
  __device__ __forceinline__ void score() {
    typename Config::State& state = shared_.state[kMe];
#pragma unroll
    for (int i = 0; i < Config::kQkChunks; ++i) {
      const int chunk = Config::chunk_order(kMe, i);
      ptx::wait(state.full[chunk], parity_);
      if (i == 0) take_live(state);
      ptx::wgmma_fence();
      const parts::Tile& k = shared_.kv[kMe].tiles[chunk];
      if constexpr (Config::kRegisterChunks > 0) {
        if (i == 0) {  // the RoPE chunk
          parts::qk_chunk<Element>(s_, q_fragment_, k, false);
          continue;
        }
      }
      parts::qk_chunk<Element>(s_, shared_.q[chunk], k, i > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
    parity_ ^= 1;
#pragma unroll
    for (int chunk = Config::kVChunks; chunk < Config::kQkChunks; ++chunk) release(kMe, chunk);
  }

  /// From scores to probabilities (in s_ and, packed, p_); `before` is the maximum so far. Returns by what
  /// the output so far must shrink.
  __device__ __forceinline__ parts::RowPair softmax(parts::RowPair before) {
    const float scale = parts::positive_scale(s_, args_.scale_log2);
    const int start = (first_block_ + kMe) * 64;
    // Those that some rows of the tile attend to and others do not.
    const std::uint64_t partial = live_ & ~parts::low_tokens(least_limit_ - start);
    if (live_ != parts::kAllLive || partial != 0) {
      parts::mask_scores(s_, live_, limit_low_ - start, limit_high_ - start, fragment_);
      silence(start, partial);
    }
    max_ = parts::row_max(s_, scale, before);
    const parts::RowPair factor = parts::shrink(before, max_);
    const parts::RowPair sum = parts::exponentials(s_, scale, max_);
    sum_ = {sum_.low * factor.low + sum.low, sum_.high * factor.high + sum.high};
    parts::pack_probabilities<Element>(p_, s_);
    return factor;
  }

  /// Which tokens of the block count. Before any of its tiles is given back: the loader then writes the next.
  /// One lane reads, the one that gives tiles back, so that its arrival orders the reading.
  __device__ __forceinline__ void take_live(const typename Config::State& state) {
    std::uint64_t live = 0;
    if (thread_ % 32 == 0) live = state.live;
    live_ = __shfl_sync(0xffffffff, live, 0);
  }

  /// Nothing of dead tokens may reach the output through V, whose block this is.
  __device__ __forceinline__ void silence(int start, std::uint64_t partial) {
    parts::Tile* tiles = shared_.kv[kMe].tiles;
    if (partial != 0) {
      // The query token that sees token t of the block first, as a row of the tile.
      const int offset = start - length_ + args_.query.tokens;
      const bool found = parts::record_poison<Element, Config::kVDim, 128>(
          shared_.poison_from, tiles, partial, thread_,
          [&](int token) { return (token + offset) * args_.query.group - first_row_; });
      if (found) shared_.poisoned = 1;
      ptx::named_sync(kAlone + kMe, 128);
    }
    parts::silence_tokens<Element, Config::kVChunks, 128>([&](int i) -> parts::Tile& { return tiles[i]; },
                                                          live_, partial, thread_);
    ptx::fence_for_async_proxy();
    ptx::named_sync(kAlone + kMe, 128);
  }

  /// P and the maximum to shared memory. The other warpgroup has read the P before: this
  /// block's tiles could not have been refilled otherwise.
  __device__ __forceinline__ void hand_over_probabilities() {
    const int lane = thread_ % 32;
    const int row = thread_ / 32 * 16 + lane % 16;
    const std::uint32_t tile = ptx::shared_address(&shared_.p[kMe]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ptx::store_matrices(tile + parts::unit_offset(row, 2 * k + lane / 16), p_[k]);
    }
    if (fragment_.column == 0) {
      shared_.row_max[kMe][fragment_.row] = max_.low;
      shared_.row_max[kMe][fragment_.row + 8] = max_.high;
    }
    ptx::fence_for_async_proxy();
    ptx::arrive(shared_.handed_over[kMe]);
  }

  /// The maximum after the other warpgroup's block; what is summed so far shrinks to it.
  __device__ __forceinline__ void take_over(int block) {
    ptx::wait(shared_.handed_over[block], handover_parity_);
    handover_parity_ ^= 1;
    const parts::RowPair max{shared_.row_max[block][fragment_.row],
                             shared_.row_max[block][fragment_.row + 8]};
    const parts::RowPair factor = parts::shrink(max_, max);
    max_ = max;
    sum_ = {sum_.low * factor.low, sum_.high * factor.high};
    parts::rescale(o_, factor);
  }

  __device__ __forceinline__ void multiply_own() {
    ptx::pin_registers(o_);
    ptx::wgmma_fence();
    parts::pv<Element, Config::kHalfDim>(o_, p_, shared_.kv[kMe].tiles + kFirstTile);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void multiply_others(int block) {
    ptx::pin_registers(o_);
    ptx::wgmma_fence();
    parts::pv<Element, Config::kHalfDim>(o_, shared_.p[block], shared_.kv[block].tiles + kFirstTile);
    ptx::wgmma_commit();
  }

  /// Waits for the product with `block`'s V and gives its tiles back: this half's last reader is this
  /// product.
  __device__ __forceinline__ void finish_products(int block) {
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o_);
#pragma unroll
    for (int i = 0; i < Config::kHalfChunks; ++i) release(block, kFirstTile + i);
  }

  /// One arrival a warp, once all its lanes are done.
  __device__ __forceinline__ void release(int block, int chunk) {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::arrive(shared_.state[block].empty[chunk]);
  }

  __device__ __forceinline__ void finish(const schedule::Segment& segment, const parts::RowTile& tile,
                                         int lane) {
    const parts::RowPair mine{parts::quad_sum(sum_.low), parts::quad_sum(sum_.high)};
    meet();  // row_sum of the segment before is read
    if (fragment_.column == 0) {
      shared_.row_sum[kMe][fragment_.row] = mine.low;
      shared_.row_sum[kMe][fragment_.row + 8] = mine.high;
    }
    meet();
    if (segment.block_end > segment.block_begin && shared_.poisoned != 0) spread_poison();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = fragment_.row + 8 * half;
      const float sum = shared_.row_sum[0][row] + shared_.row_sum[1][row];
      const parts::RowScale scale = parts::finish_row(half ? max_.high : max_.low, sum);
      const int column = kFirstColumn + fragment_.column;
      const bool writes_lse = kMe == 0 && fragment_.column == 0;
      if (segment.slot < 0) {
        parts::write_output<Element>(o_, row, half, scale, args_, tile, column, writes_lse);
      } else if (row < tile.rows) {
        const std::int64_t slot = static_cast<std::int64_t>(segment.slot) * args_.geometry.lanes + lane;
        parts::write_partial(o_, slot * 64 + row, half, scale, args_.partial, Config::kVDim, column,
                             writes_lse);
      }
    }
  }

  /// What silence() found goes into the outputs, here and not there: the loop over blocks has no registers
  /// and no time to spare for it (it took 14 % longer).
  __device__ __forceinline__ void spread_poison() {
#pragma unroll
    for (int i = 0; i < Config::kHalfDim / 2; ++i) {
      const int column = kFirstColumn + i / 4 * 8 + fragment_.column + i % 2;
      if (fragment_.row + i % 4 / 2 * 8 >= shared_.poison_from[column]) o_[i] = NAN;
    }
  }

  SharedMemory<Config>& shared_;
  const parts::DecodeArguments& args_;
  const int thread_;
  const parts::Fragment fragment_;
  std::uint32_t parity_ = 0;  // of this warpgroup's buffer
  std::uint32_t meeting_parity_ = 0;
  std::uint32_t handover_parity_ = 0;  // of the other's probabilities
  int first_block_ = 0;
  std::uint64_t live_ = 0;              // which tokens of this warpgroup's block count
  int limit_low_ = 0, limit_high_ = 0;  // tokens that the thread's rows attend to
  int least_limit_ = 0;                 // and the tile's first row
  int length_ = 0;
  int first_row_ = 0;
  parts::RowPair max_, sum_;  // base 2; sum_ is this thread's share
  std::uint32_t q_fragment_[4][4];
  std::uint32_t p_[4][4];
  float s_[32];
  float o_[Config::kHalfDim / 2];
};

template <class Config, int kMe>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const parts::DecodeArguments& args) {
  Warpgroup<Config, kMe> warpgroup(shared, args);
  parts::Segments segments(args);
  for (schedule::Segment segment; segments.next(segment);) {
    warpgroup.run(segment, segments.tile_of(segment), segments.lane());
  }
}

template <class Config, class Loader>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                     const CUtensorMap& map) {
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (thread >= Loader::kThreads) return;
  parts::load_segments(args, Loader(args.cache, map, thread), Pipe<Config>(shared.kv, shared.state));
}

template <class Config, class Loader>
__device__ __forceinline__ void set_up_barriers(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
    for (ptx::Barrier& barrier : shared.handed_over) ptx::init(barrier, 128);
    ptx::init(shared.meeting, Config::kComputeThreads);
    for (auto& state : shared.state) {
      for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
        ptx::init(state.full[chunk], Loader::kArrivals);
        ptx::init(state.empty[chunk], 4);  // the four warps of the warpgroup that reads it last
      }
    }
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config, class Loader>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ parts::DecodeArguments args, const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  set_up_barriers<Config, Loader>(shared);
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue

  const Role role = static_cast<Role>(threadIdx.x / 128);
  if (role == Role::kLoader) {
    ptx::give_registers<Config::kLoaderRegisters>();
    load<Config, Loader>(shared, args, map);
  } else {
    ptx::take_registers<Config::kComputeRegisters>();
    if (role == Role::kLeft) {
      compute<Config, 0>(shared, args);
    } else {
      compute<Config, 1>(shared, args);
    }
  }
}

}  // namespace flashlatent::seesaw
