// Dense decode of few query rows, transposed ("ETAP", arXiv 2506.01969): KV tokens on wgmma's M side, query
// rows on N, so that no tensor work is padding and the output takes few registers.
//
//   S^T = K Q^T          64 tokens x kRows
//   P^T = exp2(S^T - max)  the maximum over M: lanes, then warps through shared memory
//   O^T += V^T P^T       d_v x kRows, all of it in one warpgroup
//
// The two warpgroups take blocks in turn, each with its own maximum, sums and output; they meet only at a
// segment's end. Memory never waits for them: loader and readers share a ring of tiles.
#pragma once

#include "cuda/etap/ring.cuh"
#include "cuda/etap/softmax.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/q_loader.cuh"
#include "cuda/parts/segments.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashlatent::etap {

enum class Role { kEven = 0, kOdd = 1, kLoader = 2 };

inline constexpr int kAlone = 1;  // + kMe: the named barrier of one warpgroup

/// One of the two computing warpgroups; kMe = 0 takes a segment's even blocks, 1 the odd ones.
template <class Config, int kMe>
class Warpgroup {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Warpgroup(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : shared_(shared),
        args_(args),
        thread_(threadIdx.x % 128),
        fragment_(parts::fragment_of(thread_)),
        ring_(shared) {}

  /// All of one segment, from loading Q to writing the result.
  __device__ __forceinline__ void run(const schedule::Segment& segment, const parts::RowTile& tile,
                                      int length, int lane) {
    if (segment.block_end > segment.block_begin) load_query(tile);
    start(tile, length);
    for (int block = segment.block_begin; block < segment.block_end; ++block) {
      if ((block - segment.block_begin) % 2 == kMe) attend(block);
      ring_.next_block();
    }
    finish(segment, tile, lane);
  }

 private:
  static constexpr int kRows = Config::kRows;
  static constexpr int kFirstV = Config::kQkChunks - Config::kVChunks;  // in the order of loading
  static constexpr int kHalfChunks = Config::kVChunks / 2;
  static constexpr int kFirstKept = kMe * kHalfChunks;  // of the output's chunks, which this one writes
  static constexpr int kFirstGiven = (1 - kMe) * kHalfChunks;  // and the other

  /// Both warpgroups.
  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.segment);
    ptx::wait(shared_.segment, segment_parity_);
    segment_parity_ ^= 1;
  }

  __device__ __forceinline__ void load_query(const parts::RowTile& tile) {
    meet();  // the output of the segment before is out of q
    parts::load_query<Element, kRows, Config::kQkChunks, Config::kComputeThreads>(shared_.q, args_.query,
                                                                                  tile, threadIdx.x);
    meet();
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
    ptx::named_sync(kAlone + kMe, 128);  // all of P is there
    multiply();
  }

  /// s = K Q^T, tile by tile as they land.
  __device__ __forceinline__ void score() {
    const std::uint32_t q = ptx::shared_address(shared_.q);
#pragma unroll
    for (int i = 0; i < Config::kQkChunks; ++i) {
      ring_.wait_full(i);
      if (i == 0) take_live();
      ptx::wgmma_fence();
      const std::uint64_t a = ptx::descriptor_k_major(ptx::shared_address(&ring_.tile(i)));
      const std::uint64_t b = ptx::descriptor_k_major(q + ring_.chunk(i) * kRows * parts::kRowBytes);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, kRows>::template ss<false>(s_, a + step * ptx::kStepAlongRow,
                                                       b + step * ptx::kStepAlongRow, i > 0 || step > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
#pragma unroll
    for (int i = 0; i < kFirstV; ++i) release(i);
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
      grew = grew || factor[i] != 1.0F;
    }
    exponentials<kRows>(s_, scale, max_, sum_);
    store_probabilities<Element, kRows>(ptx::shared_address(shared_.p[kMe]), s_, thread_);
    if (__any_sync(0xffffffff, grew)) rescale(factor);
  }

  /// max_ = the larger of it and the block's maxima, over all four warps.
  __device__ __forceinline__ void take_maximum(float scale) {
    const ColumnValues<kRows> mine = warp_max<kRows>(s_);
    if (thread_ % 32 < 4) put(shared_.warp_max[kMe][thread_ / 32], mine);
    ptx::named_sync(kAlone + kMe, 128);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) {
        const float2 pair =
            *reinterpret_cast<const float2*>(&shared_.warp_max[kMe][warp][8 * j + fragment_.column]);
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
      ptx::named_sync(kAlone + kMe, 128);
    }
    parts::silence_tokens<Element, Config::kVChunks, 128>(tile_of, live_, partial, thread_);
  }

  /// o += V^T P^T; a tile is given back as soon as its product is done.
  __device__ __forceinline__ void multiply() {
    const std::uint64_t p = ptx::descriptor_k_major(ptx::shared_address(shared_.p[kMe]));
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

  /// Brings the two warpgroups' results together; each writes half of the columns.
  __device__ __forceinline__ void finish(const schedule::Segment& segment, const parts::RowTile& tile,
                                         int lane) {
    publish_statistics();
    meet();  // and both have done with q
    ColumnValues<kRows> mine;
    parts::RowScale scale[ColumnValues<kRows>::kCount];
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      const int n = i / 2 * 8 + fragment_.column + i % 2;
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
      mine[i] = parts::exp2_fast(max_[i] - base);
      scale[i] = parts::finish_row(max, sum);
    }
    rescale(mine);
    exchange();
    write(segment, tile, lane, scale);
  }

  __device__ __forceinline__ void publish_statistics() {
    ColumnValues<kRows> sum;
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      sum[i] = across_token_lanes(sum_[i], [](float a, float b) { return a + b; });
    }
    if (thread_ % 32 < 4) {
      put(shared_.warp_sum[kMe][thread_ / 32], sum);
      if (thread_ < 4) put(shared_.row_max[kMe], max_);
    }
  }

  /// Adds the other warpgroup's share to the half of o_ that this one keeps, in two rounds through q.
  __device__ __forceinline__ void exchange() {
    constexpr int kUnitsAChunk = kRows / 2 / 4;  // of four registers
    constexpr int kUnits = kHalfChunks * kUnitsAChunk;
    constexpr int kAtOnce = (kUnits + 1) / 2;
    static_assert(kAtOnce * 128 * 16 <= Config::kQueryBytes / 2);
    auto* mine = reinterpret_cast<float4*>(shared_.q + kMe * (Config::kQueryBytes / 2));
    const auto* others = reinterpret_cast<const float4*>(shared_.q + (1 - kMe) * (Config::kQueryBytes / 2));
#pragma unroll
    for (int first = 0; first < kUnits; first += kAtOnce) {
      if (first > 0) meet();
#pragma unroll
      for (int u = first; u < kUnits && u < first + kAtOnce; ++u) {
        const float* given = &o_[kFirstGiven + u / kUnitsAChunk][u % kUnitsAChunk * 4];
        mine[(u - first) * 128 + thread_] = make_float4(given[0], given[1], given[2], given[3]);
      }
      meet();
#pragma unroll
      for (int u = first; u < kUnits && u < first + kAtOnce; ++u) {
        const float4 value = others[(u - first) * 128 + thread_];
        float* kept = &o_[kFirstKept + u / kUnitsAChunk][u % kUnitsAChunk * 4];
        kept[0] += value.x;
        kept[1] += value.y;
        kept[2] += value.z;
        kept[3] += value.w;
      }
    }
  }

  __device__ __forceinline__ void write(const schedule::Segment& segment, const parts::RowTile& tile,
                                        int lane,
                                        const parts::RowScale (&scale)[ColumnValues<kRows>::kCount]) {
    const std::int64_t slot = static_cast<std::int64_t>(segment.slot) * args_.geometry.lanes + lane;
#pragma unroll
    for (int i = 0; i < ColumnValues<kRows>::kCount; ++i) {
      const int n = i / 2 * 8 + fragment_.column + i % 2;
      if (n >= tile.rows) continue;
      const bool writes_lse = kMe == 0 && fragment_.row == 0;
      if (segment.slot < 0) {
        write_row(n, i, scale[i], tile, writes_lse);
      } else {
        if (writes_lse) args_.partial.lse[slot * kRows + n] = scale[i].lse;
        float* out = args_.partial.out + (slot * kRows + n) * Config::kVDim + fragment_.row;
        for_each_kept(i, [&](int dim, float x) { out[dim] = x * scale[i].factor; });
      }
    }
  }

  __device__ __forceinline__ void write_row(int n, int i, parts::RowScale scale, const parts::RowTile& tile,
                                            bool writes_lse) {
    const parts::OutputArguments& output = args_.output;
    const int token = tile.token(args_.query, n);
    const int head = tile.head(args_.query, n);
    if (writes_lse) {
      output.lse[tile.request * output.lse_batch_stride + head * output.lse_head_stride +
                 token * output.lse_token_stride] = scale.lse;
    }
    float factor = scale.factor;
    if (output.sink != nullptr) factor *= parts::sink_factor(scale.lse, __ldg(output.sink + head));
    Element* out = static_cast<Element*>(output.out) + tile.request * output.batch_stride +
                   token * output.token_stride + head * output.head_stride + fragment_.row;
    for_each_kept(i, [&](int dim, float x) { out[dim] = static_cast<Element>(x * factor); });
  }

  /// body(dimension - fragment row, value) for the kept values of this thread's i-th column.
  template <class Body>
  __device__ __forceinline__ void for_each_kept(int i, Body body) {
#pragma unroll
    for (int chunk = kFirstKept; chunk < kFirstKept + kHalfChunks; ++chunk) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        body(chunk * 64 + 8 * half, o_[chunk][i / 2 * 4 + 2 * half + i % 2]);
    }
  }

  SharedMemory<Config>& shared_;
  const parts::DecodeArguments& args_;
  const int thread_;
  const parts::Fragment fragment_;
  RingPosition<Config> ring_;
  parts::RowTile tile_;
  int length_ = 0;
  std::uint32_t segment_parity_ = 0;
  std::uint64_t live_ = 0;         // which tokens of the block count
  ColumnValues<kRows> max_, sum_;  // base 2; sum_ is this thread's share
  float s_[kRows / 2];
  float o_[Config::kVChunks][kRows / 2];
};

template <class Config, int kMe>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const parts::DecodeArguments& args) {
  Warpgroup<Config, kMe> warpgroup(shared, args);
  parts::for_each_segment(args,
                          [&](const schedule::Segment& segment, const parts::RowTile& tile, int length) {
                            warpgroup.run(segment, tile, length, blockIdx.x % args.geometry.lanes);
                          });
}

template <class Config, class Loader>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                     const CUtensorMap& map) {
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (thread >= Loader::kThreads) return;
  RingPosition<Config> ring(shared);
  parts::for_each_segment(
      args, [&](const schedule::Segment& segment, const parts::RowTile& tile, int length) {
        const parts::BlockRange range{args.cache.block_table + segment.request * args.cache.table_stride,
                                      length, tile.kv_head, segment.block_begin, segment.block_end};
        Loader::load(ring, args.cache, map, range, thread);
      });
}

template <class Config, class Loader>
__device__ __forceinline__ void set_up_barriers(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kRingTiles; ++i) {
      ptx::init(shared.full[i], Loader::kArrivals);
      ptx::init(shared.empty[i], 4);  // the four warps of the block's warpgroup
    }
    ptx::init(shared.segment, Config::kComputeThreads);
    ptx::publish_barriers();
  }
  __syncthreads();
}

template <class Config, class Loader>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kernel(const __grid_constant__ parts::DecodeArguments args, const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= 227 * 1024);
  set_up_barriers<Config, Loader>(shared);
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue

  const Role role = static_cast<Role>(threadIdx.x / 128);
  if (role == Role::kLoader) {
    ptx::give_registers<Config::kLoaderRegisters>();
    load<Config, Loader>(shared, args, map);
  } else {
    ptx::take_registers<Config::kComputeRegisters>();
    if (role == Role::kEven) {
      compute<Config, 0>(shared, args);
    } else {
      compute<Config, 1>(shared, args);
    }
  }
}

}  // namespace flashlatent::etap
