// Parts that are a share of one item each (walk/shares.cuh). From one list of an fp8_656 cache clusters of
// two take them, whose computing warps load the first blocks (Config::kLoadsFirst); otherwise the loaders
// load all blocks. By two lists parts may also be whole items by kTurns (walk/listed_items.cuh).
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/line.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/walk/shares.cuh"

namespace flashlatent::mla_64_pingpong {

/// How many of its blocks the computing warps load themselves, one a warpgroup.
inline constexpr int kFirstBlocks = 2;

/// No cluster has ragged queries.
template <class Config>
using Part =
    sm90::Part<Config::kCluster == 1, sm90::kTakesLists<typename Config::Loader>, Config::kListShares>;

/// Waits until the other CTA of the cluster has written all that it writes here, and read all that it reads
/// here. All threads, once.
__device__ __forceinline__ void leave_cluster() {
  __syncwarp();
  ptx::cluster_release();
  ptx::cluster_wait();
}

template <class Config>
class ShareWarpgroup : public Warpgroup<Config> {
  using Base = Warpgroup<Config>;
  using Base::args_, Base::base_, Base::fragment_, Base::me_, Base::o_, Base::shared_, Base::thread_;

 public:
  using Base::Base;

  /// Loads half of this warpgroup's first block of a share; the same warpgroup of the cluster's other CTA
  /// loads the other half.
  __device__ __forceinline__ void load_first_block(const sm90::Work& work) {
    if (me_ >= work.blocks()) return;
    Pipe<Config> pipe(shared_.kv, shared_.state);
    if (me_ == 1) pipe.next_block();
    sm90::BlockRange range = sm90::block_range(args_.cache, work.segment, work.tile);
    range.begin += me_;
    range.end = range.begin + 1;
    typename Config::Loader::FirstBlock(args_.cache, thread_).load(pipe, range);
  }

  /// The partial result of this CTA's only segment, once all CTAs of the cluster have read their KV. It is
  /// stored to the place of KV, from which the copy engine copies whole rows; stores by the warps themselves
  /// take 4.6 us.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    using Stored = typename Config::Stored;
    static_assert(std::is_same_v<Stored, __half>);
    constexpr int kRowBytes = Config::kHalfDim * sizeof(Stored);
    constexpr int kPitch = kRowBytes + 64;  // so that rows of a store have no bank conflicts
    static_assert(8 * 16 * kPitch <= sizeof(SharedMemory<Config>::kv));
    leave_cluster();
    const auto& row_sum = this->add_up_rows(work);
    const int lane = thread_ % 32;
    std::uint8_t* rows = reinterpret_cast<std::uint8_t*>(shared_.kv) + threadIdx.x / 32 * 16 * kPitch;
    const std::int64_t first_row = this->slot_of(work) * 64;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = fragment_.row + 8 * half;
      const float sum = row_sum[0][row] + row_sum[1][row];
      const sm90::RowScale scale = sm90::finish_row(half ? base_.high : base_.low, sum);
      const sm90::PackedRow<typename Config::Element, Config::kHalfDim / 2> packed(
          o_, half, sm90::quad_bound(o_, half));
      if (fragment_.column == 0 && row < work.tile.rows) {
        if (me_ == 0) args_.partial.lse[first_row + row] = scale.lse;
        sm90::partial_unit(args_.partial, first_row + row, me_) = scale.factor * packed.unit;
      }
      auto* to = reinterpret_cast<uint4*>(rows + (lane / 4 + 8 * half) * kPitch) + lane % 4;
#pragma unroll
      for (int i = 0; i < packed.kPackets; ++i) to[4 * i] = packed.packets[i];
      ptx::fence_for_async_proxy();
      __syncwarp();
      const int first = thread_ / 32 * 16 + 8 * half;  // of the eight rows that the warp has stored
      if (lane < 8 && first + lane < work.tile.rows) {
        ptx::copy_to_memory(sm90::packets_of(args_.partial, first_row + first + lane, Config::kVDim, me_),
                            rows + (8 * half + lane) * kPitch, kRowBytes);
      }
    }
    ptx::wait_for_copies_to_memory();
  }
};

/// The roles if a part is a share of one request, from an fp8_656 cache: both know their part, and begin with
/// it when the previous launch is done. The computing warps load the first blocks, then take their segment
/// from the queue, as other kinds of parts do.
template <class Config>
__device__ __forceinline__ void compute_share(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                              const sm90::QueryMaps& query_maps, int me) {
  Part<Config> part(args);
  ShareWarpgroup<Config> warpgroup(shared, args, query_maps, me);
  sm90::wait_for_launch_before();
  const sm90::Work& work = part.find();
  if (work.is_end()) return leave_cluster();
  warpgroup.load_first_block(work);
  sm90::WorkPosition position(shared.work);
  // A loop of one iteration, as below.
  for (; !position.get().is_end(); position.next()) {
    warpgroup.attend(position.get());
    warpgroup.finish(position.get());
  }
}

template <class Config>
__device__ __forceinline__ void load_share(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                           const CUtensorMap& map, const sm90::QueryMaps& query_maps) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  static_assert(Loader::kThreads == Config::kLoaderThreads);
  Part<Config> part(args);
  sm90::wait_for_launch_before();
  const sm90::Work& work = part.find();
  if (!work.is_end()) {
    if (thread == 0) {
      sm90::WorkPosition position(shared.work);
      position.put(work);
      sm90::Work end;
      end.segment.request = -1;
      position.put(end);
    }
    if (thread / 32 == 1 && work.blocks() > 0 && args.query.rows_in_boxes && ptx::elect_one()) {
      copy_query(shared, args, query_maps, work.tile);
    }
    __syncwarp();
    Pipe<Config> pipe(shared.kv, shared.state);
    sm90::BlockRange range = sm90::block_range(args.cache, work.segment, work.tile);
    for (int i = 0; i < kFirstBlocks && range.begin < range.end; ++i, ++range.begin) pipe.next_block();
    Loader loader(args.cache, map, thread, shared.loader);
    loader.look_ahead(range);
    loader.load(pipe, range, [] {});
  }
  leave_cluster();
}

/// The same if loaders load all blocks. In a cluster both CTAs have the same share, of two row tiles.
template <class Config>
__device__ __forceinline__ void compute_share_alone(SharedMemory<Config>& shared,
                                                    const sm90::DecodeArguments& args,
                                                    const sm90::QueryMaps& query_maps, int me) {
  sm90::wait_for_launch_before();
  LineWarpgroup<Config> warpgroup(shared, args, query_maps, me);
  sm90::WorkPosition position(shared.work);
  if (!kBeginsEarly<Config> && threadIdx.x < 32) warpgroup.request_query(position.get());
  // A loop even for one iteration: without it ptxas computes descriptors' addresses again for each product
  // (316 R2UR).
  for (; !position.get().is_end(); position.next()) {
    warpgroup.attend(position.get());
    if (Config::kListShares && threadIdx.x < 32 && !schedule::combines_shares(args.geometry.partition)) {
      warpgroup.request_query(position.ahead().get());
    }
    warpgroup.finish(position.get());
  }
}

template <class Config>
__device__ __forceinline__ void load_share_alone(SharedMemory<Config>& shared,
                                                 const sm90::DecodeArguments& args, const CUtensorMap& map,
                                                 const sm90::QueryMaps& query_maps) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  Part<Config> part(args);
  sm90::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  Announcer<Config> announcer(shared, args, query_maps, thread);
  auto tell = [&](const sm90::Work& work) { announcer.tell(work); };
  // A share loads its first rows without a walk: 2 requests of 640 tokens then take 12.8 us, with a walk
  // 13.7.
  if (Config::kListShares && !schedule::combines_shares(args.geometry.partition)) {
    if constexpr (Config::kListShares) {
      load_items<sm90::ItemsInTurn>(shared, args, map, thread, part.find(), tell);
    }
  } else if (const sm90::Work& work = part.find(); !work.is_end()) {
    tell(work);
    const auto range = sm90::range_of<Loader>(args, work.segment, work.tile);
    Pipe<Config> pipe(shared.kv, shared.state);
    Loader loader(args.cache, map, thread, shared.loader);
    loader.look_ahead(range);
    loader.load(pipe, range, [] {});
  }
  announcer.tell_end();
}

}  // namespace flashlatent::mla_64_pingpong
