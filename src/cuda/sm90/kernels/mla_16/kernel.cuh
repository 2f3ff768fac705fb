// mla_16: dense decode of up to 16 query rows with mma.sync. Query rows are on M, which they fill, and KV
// tokens on N.
//
//   S = Q K^T          16 x 64: a pair of warps has 16 of the block's tokens, each warp over half of the
//                      columns, with its half of Q in registers; then each takes 8 of the tokens
//   P = exp2(S - max)  the maximum over lanes, then over warps through shared memory
//   O += P V           16 x d_v: each warp has an eighth of the columns
//
// All warps work on one block at a time and synchronise twice in it: when the maxima are written, and when P
// is. Each warp has its own columns of the output, so at a segment's end only the sums of rows are merged.
//
// S, P and V have a warp's eight tokens in the order of token_of(); a product sums over tokens in any order.
// A warp's reads of 16 bytes, four units of rows t and t + 4 at a time, then have no bank conflicts.
//
// Barriers (arrivals): full (loader) and empty; phase n of both is the slot's n-th tile. After the first
// synchronisation K is no longer read. Then all warps free RoPE's tile; V's tiles are freed after the
// products, by the warps that have their columns. Tile 0 also stands for the word of live tokens, so it takes
// an arrival of every warp. A block that is loaded whole has one barrier of each kind, and all warps free it
// after their products.
#pragma once

#include "cuda/sm90/kernels/mla_16/attention.cuh"
#include "cuda/sm90/kernels/mla_16/team_warp.cuh"
#include "cuda/sm90/load/kv_loader.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::mla_16 {

/// A computing warp.
template <class Config>
class Warp : Attention<Config> {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Warp(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Attention<Config>(shared, args) {}

  /// Computes the segment at `position`, from waiting for Q to writing the result.
  __device__ __forceinline__ void run(const sm90::WorkPosition& position) {
    const sm90::Work& work = position.get();
    this->start(work);
    const int blocks = work.blocks();
    if (blocks > 0) {
      if (!has_query_) query_.load(query_.find(args_.query, work.tile, lane_), half_);
      this->arrange_query();
    }
    for (int left = blocks; left > 0; --left) {
      this->score();
      this->attend(work);
    }
    if (blocks > 0) request_query(position.ahead().get());
    finish(work, blocks > 0);
  }

 private:
  using Base = Attention<Config>;
  using Base::args_;
  using Base::half_;
  using Base::lane_;
  using Base::max_;
  using Base::me_;
  using Base::o_;
  using Base::query_;

  /// Loads Q of the next segment, whose registers are free, while this segment's output is written. Not
  /// before the last products: their reads of V would wait behind these 288 loads.
  __device__ __forceinline__ void request_query(const sm90::Work& next) {
    has_query_ = !next.is_end() && next.blocks() > 0;
    if (has_query_) query_.load(query_.find(args_.query, next.tile, lane_), half_);
  }

  /// Writes the segment's result.
  __device__ __forceinline__ void finish(const sm90::Work& work, bool has_blocks) {
    const sm90::RowPair sum = has_blocks ? this->row_sums() : sm90::RowPair{0, 0};
    const schedule::Geometry& g = args_.geometry;
    const std::int64_t slot =
        static_cast<std::int64_t>(work.segment.partial) * g.lanes + args_.lanes.remainder(blockIdx.x);
    const int column = me_ * Config::kWarpColumns + lane_ % 4 * 2;
    const bool writes_lse = column == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + 8 * half;
      const sm90::RowScale scale =
          half ? sm90::finish_row(max_.high, sum.high) : sm90::finish_row(max_.low, sum.low);
      if constexpr (Config::kTurns) {
        if (writes_lse && row < work.tile.rows) {
          sm90::write_max_logit(args_.max_logits, work.tile, work.tile.head(args_.query, row),
                                half ? max_.high : max_.low, scale.lse);
        }
      }
      if (Config::kTurns || work.segment.partial < 0) {
        sm90::write_output<Element>(o_, row, half, scale, args_, work.tile, column, writes_lse);
      } else {
        sm90::write_partial<sm90::StoredPartial<Element, kRows>>(o_, slot * kRows + row, row < work.tile.rows,
                                                                 half, scale, args_.partial, Config::kVDim,
                                                                 column, writes_lse);
      }
    }
  }

  bool has_query_ = false;  // Q of the next segment is loaded
};

template <class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const sm90::DecodeArguments& args) {
  Warp<Config> warp(shared, args);
  sm90::WorkPosition position(shared.work);
  for (; !position.get().is_end(); position.next()) warp.run(position);
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                     const CUtensorMap& kv_map) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  if (thread >= Loader::threads(args.cache)) return;
  sm90::WorkPosition position(shared.work);
  auto tell = [&](const sm90::Work& work) {
    if (thread == 0) position.put(work);
  };
  sm90::load_segments(
      args, Loader(args.cache, kv_map, thread, shared.loader), RingPosition<Config>(shared),
      sm90::PartPlace<1, Config::kTurns>(args), [] {}, tell);
  sm90::Work end;
  end.segment.request = -1;
  tell(end);
}

/// By one thread each of three warps: the lanes of one warp would do it one after another.
template <class Config>
__device__ __forceinline__ void set_up_barriers(SharedMemory<Config>& shared) {
  if (threadIdx.x == 0) {
#pragma unroll
    for (ptx::Barrier& barrier : shared.full) ptx::init(barrier, Config::Loader::kArrivals);
    ptx::publish_barriers();
  } else if (threadIdx.x == 32) {
#pragma unroll
    for (int i = 0; i < Config::kRingBlocks * Config::kBarriers; ++i) {
      ptx::init(shared.empty[i], Config::readers_of(i % Config::kBarriers));
    }
    ptx::publish_barriers();
  } else if (threadIdx.x == 64) {
    if constexpr (Config::kTeam > 1) {
      shared.team.init();
    } else {
      shared.work.init(kWarps);
    }
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
  const bool loads = threadIdx.x >= Config::kComputeThreads;
  if (threadIdx.x == Config::kComputeThreads) Config::Loader::prepare(kv_map);
  set_up_barriers<Config>(shared);
  if constexpr (Config::kTeam > 1) {
    __syncwarp();
    ptx::cluster_arrive();
    const sm90::PartPlace<Config::kTeam> place(args);
    ptx::cluster_wait();  // the barriers of all CTAs are set up
    if (loads) {
      ptx::give_registers<Config::kLoaderRegisters>();
      load_in_team<Config>(shared, args, kv_map, place);
    } else {
      ptx::take_registers<Config::kComputeRegisters>();
      compute_in_team<Config>(shared, args, place);
    }
  } else {
    __syncthreads();
    sm90::wait_for_launch_before();
    if (loads) {
      ptx::give_registers<Config::kLoaderRegisters>();
      load<Config>(shared, args, kv_map);
    } else {
      ptx::take_registers<Config::kComputeRegisters>();
      compute<Config>(shared, args);
    }
  }
}

}  // namespace flashlatent::mla_16
