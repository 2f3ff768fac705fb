// The best of a query token's scores: a CTA a query token reads them in order and keeps those above a
// threshold. Where the room is full, and at the end, it finds a higher threshold by bisection: each step
// counts, so that the time does not depend on how scores lie, and results do not depend on the order of
// threads.
#pragma once

#include "cuda/index_topk/config.h"

namespace flashlatent::cuda::indexer {

inline constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32;
inline constexpr int kChunk = 8 * kSelectThreads;  ///< Scores that are read at a time.
inline constexpr int kRoom = 2 * kChunk;           ///< Scores that are kept.
inline constexpr int kOwn = kRoom / kSelectThreads;

struct SelectArguments {
  IndexCall call;
  const std::uint32_t* scores;
  std::int64_t score_stride;
  int first_row;
};

/// One word in 16 is left out, so that threads that each have 16 neighbours are in different banks.
__device__ __forceinline__ int padded(int i) {
  return i + i / kOwn;
}

struct SelectShared {
  std::uint32_t keys[kRoom + kRoom / kOwn];
  int places[kRoom + kRoom / kOwn];
  int sums[2][kSelectWarps];
  std::uint32_t most[kSelectWarps];
};

class Selection {
 public:
  __device__ __forceinline__ Selection(SelectShared& shared, int wanted) : shared_(shared), wanted_(wanted) {}

  /// Keeps those of a thread's `kCount` keys that are above the threshold. Places follow one another from
  /// `place` on. All threads call it; keys come in the order of threads.
  template <int kCount>
  __device__ __forceinline__ void add(const std::uint32_t (&keys)[kCount], int place) {
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) mine += keys[i] > above_;
    int total;
    int at = kept_ + before_me(mine, total);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (keys[i] <= above_) continue;
      shared_.keys[padded(at)] = keys[i];
      shared_.places[padded(at)] = place + i;
      ++at;
    }
    kept_ += total;
    if (kept_ > kRoom - kCount * kSelectThreads) {
      __syncthreads();
      shrink(max(wanted_, kRoom / 4));
    }
  }

  /// Leaves the `wanted` best, or all if there are no more; returns how many. They are in order.
  __device__ __forceinline__ int finish() {
    __syncthreads();
    if (kept_ > wanted_) shrink(wanted_);
    __syncthreads();
    return kept_;
  }
  __device__ __forceinline__ std::uint32_t key(int i) const {
    return shared_.keys[padded(i)];
  }
  __device__ __forceinline__ int place(int i) const {
    return shared_.places[padded(i)];
  }

 private:
  /// The sum over threads before this one, and over all.
  __device__ __forceinline__ int before_me(int mine, int& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int inclusive = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFF, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    int* sums = next_sums();
    if (lane == 31) sums[warp] = inclusive;
    __syncthreads();
    const int of_warp = sums[lane];
    total = __reduce_add_sync(0xFFFFFFFF, of_warp);
    return inclusive - mine + __reduce_add_sync(0xFFFFFFFF, lane < warp ? of_warp : 0);
  }
  __device__ __forceinline__ int sum(int mine) {
    int* sums = next_sums();
    const int of_warp = __reduce_add_sync(0xFFFFFFFF, mine);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return __reduce_add_sync(0xFFFFFFFF, sums[threadIdx.x % 32]);
  }
  /// In turns: a barrier lies between two uses of one.
  __device__ __forceinline__ int* next_sums() {
    turn_ ^= 1;
    return shared_.sums[turn_];
  }

  /// Leaves between `wanted` and `most` of the kept, the best ones; with many equal ones exactly `wanted`.
  /// Call behind a barrier, with more than `most` kept.
  __device__ __noinline__ void shrink(int most) {
    std::uint32_t keys[kOwn];
    int places[kOwn];
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = threadIdx.x * kOwn + i;
      keys[i] = at < kept_ ? shared_.keys[padded(at)] : 0;
      places[i] = at < kept_ ? shared_.places[padded(at)] : 0;
      largest = max(largest, keys[i]);
    }
    largest = __reduce_max_sync(0xFFFFFFFF, largest);
    if (threadIdx.x % 32 == 0) shared_.most[threadIdx.x / 32] = largest;
    __syncthreads();
    // More than `low` are at least `wanted`, more than `high` fewer.
    std::uint32_t low = above_, high = __reduce_max_sync(0xFFFFFFFF, shared_.most[threadIdx.x % 32]);
    int above_low = kept_, above_high = 0;
    while (above_low > most && high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      int mine = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) mine += keys[i] > middle;
      const int above = sum(mine);
      (above >= wanted_ ? low : high) = middle;
      (above >= wanted_ ? above_low : above_high) = above;
    }
    // If the interval is empty, those equal to `high` are too many: the first ones are left.
    const bool ties = above_low > most;
    above_ = ties ? high : low;
    int tied = 0, better = 0, total;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      better += keys[i] > above_;
      tied += ties && keys[i] == above_;
    }
    int ties_before = 0;
    if (ties) ties_before = before_me(tied, total);
    const int left = wanted_ - above_high;
    const int taken = ties ? min(max(left - ties_before, 0), tied) : 0;
    int at = before_me(better + taken, total);
    int ties_left = taken;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool tie = ties && keys[i] == above_ && ties_left > 0;
      ties_left -= tie;
      if (keys[i] <= above_ && !tie) continue;
      shared_.keys[padded(at)] = keys[i];
      shared_.places[padded(at)] = places[i];
      ++at;
    }
    kept_ = total;
    __syncthreads();
  }

  SelectShared& shared_;
  const int wanted_;
  int kept_ = 0;
  std::uint32_t above_ = kNoToken;
  int turn_ = 0;
};

/// Adds `count` keys, which key(i) gives, in order.
template <int kEach, class Key>
__device__ __forceinline__ void add_all(Selection& selection, int count, Key key) {
  for (int first = 0; first < count; first += kEach * kSelectThreads) {
    const int place = first + static_cast<int>(threadIdx.x) * kEach;
    std::uint32_t keys[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = place + i < count ? key(place + i) : kNoToken;
    selection.add(keys, place);
  }
}

__device__ inline void choose_tokens(const SelectArguments& arguments, const IndexRow& row, int places,
                                     const std::uint32_t* scores, SelectShared& shared) {
  const IndexCall& call = arguments.call;
  Selection selection(shared, call.topk);
  for (int first = 0; first < places; first += kChunk) {
    const int place = first + static_cast<int>(threadIdx.x) * 8;
    std::uint32_t keys[8];
#pragma unroll
    for (int i = 0; i < 8; i += 4) {  // scores are aligned, and have room for whole tiles
      uint4 four = {};
      if (place + i < places) four = *reinterpret_cast<const uint4*>(scores + place + i);
      keys[i] = four.x;
      keys[i + 1] = place + i + 1 < places ? four.y : kNoToken;
      keys[i + 2] = place + i + 2 < places ? four.z : kNoToken;
      keys[i + 3] = place + i + 3 < places ? four.w : kNoToken;
    }
    selection.add(keys, place);
  }
  const int chosen = selection.finish();
  std::int32_t* indices = call.indices.at(row.request, row.token);
  float* chosen_scores = call.scores.data == nullptr ? nullptr : call.scores.at(row.request, row.token);
  const std::int32_t* blocks = call.candidates > 0 ? call.blocks.at(row.request, row.token) : nullptr;
  for (int i = threadIdx.x; i < call.topk; i += kSelectThreads) {
    std::int32_t result = -1;
    if (i < chosen)
      result = call.result(row.request, static_cast<int>(call.position(blocks, selection.place(i))));
    indices[i] = result;
    if (chosen_scores != nullptr) chosen_scores[i] = score_of(i < chosen ? selection.key(i) : kNoToken);
  }
  if (threadIdx.x == 0 && call.counts.data != nullptr) *call.counts.at(row.request, row.token) = chosen;
}

__device__ inline void choose_blocks(const SelectArguments& arguments, const IndexRow& row, int places,
                                     const std::uint32_t* scores, SelectShared& shared) {
  const IndexCall& call = arguments.call;
  const int size = call.candidate_block, blocks = (places + size - 1) / size;
  // The newest token that exists: mostly the last one.
  int newest = -1;
  for (int end = places; end > 0 && newest < 0; end -= kSelectThreads) {
    const int place = end - 1 - static_cast<int>(threadIdx.x);
    const int mine = place >= 0 && scores[place] != kNoToken ? place : -1;
    const int of_warp = __reduce_max_sync(0xFFFFFFFF, mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared.most[threadIdx.x / 32] = static_cast<std::uint32_t>(of_warp + 1);
    __syncthreads();
    newest = static_cast<int>(__reduce_max_sync(0xFFFFFFFF, shared.most[threadIdx.x % 32])) - 1;
  }
  const int newest_block = newest < 0 ? -1 : newest / size;
  Selection selection(shared, call.best_blocks);
  add_all<1>(selection, blocks, [&](int block) {
    if (block == newest_block) return 0xFFFFFFFFU;
    const int begin = block * size, end = min(begin + size, places);
    std::uint32_t best = kNoToken;
    for (int i = begin; i < end; ++i) best = max(best, scores[i]);
    return best;
  });
  const int chosen = selection.finish();
  std::int32_t* best = call.best.at(row.request, row.token);
  for (int i = threadIdx.x; i < call.best_blocks; i += kSelectThreads) {
    best[i] = i < chosen ? selection.place(i) : -1;
  }
}

__device__ inline void write_all_scores(const IndexCall& call, const IndexRow& row, int places,
                                        const std::uint32_t* scores) {
  float* all = call.all_scores.at(row.request, row.token);
  for (int i = threadIdx.x; i < call.span; i += kSelectThreads) {
    all[i] = score_of(i < places ? scores[i] : kNoToken);
  }
}

__global__ void __launch_bounds__(kSelectThreads, 1)
    select_kernel(const __grid_constant__ SelectArguments arguments) {
  extern __shared__ __align__(16) std::uint8_t select_shared[];
  auto& shared = *reinterpret_cast<SelectShared*>(select_shared);
  const IndexCall& call = arguments.call;
  const IndexRow row = row_of(call, arguments.first_row + static_cast<int>(blockIdx.x));
  int places = 0;
  if (row.count > 0) {
    places = call.candidates > 0 ? call.span : call.visible(row.request, row.token, row.own, row.count);
  }
  const std::uint32_t* scores = arguments.scores + blockIdx.x * arguments.score_stride;
  if (call.all_scores.data != nullptr) write_all_scores(call, row, places, scores);
  choose_tokens(arguments, row, places, scores, shared);
  if (call.best_blocks == 0) return;
  __syncthreads();
  choose_blocks(arguments, row, places, scores, shared);
}

}  // namespace flashlatent::cuda::indexer
