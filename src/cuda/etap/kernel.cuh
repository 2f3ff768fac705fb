// Dense decode of few query rows, transposed ("ETAP", arXiv 2506.01969): KV tokens on wgmma's M side, query
// rows on N, so that no tensor work is padding and the output takes few registers.
//
//   S^T = K Q^T          64 tokens x kRows
//   P^T = exp2(S^T - max)  the maximum over M: lanes, then warps through shared memory
//   O^T += V^T P^T       d_v x kRows, all of it in one warpgroup
//
// The two warpgroups take blocks in turn, each with its own maximum, sums and output; they meet only at a
// segment's end. Memory never waits for them: loader and readers share a ring of tiles. Code is kept short:
// between segments instructions come from a memory that is busy with KV, at 1 to 2 us a miss.
#pragma once

#include "cuda/etap/ring.cuh"
#include "cuda/etap/softmax.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashlatent::etap {

enum class Role { kEven = 0, kOdd = 1, kLoader = 2 };  // a warpgroup each

inline constexpr int kAlone = 1;  // + which: the named barrier of one warpgroup

/// One of the two computing warpgroups: the first takes a segment's even blocks, the second the odd ones.
template <class Config>
class Warpgroup {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Warpgroup(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                       const CUtensorMap& query_map)
      : shared_(shared),
        args_(args),
        query_map_(query_map),
        me_(threadIdx.x / 128),
        thread_(threadIdx.x % 128),
        fragment_(parts::fragment_of(thread_)),
        ring_(shared) {}

  /// All of one segment, from loading Q to writing the result.
  __device__ __forceinline__ void run(const schedule::Segment& segment, const parts::RowTile& tile,
                                      int lane) {
    if (segment.block_end > segment.block_begin) load_query(tile);
    start(tile, segment.length);
    for (int block = segment.block_begin; block < segment.block_end; ++block) {
      if ((block - segment.block_begin) % 2 == me_) attend(block);
      ring_.next_block();
    }
    finish(segment, lane);
  }

 private:
  static constexpr int kRows = Config::kRows;
  static constexpr int kFirstV = Config::kQkChunks - Config::kVChunks;  // in the order of loading

  /// Both warpgroups. Not a named barrier: racecheck reports hazards between accesses that one orders, it
  /// seems where it is waited for while another completes.
  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.meeting);
    ptx::wait(shared_.meeting, meeting_parity_);
    meeting_parity_ ^= 1;
  }

  /// The tile's rows of Q by TMA: all tokens and heads of the KV head's group, so that rows are token-major.
  __device__ __forceinline__ void load_query(const parts::RowTile& tile) {
    ptx::fence_for_async_proxy();  // what was staged in q
    meet();
    if (threadIdx.x < 32 && ptx::elect_one()) {
      ptx::arrive_expecting(shared_.q_full, tile.rows * Config::kQkDim * sizeof(Element));
#pragma unroll 1
      for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
        ptx::copy_box(shared_.q + chunk * kRows * parts::kRowBytes, query_map_, chunk * 64,
                      tile.kv_head * args_.query.group, 0, tile.request, shared_.q_full);
      }
    }
    ptx::wait(shared_.q_full, q_parity_);
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
    return length_ - args_.query.tokens + tile_.token(args_.query, n) + 1 - start;
  }

  __device__ __forceinline__ void attend(int block) {
    score();
    softmax(block * 64);
    silence(block * 64);
    ptx::fence_for_async_proxy();
    ptx::named_sync(kAlone + me_, 128);  // all of P is there
    multiply();
  }

  /// s = K Q^T, tile by tile as they land; in two sums, so that a product need not wait for the one before
  /// (1.0 us a block instead of 1.6).
  __device__ __forceinline__ void score() {
    const std::uint32_t q = ptx::shared_address(shared_.q);
    float odd[kRows / 2];
#pragma unroll
    for (int i = 0; i < Config::kQkChunks; ++i) {
      ring_.wait_full(i);
      if (i == 0) take_live();
      ptx::wgmma_fence();
      const std::uint64_t a = ptx::descriptor_k_major(ptx::shared_address(&ring_.tile(i)));
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
    if (live_ == parts::kAllLive && partial == 0) return;
    auto tile_of = [&](int chunk) -> parts::Tile& { return ring_.tile(kFirstV + chunk); };
    if (partial != 0) {
      spread_poison<Element, kRows, Config::kVChunks>(o_, tile_of, partial, fragment_,
                                                      [&](int n) { return limit(n, start); });
      ptx::named_sync(kAlone + me_, 128);
    }
    parts::silence_tokens<Element, Config::kVChunks, 128>(tile_of, live_, partial, thread_);
  }

  /// o += V^T P^T; a tile is given back as soon as its product is done.
  __device__ __forceinline__ void multiply() {
    const std::uint64_t p = ptx::descriptor_k_major(ptx::shared_address(shared_.p[me_]));
#pragma unroll
    for (auto& chunk : o_) ptx::pin_registers(chunk);
    ptx::wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < Config::kVChunks; ++chunk) {
      const std::uint64_t v =
          ptx::descriptor_n_major(ptx::shared_address(&ring_.tile(kFirstV + chunk)), sizeof(parts::Tile));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, kRows>::template ss<false, true>(o_[chunk], v + step * ptx::kStepAlongRows,
                                                             p + step * ptx::kStepAlongRow, true);
      }
      ptx::wgmma_commit();
    }
    release_in_order(std::make_integer_sequence<int, Config::kVChunks>());
#pragma unroll
    for (auto& chunk : o_) ptx::pin_registers(chunk);
  }

  template <int... kChunk>
  __device__ __forceinline__ void release_in_order(std::integer_sequence<int, kChunk...>) {
    ((ptx::wgmma_wait<Config::kVChunks - 1 - kChunk>(), release(kFirstV + kChunk)), ...);
  }

  /// One arrival a warp, once all its lanes are done.
  __device__ __forceinline__ void release(int i) {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::arrive(ring_.empty(i));
  }

  /// Brings the two warpgroups' results together and writes them.
  __device__ __forceinline__ void finish(const schedule::Segment& segment, int lane) {
    publish_statistics();
    meet();  // statistics are there, and both have done with q
    const std::int64_t slot = static_cast<std::int64_t>(segment.slot) * args_.geometry.lanes + lane;
    ColumnValues<kRows> factor;
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      const int n = column(i);
      const float max = fmaxf(shared_.row_max[0][n], shared_.row_max[1][n]);
      const float base = parts::finite_or_zero(max);
      float sum = 0;
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        float share = 0;
#pragma unroll
        for (int warp = 0; warp < 4; ++warp) share += shared_.warp_sum[group][warp][n];
        sum += share * parts::exp2_fast(shared_.row_max[group][n] - base);
      }
      const parts::RowScale scale = parts::finish_row(max, sum);
      factor[i] = scale.factor * parts::exp2_fast(max_[i] - base);
      if (threadIdx.x < 4 && n < tile_.rows) write_lse(segment, slot, n, scale.lse);
      if (segment.slot < 0 && args_.output.sink != nullptr && n < tile_.rows) {
        factor[i] *= parts::sink_factor(scale.lse, __ldg(args_.output.sink + tile_.head(args_.query, n)));
      }
    }
    rescale(factor);
#pragma unroll
    for (int chunk = 0; chunk < Config::kVChunks; chunk += kRoundChunks) {
      if (chunk > 0) meet();  // the columns before are out
      if (me_ == 0) stage(chunk, [](float& staged, float x) { staged = x; });
      meet();
      if (me_ == 1) stage(chunk, [](float& staged, float x) { staged += x; });
      meet();
      write(segment, slot, chunk * 64);
    }
  }

  __device__ __forceinline__ void write_lse(const schedule::Segment& segment, std::int64_t slot, int n,
                                            float lse) {
    const parts::OutputArguments& output = args_.output;
    if (segment.slot < 0) {
      output
          .lse[tile_.request * output.lse_batch_stride + tile_.head(args_.query, n) * output.lse_head_stride +
               tile_.token(args_.query, n) * output.lse_token_stride] = lse;
    } else {
      args_.partial.lse[slot * kRows + n] = lse;
    }
  }

  __device__ __forceinline__ void publish_statistics() {
    ColumnValues<kRows> sum;
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      sum[i] = across_token_lanes(sum_[i], [](float a, float b) { return a + b; });
    }
    if (thread_ % 32 < 4) {
      put(shared_.warp_sum[me_][thread_ / 32], sum);
      if (thread_ < 4) put(shared_.row_max[me_], max_);
    }
  }

  static constexpr int kRoundChunks = Config::kStagingColumns / 64;
  static constexpr int kStagingStride = Config::kStagingColumns + Config::kStagingPad;

  /// Puts kRoundChunks chunks of o, transposed back, where both warpgroups can reach them.
  template <class Store>
  __device__ __forceinline__ void stage(int first_chunk, Store store) {
    float* staging = reinterpret_cast<float*>(shared_.q);
#pragma unroll
    for (int chunk = 0; chunk < kRoundChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        const int n = column(i / 4 * 2 + i % 2);
        const int dim = chunk * 64 + fragment_.row + i % 4 / 2 * 8;
        store(staging[n * kStagingStride + dim], o_[first_chunk + chunk][i]);
      }
    }
  }

  /// What is staged, which is columns from `first` on, to memory; four columns a thread at a time.
  __device__ __forceinline__ void write(const schedule::Segment& segment, std::int64_t slot, int first) {
    constexpr int kUnits = Config::kStagingColumns / 4;  // a row
    const float* staging = reinterpret_cast<const float*>(shared_.q);
#pragma unroll 1
    for (int index = threadIdx.x; index < tile_.rows * kUnits; index += Config::kComputeThreads) {
      const int n = index / kUnits;
      const int unit = index % kUnits;
      const float4 x = *reinterpret_cast<const float4*>(staging + n * kStagingStride + unit * 4);
      const int dim = first + unit * 4;
      if (segment.slot >= 0) {
        *reinterpret_cast<float4*>(args_.partial.out + (slot * kRows + n) * Config::kVDim + dim) = x;
        continue;
      }
      const parts::OutputArguments& output = args_.output;
      auto* out = reinterpret_cast<std::uint32_t*>(static_cast<Element*>(output.out) +
                                                   tile_.request * output.batch_stride +
                                                   tile_.token(args_.query, n) * output.token_stride +
                                                   tile_.head(args_.query, n) * output.head_stride + dim);
      out[0] = parts::pack<Element>(x.x, x.y);
      out[1] = parts::pack<Element>(x.z, x.w);
    }
  }

  SharedMemory<Config>& shared_;
  const parts::DecodeArguments& args_;
  const CUtensorMap& query_map_;
  const int me_;
  const int thread_;
  const parts::Fragment fragment_;
  RingPosition<Config> ring_;
  parts::RowTile tile_;
  int length_ = 0;
  std::uint32_t meeting_parity_ = 0;
  std::uint32_t q_parity_ = 0;
  std::uint64_t live_ = 0;         // which tokens of the block count
  ColumnValues<kRows> max_, sum_;  // base 2; sum_ is this thread's share
  float s_[kRows / 2];
  float o_[Config::kVChunks][kRows / 2];
};

template <class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                        const CUtensorMap& query_map) {
  Warpgroup<Config> warpgroup(shared, args, query_map);
  parts::Segments segments(args);
  for (schedule::Segment segment; segments.next(segment);) {
    warpgroup.run(segment, segments.tile_of(segment), segments.lane());
  }
}

template <class Config, class Loader>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                     const CUtensorMap& kv_map) {
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (thread >= Loader::kThreads) return;
  parts::load_segments(args, Loader(args.cache, kv_map, thread), RingPosition<Config>(shared));
}

template <class Config, class Loader>
__device__ __forceinline__ void set_up_barriers(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kRingTiles; ++i) {
      ptx::init(shared.full[i], Loader::kArrivals);
      ptx::init(shared.empty[i], 4);  // the four warps of the block's warpgroup
    }
    ptx::init(shared.q_full, 1);
    ptx::init(shared.meeting, Config::kComputeThreads);
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config, class Loader>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ parts::DecodeArguments args, const __grid_constant__ CUtensorMap kv_map,
           const __grid_constant__ CUtensorMap query_map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= 227 * 1024);
  set_up_barriers<Config, Loader>(shared);
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue

  if (threadIdx.x / 128 == static_cast<int>(Role::kLoader)) {
    ptx::give_registers<Config::kLoaderRegisters>();
    load<Config, Loader>(shared, args, kv_map);
  } else {
    ptx::take_registers<Config::kComputeRegisters>();
    compute<Config>(shared, args, query_map);
  }
}

}  // namespace flashlatent::etap
