// The best of a query token's scores: a CTA a query token reads them in order and keeps those above a
// threshold. Where the room is full, and at the end, it finds a higher threshold by bisection: each step
// counts, so that the time does not depend on how scores lie, and results do not depend on the order of
// threads.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"

namespace flashlatent::cuda::indexer {

/// Threads of a CTA: 1,024 are fastest where each multiprocessor has one query token, 256 where it has many.
template <int kThreads>
struct SelectShape {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kChunk = 8 * kThreads;                    ///< Scores that are read at a time.
  static constexpr int kRoom = kThreads == 1024 ? 16384 : 8192;  ///< Scores that are kept.
  static constexpr int kOwn = kRoom / kThreads;
  static constexpr int kLeft = 4096;  ///< What a full room is shrunk to, if less is wanted.
  static_assert(kLeft >= kMaxIndexTopk && kLeft + kChunk <= kRoom);
};

struct SelectArguments {
  IndexCall call;
  const std::uint32_t* scores;
  std::int64_t score_stride;
  int first_row;
};

/// One word in 16 is left out, so that threads that each have 16 neighbours are in different banks.
__device__ __host__ constexpr int padded(int i) {
  return i + i / 16;
}

template <int kThreads>
struct SelectShared {
  static constexpr int kWarps = SelectShape<kThreads>::kWarps, kRoom = SelectShape<kThreads>::kRoom;

  std::uint32_t keys[padded(kRoom)];
  int places[padded(kRoom)];
  int sums[2][kWarps], counts[2][kWarps];  ///< In turns: a barrier lies between two uses of one.
  std::uint32_t least[kWarps], most[kWarps];
};

template <int kThreads>
class Selection {
 public:
  using Shape = SelectShape<kThreads>;
  static constexpr int kChunk = Shape::kChunk, kRoom = Shape::kRoom, kOwn = Shape::kOwn,
                       kWarps = Shape::kWarps;

  struct State {
    int kept = 0;
    std::uint32_t above = kNoToken;
    int turn = 0;  ///< Of the sums.
  };

  __device__ __forceinline__ Selection(SelectShared<kThreads>& shared, int wanted)
      : shared_(shared), wanted_(wanted) {}

  /// Keeps those of a thread's `kCount` keys that are above the threshold. Places follow one another from
  /// `place` on. All threads call it; keys come in the order of threads.
  template <int kCount>
  __device__ __forceinline__ void add(const std::uint32_t (&keys)[kCount], int place) {
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) mine += keys[i] > state_.above;
    int total;
    int at = state_.kept + before_me(shared_, state_.turn, mine, total);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (keys[i] <= state_.above) continue;
      shared_.keys[padded(at)] = keys[i];
      shared_.places[padded(at)] = place + i;
      ++at;
    }
    state_.kept += total;
    if (state_.kept > kRoom - kCount * kThreads) {
      __syncthreads();
      state_ = shrink<kOwn>(shared_, state_, wanted_, max(wanted_, Shape::kLeft));
    }
  }

  /// Raises the threshold to that of a sample, in which `wanted` numbers or some more are above it. Call it
  /// first.
  template <int kCount>
  __device__ __forceinline__ void sample(const std::uint32_t (&keys)[kCount], int wanted) {
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) mine += keys[i] != kNoToken;
    const int count = sum(mine, shared_.counts[1]);
    if (count > wanted) state_.above = bisect(shared_, keys, count, wanted, wanted + wanted / 8).low;
  }
  __device__ __forceinline__ int kept() const {
    return state_.kept;
  }
  __device__ __forceinline__ void start_again() {
    state_.kept = 0;
    state_.above = kNoToken;
    __syncthreads();
  }

  /// Leaves the `wanted` best, or all if there are no more; returns how many. They are in order.
  __device__ __forceinline__ int finish() {
    __syncthreads();
    // Bisection takes as many steps for few as for many; the steps are shorter.
    if (state_.kept > wanted_) {
      if (state_.kept <= kRoom / 4) {
        state_ = shrink<kOwn / 4>(shared_, state_, wanted_, wanted_);
      } else if (state_.kept <= kRoom / 2) {
        state_ = shrink<kOwn / 2>(shared_, state_, wanted_, wanted_);
      } else {
        state_ = shrink<kOwn>(shared_, state_, wanted_, wanted_);
      }
    }
    __syncthreads();
    return state_.kept;
  }
  __device__ __forceinline__ std::uint32_t key(int i) const {
    return shared_.keys[padded(i)];
  }
  __device__ __forceinline__ int place(int i) const {
    return shared_.places[padded(i)];
  }

 private:
  /// The sum over threads before this one, and over all.
  __device__ __forceinline__ static int before_me(SelectShared<kThreads>& shared, int& turn, int mine,
                                                  int& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int inclusive = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFF, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    turn ^= 1;
    int* sums = shared.sums[turn];
    if (lane == 31) sums[warp] = inclusive;
    __syncthreads();
    const int of_warp = lane < kWarps ? sums[lane] : 0;
    total = __reduce_add_sync(0xFFFFFFFF, of_warp);
    return inclusive - mine + __reduce_add_sync(0xFFFFFFFF, lane < warp ? of_warp : 0);
  }
  __device__ __forceinline__ static int sum(int mine, int* sums) {
    const int of_warp = __reduce_add_sync(0xFFFFFFFF, mine);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = of_warp;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    return __reduce_add_sync(0xFFFFFFFF, lane < kWarps ? sums[lane] : 0);
  }

  /// More than `low` are above_low numbers, which is `wanted` or more; more than `high` are above_high,
  /// fewer.
  struct Interval {
    std::uint32_t low, high;
    int above_low, above_high;
  };

  /// Bisects until above_low is at most `most`, or nothing is between `low` and `high`. `count` of the
  /// threads' keys, `wanted` or more, are no kNoToken.
  template <int kEach>
  __device__ __forceinline__ static Interval bisect(SelectShared<kThreads>& shared,
                                                    const std::uint32_t (&keys)[kEach], int count, int wanted,
                                                    int most) {
    std::uint32_t least = 0xFFFFFFFFU, largest = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      largest = max(largest, keys[i]);
      if (keys[i] != kNoToken) least = min(least, keys[i]);
    }
    least = __reduce_min_sync(0xFFFFFFFF, least);
    largest = __reduce_max_sync(0xFFFFFFFF, largest);
    if (threadIdx.x % 32 == 0) {
      shared.least[threadIdx.x / 32] = least;
      shared.most[threadIdx.x / 32] = largest;
    }
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x % 32) % kWarps;
    Interval x = {__reduce_min_sync(0xFFFFFFFF, shared.least[warp]) - 1,
                  __reduce_max_sync(0xFFFFFFFF, shared.most[warp]), count, 0};
    for (int turn = 0; x.above_low > most && x.high - x.low > 1; turn ^= 1) {
      const std::uint32_t middle = x.low + (x.high - x.low) / 2;
      int mine = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) mine += keys[i] > middle;
      const int above = sum(mine, shared.counts[turn]);
      if (above >= wanted) {
        x.low = middle;
        x.above_low = above;
      } else {
        x.high = middle;
        x.above_high = above;
      }
    }
    return x;
  }

  /// Leaves between `wanted` and `most` of the kept, the best ones; with many equal ones exactly `wanted`.
  /// Call behind a barrier, with more than `most` kept, at most kEach a thread.
  template <int kEach>
  __device__ __noinline__ static State shrink(SelectShared<kThreads>& shared, State state, int wanted,
                                              int most) {
    std::uint32_t keys[kEach];
    int places[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = threadIdx.x * kEach + i;
      keys[i] = at < state.kept ? shared.keys[padded(at)] : kNoToken;
      places[i] = at < state.kept ? shared.places[padded(at)] : 0;
    }
    const Interval found = bisect(shared, keys, state.kept, wanted, most);
    const std::uint32_t low = found.low, high = found.high;
    const int above_low = found.above_low, above_high = found.above_high;
    // If the interval is empty, those equal to `high` are too many: the first ones are left.
    const bool ties = above_low > most;
    state.above = ties ? high : low;
    int tied = 0, better = 0, total;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      better += keys[i] > state.above;
      tied += ties && keys[i] == state.above;
    }
    int ties_before = 0;
    if (ties) ties_before = before_me(shared, state.turn, tied, total);
    const int left = wanted - above_high;
    const int taken = ties ? min(max(left - ties_before, 0), tied) : 0;
    int at = before_me(shared, state.turn, better + taken, total);
    int ties_left = taken;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool tie = ties && keys[i] == state.above && ties_left > 0;
      ties_left -= tie;
      if (keys[i] <= state.above && !tie) continue;
      shared.keys[padded(at)] = keys[i];
      shared.places[padded(at)] = places[i];
      ++at;
    }
    state.kept = total;
    __syncthreads();
    return state;
  }

  SelectShared<kThreads>& shared_;
  const int wanted_;
  State state_;
};

/// Adds `count` keys, which key(i) gives, in order.
template <int kEach, int kThreads, class Key>
__device__ __forceinline__ void add_all(Selection<kThreads>& selection, int count, Key key) {
  for (int first = 0; first < count; first += kEach * kThreads) {
    const int place = first + static_cast<int>(threadIdx.x) * kEach;
    std::uint32_t keys[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = place + i < count ? key(place + i) : kNoToken;
    selection.add(keys, place);
  }
}

struct Eight {
  std::uint32_t keys[8];
};
/// Eight scores from `place` on; kNoToken behind `places`. Scores are aligned, and have room for whole tiles.
__device__ __forceinline__ Eight eight_scores(const std::uint32_t* scores, int place, int places) {
  uint4 low = {}, high = {};
  if (place < places) low = *reinterpret_cast<const uint4*>(scores + place);
  if (place + 4 < places) high = *reinterpret_cast<const uint4*>(scores + place + 4);
  Eight eight{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) eight.keys[i] = place + i < places ? eight.keys[i] : kNoToken;
  return eight;
}

template <int kThreads>
__device__ __forceinline__ void add_scores(Selection<kThreads>& selection, const std::uint32_t* scores,
                                           int places) {
  constexpr int kChunk = SelectShape<kThreads>::kChunk;
  // The scores of the next chunk are on their way while this one's are looked at.
  Eight next = eight_scores(scores, threadIdx.x * 8, places);
  for (int first = 0; first < places; first += kChunk) {
    const int place = first + static_cast<int>(threadIdx.x) * 8;
    const Eight keys = next;
    next = eight_scores(scores, place + kChunk, places);
    selection.add(keys.keys, place);
  }
}

/// Many scores: a threshold that about twice the wanted ones are above, by a sample of kChunk in groups
/// of four. What is above it mostly fits in the room.
template <int kThreads>
__device__ __forceinline__ void sample_scores(Selection<kThreads>& selection, const std::uint32_t* scores,
                                              int places, int wanted) {
  constexpr int kChunk = SelectShape<kThreads>::kChunk, kGroups = kChunk / 4;
  const int step = places / kGroups / 4 * 4;
  Eight keys;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int group = i * kThreads + static_cast<int>(threadIdx.x);
    const uint4 four = *reinterpret_cast<const uint4*>(scores + std::int64_t{group} * step);
    keys.keys[4 * i] = four.x;
    keys.keys[4 * i + 1] = four.y;
    keys.keys[4 * i + 2] = four.z;
    keys.keys[4 * i + 3] = four.w;
  }
  selection.sample(keys.keys, static_cast<int>(std::int64_t{2} * wanted * kChunk / places) + 32);
}

template <int kThreads>
__device__ void choose_tokens(const SelectArguments& arguments, const IndexRow& row, int places,
                              const std::uint32_t* scores, SelectShared<kThreads>& shared) {
  const IndexCall& call = arguments.call;
  Selection<kThreads> selection(shared, call.topk);
  const bool sampled = places > SelectShape<kThreads>::kRoom;
  if (sampled) sample_scores(selection, scores, places, call.topk);
  add_scores(selection, scores, places);
  if (sampled && selection.kept() < call.topk) {  // the sample was not like the rest
    selection.start_again();
    add_scores(selection, scores, places);
  }
  const int chosen = selection.finish();
  std::int32_t* indices = call.indices.at(row.request, row.token);
  float* chosen_scores = call.scores.data == nullptr ? nullptr : call.scores.at(row.request, row.token);
  const std::int32_t* blocks = call.candidates > 0 ? call.blocks.at(row.request, row.token) : nullptr;
  for (int i = threadIdx.x; i < call.topk; i += kThreads) {
    std::int32_t result = -1;
    if (i < chosen)
      result = call.result(row.request, static_cast<int>(call.position(blocks, selection.place(i))));
    indices[i] = result;
    if (chosen_scores != nullptr) chosen_scores[i] = score_of(i < chosen ? selection.key(i) : kNoToken);
  }
  if (threadIdx.x == 0 && call.counts.data != nullptr) *call.counts.at(row.request, row.token) = chosen;
}

template <int kThreads>
__device__ void choose_blocks(const SelectArguments& arguments, const IndexRow& row, int places,
                              const std::uint32_t* scores, SelectShared<kThreads>& shared) {
  const IndexCall& call = arguments.call;
  const int size = call.candidate_block, blocks = (places + size - 1) / size;
  // The newest token that exists: mostly the last one.
  int newest = -1;
  for (int end = places; end > 0 && newest < 0; end -= kThreads) {
    const int place = end - 1 - static_cast<int>(threadIdx.x);
    const int mine = place >= 0 && scores[place] != kNoToken ? place : -1;
    const int of_warp = __reduce_max_sync(0xFFFFFFFF, mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared.most[threadIdx.x / 32] = static_cast<std::uint32_t>(of_warp + 1);
    __syncthreads();
    newest = static_cast<int>(__reduce_max_sync(
                 0xFFFFFFFF, shared.most[threadIdx.x % 32 % SelectShape<kThreads>::kWarps])) -
             1;
  }
  const int newest_block = newest < 0 ? -1 : newest / size;
  Selection<kThreads> selection(shared, call.best_blocks);
  add_all<1>(selection, blocks, [&](int block) {
    if (block == newest_block) return 0xFFFFFFFFU;
    const int begin = block * size, end = min(begin + size, places);
    std::uint32_t best = kNoToken;
    for (int i = begin; i < end; ++i) best = max(best, scores[i]);
    return best;
  });
  const int chosen = selection.finish();
  std::int32_t* best = call.best.at(row.request, row.token);
  for (int i = threadIdx.x; i < call.best_blocks; i += kThreads) {
    best[i] = i < chosen ? selection.place(i) : -1;
  }
}

template <int kThreads>
__device__ void write_all_scores(const IndexCall& call, const IndexRow& row, int places,
                                 const std::uint32_t* scores) {
  float* all = call.all_scores.at(row.request, row.token);
  for (int i = threadIdx.x; i < call.span; i += kThreads) {
    all[i] = score_of(i < places ? scores[i] : kNoToken);
  }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads == 1024 ? 1 : 3)
    select_kernel(const __grid_constant__ SelectArguments arguments) {
  extern __shared__ __align__(16) std::uint8_t select_shared[];
  auto& shared = *reinterpret_cast<SelectShared<kThreads>*>(select_shared);
  const IndexCall& call = arguments.call;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const IndexRow row = row_of(call, arguments.first_row + static_cast<int>(blockIdx.x));
  int places = 0;
  if (row.count > 0) {
    places = call.candidates > 0 ? call.span : call.visible(row.request, row.token, row.own, row.count);
  }
  const std::uint32_t* scores = arguments.scores + blockIdx.x * arguments.score_stride;
  if (call.all_scores.data != nullptr) write_all_scores<kThreads>(call, row, places, scores);
  choose_tokens(arguments, row, places, scores, shared);
  if (call.best_blocks == 0) return;
  __syncthreads();
  choose_blocks(arguments, row, places, scores, shared);
}

}  // namespace flashlatent::cuda::indexer
