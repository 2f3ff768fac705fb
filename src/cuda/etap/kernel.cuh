// Dense decode of few query rows, transposed ("ETAP", arXiv 2506.01969): KV tokens on wgmma's M side, query
// rows on N, so that no tensor work is padding and the output takes few registers.
//
//   S^T = K Q^T          64 tokens x kRows
//   P^T = exp2(S^T - max)  the maximum over M: lanes, then warps through shared memory
//   O^T += V^T P^T       d_v x kRows, all of it in one warpgroup
//
// The two warpgroups take blocks in turn, each with its own maximum, sums and output. At a segment's end the
// one that is done first hands its share to the one with the last block, which writes the result, and begins
// the next segment: nobody meets, and memory never waits. Code is kept short: between segments instructions
// come from a memory that is busy with KV, at 1 to 2 us a miss.
//
// Barriers (arrivals), and why none is waited for with a wrong parity:
// - full (loader), empty (4: a lane of each warp that computes the block): phase n of both is the slot's n-th
//   tile. Tiles used to hand over are given back by the warpgroup that takes, with 4 arrivals too.
// - q_full (128), q_empty (4): phase n of both is the n-th segment with blocks. Who has the first block of
//   segment n + 1 did not have the last of segment n: it waits for the other's arrival at q_empty after the
//   last score of n, stores Q, and arrives at q_full, for which all wait who have a block. None is ever two
//   phases ahead: who has no block in n (it has one only) has the first of n + 1.
// - has_handed[i] (128): the n-th segment of two or more blocks uses i = n % 2, phase n / 2, and handed[i].
//   Who would hand over in segment n + 2 waits for its Q, which comes after an arrival of the other warpgroup
//   in a segment after the n-th (at q_empty, or at q_full): with the n-th it is done.
#pragma once

#include "cuda/etap/output.cuh"
#include "cuda/etap/query.cuh"
#include "cuda/etap/ring.cuh"
#include "cuda/etap/softmax.cuh"
#include "cuda/etap/team.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashlatent::etap {

inline constexpr int kAlone = 1;     // + which: the named barrier of one warpgroup
inline constexpr int kTogether = 3;  // that of both

/// One of the two computing warpgroups: the first takes the CTA's even blocks, the second the odd ones,
/// counted through all segments.
template <class Config>
class Warpgroup {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Warpgroup(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : shared_(shared),
        args_(args),
        me_(threadIdx.x / 128),
        thread_(threadIdx.x % 128),
        fragment_(parts::fragment_of(thread_)),
        ring_(shared) {}

  /// All of one segment, from waiting for Q to writing the result. In a team `segment` is this CTA's share,
  /// of team_blocks in all.
  __device__ __forceinline__ void run(const schedule::Segment& segment, const parts::RowTile& tile, int lane,
                                      int team_blocks) {
    const int blocks = segment.block_end - segment.block_begin;
    if (blocks > 0) take_query(tile, blocks);
    start(tile, segment.length);
    for (int block = segment.block_begin; block < segment.block_end; ++block) {
      if (turn_ == me_) attend(block, segment.block_end - block);
      ring_.next_block();
      turn_ ^= 1;
    }
    const bool has_last = turn_ != me_;
    if (has_last || blocks > 1) {
      publish_statistics(has_last ? shared_.own[me_] : shared_.handed[handing_ & 1]);
      ptx::named_sync(kAlone + me_, 128);  // statistics are there; no product reads a tile
      if (!has_last) {
        hand_over();
      } else if constexpr (Config::kTeam > 1) {
        finish_in_team(segment, blocks, lane, team_blocks);
      } else {
        finish(segment, blocks > 1, lane);
      }
      handing_ += blocks > 1;
    }
    if constexpr (Config::kTeam > 1) {
      if (team_blocks == 0) return;
      ++exchanges_;
      ptx::named_sync(kTogether, Config::kComputeThreads);
    }
  }

 private:
  static constexpr int kRows = Config::kRows;
  static constexpr int kFirstV = Config::kQkChunks - Config::kVChunks;          // in the order of loading
  static constexpr int kFirstHanded = Config::kVChunks - Config::kHandedTiles;  // of V's tiles

  /// Until Q is there; the one with the first block brings it.
  __device__ __forceinline__ void take_query(const parts::RowTile& tile, int blocks) {
    if (turn_ == me_) {
      const QueryShare<Config> share(args_.query, tile, thread_);
      ptx::wait(shared_.q_empty, q_parity_ ^ 1);
      share.store(shared_.q);
      ptx::arrive(shared_.q_full);
    }
    if (turn_ == me_ || blocks > 1) ptx::wait(shared_.q_full, q_parity_);
    q_parity_ ^= 1;
  }

  __device__ __forceinline__ void start(const parts::RowTile& tile, int length) {
#pragma unroll
    for (auto& chunk : o_) {
#pragma unroll
      for (float& x : chunk) x = 0;
    }
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      max_[i] = -INFINITY;
      sum_[i] = 0;
    }
    tile_ = tile;
    length_ = length;
  }

  /// How many tokens query row n attends to, counted from `start`.
  __device__ __forceinline__ int limit(int n, int start) const {
    if (!args_.causal) return length_ - start;
    return length_ - tile_.tokens + tile_.token(args_.query, n) + 1 - start;
  }

  /// `left`: blocks of the segment from this one on.
  __device__ __forceinline__ void attend(int block, int left) {
    score();
    if (left == 1) arrive_as_warp(shared_.q_empty);
    softmax(block * 64);
    silence(block * 64);
    ptx::fence_for_async_proxy();
    ptx::named_sync(kAlone + me_, 128);  // all of P is there
    multiply(left == 2);
  }

  /// s = K Q^T, tile by tile as they land; in two sums, so that a product need not wait for the one before
  /// (1.0 us a block instead of 1.6).
  __device__ __forceinline__ void score() {
    const std::uint32_t q = ptx::shared_address(shared_.q);
    const typename RingPosition<Config>::Addresses tiles(ring_);
    float odd[kRows / 2];
#pragma unroll
    for (int i = 0; i < Config::kQkChunks; ++i) {
      if (i == 0 || Config::barrier_of(i) != Config::barrier_of(i - 1)) {
        ring_.wait_full(Config::barrier_of(i));
        if constexpr (Config::Loader::kReaderFences) ptx::fence_for_async_proxy();
      }
      if (i == 0) take_live();
      ptx::wgmma_fence();
      const std::uint64_t a = ptx::descriptor_k_major(tiles[i]);
      const std::uint64_t b = ptx::descriptor_k_major(q + ring_.chunk(i) * kRows * parts::kRowBytes);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, kRows>::template ss<false>(step % 2 == 0 ? s_ : odd,
                                                       a + step * ptx::kStepAlongRow,
                                                       b + step * ptx::kStepAlongRow, i > 0 || step > 1);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
    ptx::pin_registers(odd);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) s_[i] += odd[i];
#pragma unroll
    for (int i = 0; i < kFirstV; ++i) release(i);
  }

  /// The query row of this thread's i-th column.
  __device__ __forceinline__ int column(int i) const {
    return i / 2 * 8 + fragment_.column + i % 2;
  }

  /// Which tokens of the block count. One lane reads, the one that gives tiles back, so that its arrival
  /// orders the reading before the loader's next writing.
  __device__ __forceinline__ void take_live() {
    std::uint64_t live = 0;
    if (thread_ % 32 == 0) live = ring_.live();
    live_ = __shfl_sync(0xffffffff, live, 0);
  }

  /// Those that some rows of the tile attend to and others do not.
  __device__ __forceinline__ std::uint64_t partial_tokens(int start) const {
    return live_ & ~parts::low_tokens(limit(0, start));
  }

  /// From scores to P in shared memory; the output so far shrinks to the new maximum.
  __device__ __forceinline__ void softmax(int start) {
    const float scale = parts::positive_scale(s_, args_.scale_log2);
    if (live_ != parts::kAllLive || partial_tokens(start) != 0) {
      mask_columns<kRows>(s_, live_, fragment_, [&](int n) { return limit(n, start); });
    }
    const ColumnValues<kRows> before = max_;
    take_maximum(scale);
    bool grew = false;
    ColumnValues<kRows> factor;
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      factor[i] = parts::exp2_fast(before[i] - parts::finite_or_zero(max_[i]));
      sum_[i] *= factor[i];
      grew = grew || (factor[i] != 1.0F && column(i) < tile_.rows);
    }
    exponentials<kRows>(s_, scale, max_, sum_);
    store_probabilities<Element, kRows>(ptx::shared_address(shared_.p[me_]), s_, thread_);
    if (__any_sync(0xffffffff, grew)) rescale(factor);
  }

  /// max_ = the larger of it and the block's maxima, over all four warps.
  __device__ __forceinline__ void take_maximum(float scale) {
    const ColumnValues<kRows> mine = warp_max<kRows>(s_);
    if (thread_ % 32 < 4) put(shared_.warp_max[me_][thread_ / 32], mine);
    ptx::named_sync(kAlone + me_, 128);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) {
        const float2 pair =
            *reinterpret_cast<const float2*>(&shared_.warp_max[me_][warp][8 * j + fragment_.column]);
        max_[2 * j] = fmaxf(max_[2 * j], pair.x * scale);
        max_[2 * j + 1] = fmaxf(max_[2 * j + 1], pair.y * scale);
      }
    }
  }

  /// This thread's columns into a row of kRows values.
  __device__ __forceinline__ void put(float (&row)[kRows], const ColumnValues<kRows>& values) const {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      *reinterpret_cast<float2*>(&row[8 * j + fragment_.column]) =
          make_float2(values[2 * j], values[2 * j + 1]);
    }
  }

  __device__ __forceinline__ void rescale(const ColumnValues<kRows>& factor) {
#pragma unroll
    for (auto& chunk : o_) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) chunk[i] *= factor[i / 4 * 2 + i % 2];
    }
  }

  /// Nothing of dead tokens may reach the output through V.
  __device__ __forceinline__ void silence(int start) {
    const std::uint64_t partial = partial_tokens(start);
    if ((Config::Loader::kZeroesDead || live_ == parts::kAllLive) && partial == 0) return;
    auto tile_of = [&](int chunk) -> parts::Tile& { return ring_.tile(kFirstV + chunk); };
    if (partial != 0) {
      spread_poison<Element, kRows, Config::kVChunks>(o_, tile_of, partial, fragment_,
                                                      [&](int n) { return limit(n, start); });
      ptx::named_sync(kAlone + me_, 128);
    }
    parts::silence_tokens<Element, Config::kVChunks, 128>(tile_of, live_, partial, thread_);
  }

  /// o += V^T P^T; a tile is given back as soon as its product is done, but for those to hand over in.
  __device__ __forceinline__ void multiply(bool hands_over) {
    std::uint32_t probabilities = ptx::shared_address(shared_.p[me_]);
    if constexpr (RingPosition<Config>::kWholeBlocks)
      probabilities = __shfl_sync(0xffffffff, probabilities, 0);
    const std::uint64_t p = ptx::descriptor_k_major(probabilities);
    const typename RingPosition<Config>::Addresses tiles(ring_);
#pragma unroll
    for (auto& chunk : o_) ptx::pin_registers(chunk);
    ptx::wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < Config::kVChunks; ++chunk) {
      const std::uint64_t v = ptx::descriptor_n_major(tiles[kFirstV + chunk], sizeof(parts::Tile));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, kRows>::template ss<false, true>(o_[chunk], v + step * ptx::kStepAlongRows,
                                                             p + step * ptx::kStepAlongRow, true);
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
      ptx::wgmma_wait<Config::kVChunks - 1 - kChunk>();
      if (kChunk < kFirstHanded || !hands_over) release(kFirstV + kChunk);
    }
  }

  /// One arrival a warp, once all its lanes are done.
  __device__ __forceinline__ void release(int i) {
    if (Config::barrier_of(i) == i) arrive_as_warp(ring_.empty(i));
  }
  __device__ __forceinline__ void arrive_as_warp(ptx::Barrier& barrier) {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::arrive(barrier);
  }

  __device__ __forceinline__ void publish_statistics(Statistics<kRows>& statistics) {
    ColumnValues<kRows> sum;
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      sum[i] = across_token_lanes(sum_[i], [](float a, float b) { return a + b; });
    }
    if (thread_ % 32 < 4) {
      put(statistics.warp_sum[thread_ / 32], sum);
      if (thread_ < 4) put(statistics.max, max_);
    }
  }

  /// This thread's i-th four values of what is handed over: as they lie in registers, which are the same in
  /// both warpgroups.
  __device__ __forceinline__ float4& handed(int i) {
    constexpr int kTileValues = sizeof(parts::Tile) / (128 * sizeof(float4));
    auto* tile =
        reinterpret_cast<float4*>(ring_.tile_two_back(kFirstV + kFirstHanded + i / kTileValues).bytes);
    return tile[i % kTileValues * 128 + thread_];
  }

  /// Raw sums of V into the last tiles of this warpgroup's last block, two back by now.
  __device__ __forceinline__ void hand_over() {
#pragma unroll
    for (int i = 0; i < Config::kVChunks * kRows / 8; ++i) {
      const float* x = &o_[i / (kRows / 8)][i % (kRows / 8) * 4];
      handed(i) = make_float4(x[0], x[1], x[2], x[3]);
    }
    ptx::fence_for_async_proxy();
    ptx::arrive(shared_.has_handed[handing_ & 1]);
  }

  /// Both warpgroups' shares of a row, and by what each is multiplied to be added up.
  struct MergedRow {
    RowStatistics row;
    float mine, theirs;
  };

  /// Of row n.
  __device__ __forceinline__ MergedRow merge_statistics(int n, bool takes) const {
    auto sum_of = [&](const Statistics<kRows>& statistics) {
      return (statistics.warp_sum[0][n] + statistics.warp_sum[1][n]) +
             (statistics.warp_sum[2][n] + statistics.warp_sum[3][n]);
    };
    const Statistics<kRows>& own = shared_.own[me_];
    const Statistics<kRows>& other = shared_.handed[handing_ & 1];
    MergedRow merged;
    merged.row.max = takes ? fmaxf(own.max[n], other.max[n]) : own.max[n];
    const float base = parts::finite_or_zero(merged.row.max);
    merged.mine = parts::exp2_fast(own.max[n] - base);
    merged.theirs = takes ? parts::exp2_fast(other.max[n] - base) : 0.0F;
    merged.row.sum = sum_of(own) * merged.mine;
    if (takes) merged.row.sum += sum_of(other) * merged.theirs;
    return merged;
  }

  /// By what the sums of row n are multiplied in the end; `writes`: writes its lse.
  __device__ __forceinline__ float finish_row(const schedule::Segment& segment, std::int64_t slot, int n,
                                              RowStatistics row, bool writes) const {
    const parts::RowScale scale = parts::finish_row(row.max, row.sum);
    if (n >= tile_.rows) return scale.factor;
    if (writes) write_lse(segment, slot, n, scale.lse);
    if (segment.slot >= 0 || args_.output.sink == nullptr) return scale.factor;
    return scale.factor *
           parts::sink_factor(scale.lse, __ldg(args_.output.sink + tile_.head(args_.query, n)));
  }

  /// This thread's columns of what a lane has worked out a row.
  __device__ __forceinline__ ColumnValues<kRows> spread(float of_row) const {
    ColumnValues<kRows> values;
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      values[i] = __shfl_sync(0xffffffff, of_row, column(i));
    }
    return values;
  }

  /// o = mine * o + theirs * what the other warpgroup has handed over.
  __device__ __forceinline__ void add_handed(const ColumnValues<kRows>& mine,
                                             const ColumnValues<kRows>& theirs, bool takes) {
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
    ptx::named_sync(kAlone + me_, 128);  // all have read
    if (takes) {
#pragma unroll
      for (int i = 0; i < Config::kHandedTiles; ++i) {
        const int tile = kFirstV + kFirstHanded + i;
        if (Config::barrier_of(tile) == tile) arrive_as_warp(ring_.empty_two_back(tile));
      }
    }
  }

  __device__ __forceinline__ void wait_handed() {
    ptx::wait(shared_.has_handed[handing_ & 1], handing_ >> 1 & 1);
  }

  /// Where the segment's partial result lies.
  __device__ __forceinline__ std::int64_t slot_of(const schedule::Segment& segment, int lane) const {
    return static_cast<std::int64_t>(segment.slot) * args_.geometry.lanes + lane;
  }
  __device__ __forceinline__ float* partial_out(std::int64_t slot) const {
    return args_.partial.out + slot * kRows * Config::kVDim;
  }

  /// Takes what the other warpgroup hands over, if it has a share, and writes the result.
  __device__ __forceinline__ void finish(const schedule::Segment& segment, bool takes, int lane) {
    const std::int64_t slot = slot_of(segment, lane);
    if (takes) wait_handed();
    const int n = thread_ % kRows;
    const MergedRow merged = merge_statistics(n, takes);
    const float factor = finish_row(segment, slot, n, merged.row, thread_ < kRows);
    add_handed(spread(merged.mine * factor), spread(merged.theirs * factor), takes);
    if (segment.slot >= 0) {
      write_partial<kRows>(o_, partial_out(slot), tile_.rows, fragment_);
    } else {
      write_output<Element, kRows>(o_, args_, tile_, thread_);
    }
  }

  /// The same in a team: sends the CTA's share to the owners, and writes what it owns.
  __device__ __forceinline__ void finish_in_team(const schedule::Segment& segment, int blocks, int lane,
                                                 int team_blocks) {
    Exchange<Config> exchange(shared_, thread_, exchanges_, team_blocks);
    exchange.open();
    const int n = thread_ % kRows;
    if (blocks > 0) {
      const bool takes = blocks > 1;
      if (takes) wait_handed();
      const MergedRow merged = merge_statistics(n, takes);
      add_handed(spread(merged.mine), spread(merged.theirs), takes);
      exchange.send(o_, merged.row);
    }
    if (!exchange.is_owner()) return;
    exchange.receive();
    const std::int64_t slot = slot_of(segment, lane);
    const auto weights = exchange.weights(n);
    const float factor = finish_row(segment, slot, n, weights.row, thread_ < kRows && exchange.writes_lse(n));
    float x[Config::kOwnedUnits][4];
    exchange.add_up(x, weights, factor, fragment_);
#pragma unroll
    for (int i = 0; i < Config::kOwnedUnits; ++i) {
      const int chunk = exchange.chunk(i), j = exchange.eight_rows(i);
      if (segment.slot >= 0) {
        write_partial_unit(x[i], chunk, j, partial_out(slot), Config::kVDim, tile_.rows, fragment_);
      } else {
        OutputRows<Element>(args_, tile_, j, thread_).write(x[i], chunk);
      }
    }
  }

  __device__ __forceinline__ void write_lse(const schedule::Segment& segment, std::int64_t slot, int n,
                                            float lse) const {
    if (segment.slot < 0) {
      parts::write_lse(args_.output, tile_, tile_.head(args_.query, n), tile_.token(args_.query, n), lse);
    } else {
      args_.partial.lse[slot * kRows + n] = lse;
    }
  }

  SharedMemory<Config>& shared_;
  const parts::DecodeArguments& args_;
  const int me_;
  const int thread_;
  const parts::Fragment fragment_;
  RingPosition<Config> ring_;
  parts::RowTile tile_;
  int length_ = 0;
  int turn_ = 0;                   // whose block is the next
  std::uint32_t q_parity_ = 0;     // segments with blocks so far, modulo 2
  std::uint32_t handing_ = 0;      // segments of two or more blocks so far
  std::uint32_t exchanges_ = 0;    // in a team: segments with blocks so far
  std::uint64_t live_ = 0;         // which tokens of the block count
  ColumnValues<kRows> max_, sum_;  // base 2; sum_ is this thread's share
  float s_[kRows / 2];
  float o_[Config::kVChunks][kRows / 2];
};

template <class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                        const parts::PartPlace<Config::kTeam>& place) {
  parts::Segments<Config::kTeam> segments(args, place);
  __syncthreads();
  if constexpr (Config::kTeam > 1) ptx::cluster_wait();  // until the others' barriers are there, too
  Warpgroup<Config> warpgroup(shared, args);
  for (schedule::Segment segment; segments.next(segment);) {
    warpgroup.run(segment, segments.tile_of(segment), segments.lane(), segments.team_blocks());
  }
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                     const CUtensorMap& kv_map,
                                     const parts::PartPlace<Config::kTeam>& place) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  auto set_up = [] { __syncthreads(); };
  if (thread >= Loader::kThreads) {
    set_up();
  } else {
    parts::load_segments<Config::kTeam>(args, Loader(args.cache, kv_map, thread, shared.loader),
                                        RingPosition<Config>(shared), place, set_up,
                                        [](const parts::Work&) {});
  }
  __syncwarp();
  if constexpr (Config::kTeam > 1) ptx::cluster_wait();
}

/// By a warp.
template <class Config>
__device__ __forceinline__ void set_up_barriers(SharedMemory<Config>& shared) {
  static_assert(Config::kRingTiles <= 32);
  if (threadIdx.x < Config::kRingTiles) {
    ptx::init(shared.full[threadIdx.x], Config::Loader::kArrivals);
    ptx::init(shared.empty[threadIdx.x], 4);  // the four warps of the block's warpgroup
  }
  if (threadIdx.x < 2) ptx::init(shared.has_handed[threadIdx.x], 128);
  if (threadIdx.x == 0) {
    ptx::init(shared.q_full, 128);
    ptx::init(shared.q_empty, 4);
    if constexpr (Config::kTeam > 1) {
      ptx::init(shared.team.received, 1);
      ptx::init(shared.team.may_send, Config::kTeam);
    }
  }
  ptx::publish_barriers();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ parts::DecodeArguments args, const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= 227 * 1024);
  if (threadIdx.x < 32) set_up_barriers<Config>(shared);
  if (threadIdx.x == Config::kComputeThreads) Config::Loader::prepare(kv_map);
  if constexpr (Config::kTeam > 1) {
    __syncwarp();
    ptx::cluster_arrive();
  }
  const parts::PartPlace<Config::kTeam> place(args.geometry);
  cudaGridDependencySynchronize();            // of what the launch before may still write
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue

  if (threadIdx.x >= Config::kComputeThreads) {
    ptx::give_registers<Config::kLoaderRegisters>();
    load<Config>(shared, args, kv_map, place);
  } else {
    ptx::take_registers<Config::kComputeRegisters>();
    compute<Config>(shared, args, place);
  }
}

}  // namespace flashlatent::etap
