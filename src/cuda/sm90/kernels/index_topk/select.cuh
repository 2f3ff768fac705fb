// The best of a query token's scores. One CTA, or several in a cluster, read them in order, each its range,
// and keep those above a threshold; the cluster's first CTA gathers what is kept. When the buffer is full,
// and at the end, a higher threshold is found by bisection: each step counts, so the time does not depend on
// the distribution of scores, nor results on the order of threads.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/remote.cuh"

namespace flashlatent::cuda::indexer {

/// Two CTAs of a multiprocessor.
inline constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32;
inline constexpr int kEachOfChunk = 8, kChunk = kEachOfChunk * kSelectThreads;  ///< Scores read at a time.
inline constexpr int kOwn = 24, kRoom = kOwn * kSelectThreads;                  ///< Scores that are kept.
/// To how many a full buffer is reduced, if fewer are wanted; so many are bisected with less work.
inline constexpr int kOwnFew = 8, kFewKept = kOwnFew * kSelectThreads;
static_assert(kFewKept >= kMaxIndexTopk && kFewKept + kChunk <= kRoom);
/// With more scores than this a sample gives the first threshold.
inline constexpr int kUnsampled = 2 * kChunk;

struct SelectArguments {
  IndexCall call;
  const std::uint32_t* scores;
  std::int64_t score_stride;
  int first_row;
};

/// One word in 16 is left out, which spreads threads that each have 8 or 24 neighbours over the banks.
__device__ __host__ constexpr int padded(int i) {
  return i + i / 16;
}

/// The state of a selection: how many are kept, and that all above `above` are kept.
struct Kept {
  int count = 0;
  std::uint32_t above = kNoToken;
};

struct SelectShared {
  std::uint32_t keys[padded(kRoom)];
  int places[padded(kRoom)];
  int sums[2][kSelectWarps], counts[2][kSelectWarps];  ///< Used alternately: a barrier lies between two uses
                                                       ///< of one.
  std::uint32_t least[kSelectWarps], most[kSelectWarps];
  int published;  ///< How many are kept, for the cluster's other CTAs.
};

/// The sum over all threads.
__device__ __forceinline__ int sum_of_all(int mine, int* sums) {
  const int of_warp = __reduce_add_sync(0xFFFFFFFF, mine);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = of_warp;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return __reduce_add_sync(0xFFFFFFFF, lane < kSelectWarps ? sums[lane] : 0);
}

/// The sum over threads before this one, and over all threads. `turn` says which sums are free.
__device__ __forceinline__ int before_me(SelectShared& shared, int& turn, int mine, int& total) {
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
  const int of_warp = lane < kSelectWarps ? sums[lane] : 0;
  total = __reduce_add_sync(0xFFFFFFFF, of_warp);
  return inclusive - mine + __reduce_add_sync(0xFFFFFFFF, lane < warp ? of_warp : 0);
}

/// above_low numbers, at least `wanted`, are larger than `low`; above_high numbers, fewer than `wanted`, are
/// larger than `high`.
struct Interval {
  std::uint32_t low, high;
  int above_low, above_high;
};

/// Bisects until above_low is at most `most`, or nothing is between `low` and `high`. `count` of the threads'
/// keys, at least `wanted`, are not kNoToken.
template <int kEach>
__device__ __forceinline__ Interval bisect(SelectShared& shared, const std::uint32_t (&keys)[kEach],
                                           int count, int wanted, int most) {
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
  const int warp = static_cast<int>(threadIdx.x % 32) % kSelectWarps;
  Interval x = {__reduce_min_sync(0xFFFFFFFF, shared.least[warp]) - 1,
                __reduce_max_sync(0xFFFFFFFF, shared.most[warp]), count, 0};
  for (int turn = 0; x.above_low > most && x.high - x.low > 1; turn ^= 1) {
    const std::uint32_t middle = x.low + (x.high - x.low) / 2;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine += keys[i] > middle;
    const int above = sum_of_all(mine, shared.counts[turn]);
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

/// Leaves the best `wanted` to `most` of the kept numbers; with many equal ones exactly `wanted`. All threads
/// call it between two barriers, with more than `most` and at most kEach * kSelectThreads kept.
template <int kEach>
__device__ __noinline__ Kept shrink(SelectShared& shared, int kept, int wanted, int most) {
  std::uint32_t keys[kEach];
  int places[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = threadIdx.x * kEach + i;
    keys[i] = at < kept ? shared.keys[padded(at)] : kNoToken;
    places[i] = at < kept ? shared.places[padded(at)] : 0;
  }
  const Interval found = bisect(shared, keys, kept, wanted, most);
  // If the interval is empty, too many are equal to `high`: the first of these are left.
  const bool ties = found.above_low > most;
  const std::uint32_t above = ties ? found.high : found.low;
  int tied = 0, better = 0, total, turn = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    better += keys[i] > above;
    tied += ties && keys[i] == above;
  }
  int ties_before = 0;
  if (ties) ties_before = before_me(shared, turn, tied, total);
  const int left = wanted - found.above_high;
  const int taken = ties ? min(max(left - ties_before, 0), tied) : 0;
  int at = before_me(shared, turn, better + taken, total);
  int ties_left = taken;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool tie = ties && keys[i] == above && ties_left > 0;
    ties_left -= tie;
    if (keys[i] <= above && !tie) continue;
    shared.keys[padded(at)] = keys[i];
    shared.places[padded(at)] = places[i];
    ++at;
  }
  return {total, above};
}

/// The best numbers of a sequence that is added chunk by chunk. All threads of the CTA call its functions.
class Selection {
 public:
  __device__ __forceinline__ Selection(SelectShared& shared, int wanted) : shared_(shared), wanted_(wanted) {}

  /// Keeps the chunk's keys that are above the threshold. Key i of a thread has the place place_of(i) in the
  /// chunk, counted from `first`.
  __device__ __forceinline__ void add(const std::uint32_t (&keys)[kEachOfChunk], int first) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned chosen[kEachOfChunk];
    int of_warp = 0;
#pragma unroll
    for (int i = 0; i < kEachOfChunk; ++i) {
      chosen[i] = __ballot_sync(0xFFFFFFFF, keys[i] > kept_.above);
      of_warp += __popc(chosen[i]);
    }
    turn_ ^= 1;
    int* sums = shared_.sums[turn_];
    if (lane == 0) sums[warp] = of_warp;
    __syncthreads();
    const int other = lane < kSelectWarps ? sums[lane] : 0;
    const int total = __reduce_add_sync(0xFFFFFFFF, other);
    int at = kept_.count + __reduce_add_sync(0xFFFFFFFF, lane < warp ? other : 0);
#pragma unroll
    for (int i = 0; i < kEachOfChunk; ++i) {
      if (chosen[i] == 0) continue;
      if (keys[i] > kept_.above) {
        const int mine = padded(at + __popc(chosen[i] & ((1U << lane) - 1)));
        shared_.keys[mine] = keys[i];
        shared_.places[mine] = first + place_of(i);
      }
      at += __popc(chosen[i]);
    }
    kept_.count += total;
    if (kept_.count > kRoom - kChunk) {
      __syncthreads();
      shrink_to(max(wanted_, kFewKept));
    }
  }
  /// A warp has neighbouring places, so it reads whole lines and keeps their order by votes.
  __device__ __forceinline__ static int place_of(int i) {
    return static_cast<int>(threadIdx.x / 32 * 32 * kEachOfChunk + i * 32 + threadIdx.x % 32);
  }

  /// Raises the threshold to one above which a sample has at least `wanted` numbers. Call it first.
  __device__ __forceinline__ void sample(const std::uint32_t (&keys)[kOwnFew], int wanted) {
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kOwnFew; ++i) mine += keys[i] != kNoToken;
    const int count = sum_of_all(mine, shared_.counts[1]);
    if (count > wanted) kept_.above = bisect(shared_, keys, count, wanted, wanted + wanted / 8).low;
  }
  __device__ __forceinline__ int kept() const {
    return kept_.count;
  }
  __device__ __forceinline__ void start_again() {
    kept_ = {};
    __syncthreads();
  }
  /// Leaves at most `most`, and tells the cluster's other CTAs how many; they may read the number after a
  /// barrier of the cluster.
  __device__ __forceinline__ void publish(int most) {
    if (kept_.count > most) {
      __syncthreads();
      shrink_to(max(wanted_, most));
    }
    if (threadIdx.x == 0) shared_.published = kept_.count;
  }
  /// Records that `count` more are in their places.
  __device__ __forceinline__ void take(int count) {
    kept_.count += count;
  }

  /// Leaves the `wanted` best, or all if there are no more, in order; returns how many.
  __device__ __forceinline__ int finish() {
    __syncthreads();
    if (kept_.count > wanted_) shrink_to(wanted_);
    return kept_.count;
  }
  __device__ __forceinline__ std::uint32_t key(int i) const {
    return shared_.keys[padded(i)];
  }
  __device__ __forceinline__ int place(int i) const {
    return shared_.places[padded(i)];
  }

 private:
  __device__ __forceinline__ void shrink_to(int most) {
    kept_ = kept_.count <= kFewKept ? shrink<kOwnFew>(shared_, kept_.count, wanted_, most)
                                    : shrink<kOwn>(shared_, kept_.count, wanted_, most);
    __syncthreads();
  }

  SelectShared& shared_;
  const int wanted_;
  Kept kept_;
  int turn_ = 0;
};

/// Adds the keys key(place) of places [begin, end).
template <class Key>
__device__ __forceinline__ void add_all(Selection& selection, int begin, int end, Key key) {
  const auto read = [&](std::uint32_t(&keys)[kEachOfChunk], int first) {
#pragma unroll
    for (int i = 0; i < kEachOfChunk; ++i) {
      const int place = first + Selection::place_of(i);
      keys[i] = place < end ? key(place) : kNoToken;
    }
  };
  // The next chunk's keys are in flight while this chunk's are compared.
  std::uint32_t keys[kEachOfChunk], next[kEachOfChunk];
  read(next, begin);
  for (int first = begin; first < end; first += kChunk) {
#pragma unroll
    for (int i = 0; i < kEachOfChunk; ++i) keys[i] = next[i];
    read(next, first + kChunk);
    selection.add(keys, first);
  }
}

/// For many scores: a threshold that more than the wanted number exceed, from a sample of kFewKept scores in
/// fours. Mostly what exceeds it need not be reduced before the end.
__device__ __forceinline__ void sample_scores(Selection& selection, const std::uint32_t* scores, int places,
                                              int wanted) {
  constexpr int kGroups = kFewKept / 4;
  const int step = places / kGroups / 4 * 4;
  std::uint32_t keys[kOwnFew];
#pragma unroll
  for (int i = 0; i < kOwnFew / 4; ++i) {
    const int group = i * kSelectThreads + static_cast<int>(threadIdx.x);
    const uint4 four = *reinterpret_cast<const uint4*>(scores + std::int64_t{group} * step);
    keys[4 * i] = four.x;
    keys[4 * i + 1] = four.y;
    keys[4 * i + 2] = four.z;
    keys[4 * i + 3] = four.w;
  }
  const std::int64_t expected = std::int64_t{wanted} * kFewKept / places;  // wanted ones in the sample
  selection.sample(keys, static_cast<int>(expected + expected / 2) + 16);
}

/// A CTA's range of a query token's places.
struct Part {
  int begin, end;
};
__device__ __forceinline__ Part part_of(int places, int rank, int ctas) {
  const int chunks = (places + kChunk - 1) / kChunk, each = (chunks + ctas - 1) / ctas * kChunk;
  const int begin = min(rank * each, places);
  return {begin, min(begin + each, places)};
}

/// CTAs of a cluster that chooses for one query token. Each keeps so few that all fit into the first CTA.
inline constexpr int kSelectTeam = 4;
inline constexpr int kMostPublished = kRoom / kSelectTeam;
static_assert(kMostPublished >= kMaxIndexTopk);

/// How many numbers each CTA of the cluster has kept.
struct TeamCounts {
  int of_cta[kSelectTeam];

  /// Call it after a barrier of the cluster.
  __device__ __forceinline__ explicit TeamCounts(const SelectShared& shared) {
#pragma unroll
    for (int cta = 0; cta < kSelectTeam; ++cta) {
      of_cta[cta] = static_cast<int>(ptx::load_from(ptx::address_in(cta, &shared.published)));
    }
  }
  __device__ __forceinline__ int total() const {
    int sum = 0;
#pragma unroll
    for (int count : of_cta) sum += count;
    return sum;
  }
};

/// The first CTA takes what the other CTAs have kept, in order.
__device__ __forceinline__ void gather(Selection& selection, SelectShared& shared, const TeamCounts& counts) {
  int begin = counts.of_cta[0];
#pragma unroll
  for (int cta = 1; cta < kSelectTeam; ++cta) {
    for (int i = static_cast<int>(threadIdx.x); i < counts.of_cta[cta]; i += kSelectThreads) {
      const int from = padded(i), to = padded(begin + i);
      shared.keys[to] = ptx::load_from(ptx::address_in(cta, &shared.keys[from]));
      shared.places[to] = static_cast<int>(ptx::load_from(ptx::address_in(cta, &shared.places[from])));
    }
    begin += counts.of_cta[cta];
  }
  selection.take(begin - counts.of_cta[0]);
}

/// Keeps the best of a query token's scores: in this CTA, or with kTeam in the cluster's first one.
template <bool kTeam>
__device__ __forceinline__ void keep_best(Selection& selection, SelectShared& shared,
                                          const std::uint32_t* scores, int places, int wanted) {
  const int rank = kTeam ? static_cast<int>(ptx::rank_in_cluster()) : 0;
  const Part part = part_of(places, rank, kTeam ? kSelectTeam : 1);
  const auto add = [&] {
    add_all(selection, part.begin, part.end, [&](int place) { return scores[place]; });
  };
  const bool sampled = places > kUnsampled;
  if (sampled) sample_scores(selection, scores, places, wanted);
  add();
  if constexpr (kTeam) {
    selection.publish(kMostPublished);
    ptx::cluster_sync();
    TeamCounts counts(shared);
    if (sampled && counts.total() < wanted) {  // the sample was not like the rest
      ptx::cluster_sync();
      selection.start_again();
      add();
      selection.publish(kMostPublished);
      ptx::cluster_sync();
      counts = TeamCounts(shared);
    }
    if (rank == 0) gather(selection, shared, counts);
  } else if (sampled && selection.kept() < wanted) {
    selection.start_again();
    add();
  }
}

/// Writes a query token's chosen tokens.
__device__ __forceinline__ void write_chosen(const IndexCall& call, const IndexRow& row,
                                             const Selection& selection, int chosen) {
  std::int32_t* indices = call.indices.at(row.request, row.token);
  float* chosen_scores = call.scores.data == nullptr ? nullptr : call.scores.at(row.request, row.token);
  const std::int32_t* blocks = call.candidates > 0 ? call.blocks.at(row.request, row.token) : nullptr;
  for (int i = static_cast<int>(threadIdx.x); i < call.topk; i += kSelectThreads) {
    std::int32_t result = -1;
    if (i < chosen)
      result = call.result(row.request, static_cast<int>(call.position(blocks, selection.place(i))));
    indices[i] = result;
    if (chosen_scores != nullptr) chosen_scores[i] = score_of(i < chosen ? selection.key(i) : kNoToken);
  }
  if (threadIdx.x == 0 && call.counts.data != nullptr) *call.counts.at(row.request, row.token) = chosen;
}

/// The newest token that exists, mostly the last one; -1: there is none.
__device__ __forceinline__ int newest_token(const std::uint32_t* scores, int places, SelectShared& shared) {
  int newest = -1;
  for (int end = places; end > 0 && newest < 0; end -= kSelectThreads) {
    const int place = end - 1 - static_cast<int>(threadIdx.x);
    const int mine = place >= 0 && scores[place] != kNoToken ? place : -1;
    const int of_warp = __reduce_max_sync(0xFFFFFFFF, mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared.most[threadIdx.x / 32] = static_cast<std::uint32_t>(of_warp + 1);
    __syncthreads();
    const std::uint32_t best = shared.most[threadIdx.x % 32 % kSelectWarps];
    newest = static_cast<int>(__reduce_max_sync(0xFFFFFFFF, best)) - 1;
  }
  return newest;
}

/// The blocks whose largest scores are best; the newest block is always among them.
__device__ void choose_blocks(const SelectArguments& arguments, const IndexRow& row, int places,
                              const std::uint32_t* scores, SelectShared& shared) {
  const IndexCall& call = arguments.call;
  const int size = call.candidate_block, blocks = (places + size - 1) / size;
  const int newest = newest_token(scores, places, shared);
  const int newest_block = newest < 0 ? -1 : newest / size;
  Selection selection(shared, call.best_blocks);
  add_all(selection, 0, blocks, [&](int block) {
    if (block == newest_block) return 0xFFFFFFFFU;
    const int begin = block * size, end = min(begin + size, places);
    std::uint32_t best = kNoToken;
    for (int i = begin; i < end; ++i) best = max(best, scores[i]);
    return best;
  });
  const int chosen = selection.finish();
  std::int32_t* best = call.best.at(row.request, row.token);
  for (int i = static_cast<int>(threadIdx.x); i < call.best_blocks; i += kSelectThreads) {
    best[i] = i < chosen ? selection.place(i) : -1;
  }
}

__device__ __forceinline__ void write_all_scores(const IndexCall& call, const IndexRow& row, int places,
                                                 const std::uint32_t* scores) {
  float* all = call.all_scores.at(row.request, row.token);
  for (int i = static_cast<int>(threadIdx.x); i < call.span; i += kSelectThreads) {
    all[i] = score_of(i < places ? scores[i] : kNoToken);
  }
}

/// A CTA a query token; with kTeam a cluster.
template <bool kTeam>
__global__ void __launch_bounds__(kSelectThreads, kTeam ? 1 : 2)
    select_kernel(const __grid_constant__ SelectArguments arguments) {
  extern __shared__ __align__(16) std::uint8_t select_shared[];
  auto& shared = *reinterpret_cast<SelectShared*>(select_shared);
  const IndexCall& call = arguments.call;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const int number = static_cast<int>(blockIdx.x) / (kTeam ? kSelectTeam : 1);
  const bool first = !kTeam || ptx::rank_in_cluster() == 0;
  const IndexRow row = row_of(call, arguments.first_row + number);
  int places = 0;
  if (row.count > 0) {
    places = call.candidates > 0 ? call.span : call.visible(row.request, row.token, row.own, row.count);
  }
  const std::uint32_t* scores = arguments.scores + number * arguments.score_stride;
  if (first && call.all_scores.data != nullptr) write_all_scores(call, row, places, scores);
  Selection selection(shared, call.topk);
  keep_best<kTeam>(selection, shared, scores, places, call.topk);
  if (first) {
    const int chosen = selection.finish();
    write_chosen(call, row, selection, chosen);
    if (call.best_blocks > 0) {
      __syncthreads();
      choose_blocks(arguments, row, places, scores, shared);
    }
  }
  if constexpr (kTeam) ptx::cluster_sync();  // the first CTA has read the other CTAs' numbers
}

}  // namespace flashlatent::cuda::indexer
