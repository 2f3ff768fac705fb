// The warp that brings keys to shared memory. Keys that follow one another in a page are one bulk copy.
#pragma once

#include "cuda/index_topk/smem_layout.cuh"
#include "cuda/index_topk/walk.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::cuda::indexer {

/// Arrivals at a full barrier: each lane's, when its scales have landed, and one for what is stored plainly.
inline constexpr int kLoaderArrivals = 33;

/// A lane's key of 32.
struct KeyPlace {
  int page = -1;  ///< -1: there is no key.
  int offset = 0;
};

__device__ __forceinline__ KeyPlace find_key(const IndexCall& call, const Group& group, int place, int most) {
  std::int64_t position = place;
  if (call.candidates > 0) {
    if (place >= call.span) return {};
    position = call.position(call.blocks.at(group.request, group.token), place);
  }
  if (position < 0 || position >= most) return {};
  const auto at = static_cast<unsigned>(position), size = static_cast<unsigned>(call.page_size);
  const int page = call.block_table[group.request * call.table_stride + at / size];
  if (page < 0 || page >= call.pages) return {};
  return {page, static_cast<int>(at % size)};
}

/// What the group's query tokens see at most.
__device__ __forceinline__ int most_seen(const IndexCall& call, const Group& group) {
  int most = 0;
  for (int i = 0; i < group.rows; ++i) most = max(most, visible(call, group, i));
  return most;
}

template <IndexFormat kFormat>
__device__ void load_keys(const ScoreArguments& arguments, const Run& run, std::uint8_t* ring, Fixed& fixed) {
  constexpr int kBytes = index_keys::data_bytes(kFormat), kParts = kTile / 32;
  const IndexCall& call = arguments.call;
  const int lane = threadIdx.x % 32;
  KeyPlace keys[kParts];
  int last_group = -1, most = 0;
  auto find = [&](const Walk& walk) {
    if (walk.number() != last_group) {
      last_group = walk.number();
      most = most_seen(call, walk.group());
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      keys[i] = find_key(call, walk.group(), walk.first_place() + i * 32 + lane, most);
    }
  };
  Walk walk(arguments, run);
  if (!walk.done()) find(walk);
  for (int n = 0; !walk.done(); ++n) {
    const int stage = n % kStages;
    if (n >= kStages) ptx::wait(fixed.empty[stage], (n / kStages - 1) & 1);
    std::uint32_t exists[kParts];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      exists[i] = __ballot_sync(0xFFFFFFFF, keys[i].page >= 0);
      count += __popc(exists[i]);
    }
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) fixed.exists[stage][i] = exists[i];
      ptx::expect(fixed.full[stage], count * kBytes);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int before_page = __shfl_up_sync(0xFFFFFFFF, keys[i].page, 1);
      const int before_offset = __shfl_up_sync(0xFFFFFFFF, keys[i].offset, 1);
      const bool there = keys[i].page >= 0;
      const bool goes_on =
          there && lane > 0 && before_page == keys[i].page && before_offset + 1 == keys[i].offset;
      const std::uint32_t ends = ~__ballot_sync(0xFFFFFFFF, goes_on);
      if (!there) continue;
      const std::uint8_t* page = call.index_cache + keys[i].page * call.page_stride;
      const int key = i * 32 + lane;
      ptx::copy_4_bytes(ptx::shared_address(&fixed.scales[stage][key]),
                        page + index_keys::scale_offset(kFormat, call.page_size, keys[i].offset));
      if (goes_on) continue;
      const std::uint32_t later = lane == 31 ? 0 : ends >> (lane + 1);
      const int run_length = later == 0 ? 32 - lane : __ffs(static_cast<int>(later));
      ptx::copy_bytes(ring + (stage * kTile + key) * kBytes,
                      page + index_keys::data_offset(kFormat, keys[i].offset), run_length * kBytes,
                      fixed.full[stage]);
    }
    __syncwarp();
    ptx::copy_arrive(fixed.full[stage]);
    if (lane == 0) ptx::arrive(fixed.full[stage]);
    walk.next();
    if (!walk.done()) find(walk);
  }
  ptx::copy_commit();
  ptx::copy_wait<0>();
}

}  // namespace flashlatent::cuda::indexer
