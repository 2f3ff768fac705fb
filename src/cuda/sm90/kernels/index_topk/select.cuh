// The best of a query token's scores, by a CTA, or for few query tokens of long contexts by a cluster.
#pragma once

#include "cuda/sm90/kernels/index_topk/team.cuh"
#include "cuda/sm90/kernels/index_topk/touch.cuh"
#include "cuda/sm90/ptx/cluster_size.cuh"

namespace flashlatent::cuda::indexer {

struct SelectArguments {
  IndexCall call;
  const std::uint32_t* scores;
  std::int64_t score_stride;
  int first_row;
  /// Does the launch of the scores come before it? What that launch has waited for is then there.
  bool follows_scores;
};

/// A query token's scores, as keys, in whole groups of four.
struct WorkspaceScores {
  const std::uint32_t* scores;

  // They come from other multiprocessors, so they are read past the L1 cache.
  __device__ __forceinline__ std::uint32_t at(int place) const { return __ldcg(scores + place); }
  __device__ __forceinline__ uint4 four_at(int place) const {
    return __ldcg(reinterpret_cast<const uint4*>(scores + place));
  }
  __device__ __forceinline__ WorkspaceScores from(int place) const { return {scores + place}; }
};
/// The same in shared memory.
struct SharedScores {
  const std::uint32_t* scores;

  __device__ __forceinline__ std::uint32_t at(int place) const { return scores[place]; }
  __device__ __forceinline__ uint4 four_at(int place) const {
    return *reinterpret_cast<const uint4*>(scores + place);
  }
};

/// Scores as keys.
template <class Scores>
struct ScoreKeys {
  Scores scores;

  __device__ __forceinline__ uint4 four(int place, int end) const {
    uint4 keys = {};
    if (place < end) keys = scores.four_at(place);
    if (place + 1 >= end) keys.y = 0;
    if (place + 2 >= end) keys.z = 0;
    if (place + 3 >= end) keys.w = 0;
    return keys;
  }
};

/// Blocks as keys: a block's largest score, and more than any score for the newest block.
template <class Scores>
struct BlockKeys {
  Scores scores;
  int places, size, newest;

  __device__ __forceinline__ std::uint32_t key(int block) const {
    if (block == newest) return 0xFFFFFFFFU;
    const int begin = block * size, end = min(begin + size, places);
    std::uint32_t best = kNoToken;
#pragma unroll 1
    for (int i = begin; i < end; ++i) best = max(best, scores.at(i));
    return best;
  }
  __device__ __forceinline__ uint4 four(int block, int end) const {
    const auto one = [&](int i) { return block + i < end ? key(block + i) : 0; };
    return make_uint4(one(0), one(1), one(2), one(3));
  }
};

/// A query token. All threads of the CTA call its functions.
template <class Scores>
class Selector {
 public:
  /// `scores`: those of query token `row` of the call.
  __device__ __forceinline__ Selector(const IndexCall& call, const Scores& scores, int row,
                                      ChooseShared& shared, const HeldKeys& held)
      : call_(call), shared_(shared), held_(held), row_(row_of(call, row)), scores_(scores) {
    if (row_.count == 0) return;
    places_ = call.candidates > 0 ? call.span : call.visible(row_.request, row_.token, row_.own, row_.count);
  }

  /// Counts are cleared; a barrier of the CTA comes first.
  __device__ __forceinline__ void choose_tokens() const {
    if (call_.needs_no_scores(places_)) return choose_tokens_without_scores();
    const ScoreKeys<Scores> keys{scores_};
    const Batches<ScoreKeys<Scores>> batches(held_, keys, places_);
    Batch batch;
    const Threshold threshold = find_threshold(shared_, batches, batch, call_.topk);
    write_nothing(write_chosen(batches, batch, threshold, {}, 0));
  }

  /// By all CTAs of a team.
  __device__ __forceinline__ void choose_in_team(TeamShared& team_shared, const Team& team) const {
    if (call_.needs_no_scores(places_)) {
      if (team.rank == 0) choose_tokens_without_scores();
      return;
    }
    const int each = ((places_ - 1) / team.ctas / 4 + 1) * 4, begin = min(team.rank * each, places_);
    const int count = min(each, places_ - begin);
    const ScoreKeys<Scores> keys{scores_.from(begin)};
    const Batches<ScoreKeys<Scores>> batches(held_, keys, count);
    Batch batch;
    const TeamThreshold found = find_threshold(shared_, team_shared, team, batches, batch, call_.topk);
    if (found.found) {
      write_chosen(batches, batch, found.threshold, found.before, begin);
      if (team.rank == 0) write_count(call_.topk);
    } else if (team.rank == 0) {
      __syncthreads();
      clear_counts(shared_);
      __syncthreads();
      choose_tokens();
    }
  }

  /// The blocks whose largest scores are best; the newest block is always among them.
  __device__ __forceinline__ void choose_blocks() const {
    const int size = call_.candidate_block, newest = newest_token();
    const BlockKeys<Scores> keys{scores_, places_, size, newest < 0 ? -1 : newest / size};
    __syncthreads();  // the chosen tokens have been read
    clear_counts(shared_);
    __syncthreads();
    const Batches<BlockKeys<Scores>> batches(held_, keys, (places_ + size - 1) / size);
    Batch batch;
    const Threshold threshold = find_threshold(shared_, batches, batch, call_.best_blocks);
    std::int32_t* best = call_.best.at(row_.request, row_.token);
    const int chosen =
        place_chosen(shared_, batches, batch, threshold, call_.best_blocks, {}, ResultPlaces{best}, 0);
    for (int i = chosen + thread(); i < call_.best_blocks; i += kChooseThreads) best[i] = -1;
  }

  /// The `part`-th of `parts` shares.
  __device__ __forceinline__ void write_all_scores(int part, int parts) const {
    float* all = call_.all_scores.at(row_.request, row_.token);
    const int step = parts * kChooseThreads;
    for (int i = part * kChooseThreads + thread(); i < call_.span; i += step) {
      all[i] = score_of(i < places_ ? scores_.at(i) : kNoToken);
    }
  }

 private:
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }

  __device__ __forceinline__ void choose_tokens_without_scores() const {
    const int chosen = take_all();
    __syncthreads();
    write_tokens(0, chosen);
    write_nothing(chosen);
  }

  /// Leaves all places whose tokens exist in shared_.chosen, and returns how many there are. A warp has
  /// neighbouring places.
  __device__ __forceinline__ int take_all() const {
    constexpr int kSteps = kMaxIndexTopk / kChooseThreads;
    const int lane = thread() % 32, warp = thread() / 32;
    const int first = warp * 32 * kSteps + lane;
    unsigned exist[kSteps];
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int place = first + i * 32;
      const bool exists = place < places_ && call_.page_of(row_.request, place) >= 0;
      exist[i] = __ballot_sync(0xFFFFFFFF, exists);
      mine += __popc(exist[i]);
    }
    if (lane == 0) shared_.warps[0][warp] = mine;
    __syncthreads();
    const int of_warp = lane < kChooseWarps ? shared_.warps[0][lane] : 0;
    int at = __reduce_add_sync(0xFFFFFFFF, lane < warp ? of_warp : 0);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if ((exist[i] >> lane & 1) != 0) {
        shared_.chosen[at + __popc(exist[i] & ((1U << lane) - 1))] = first + i * 32;
      }
      at += __popc(exist[i]);
    }
    return __reduce_add_sync(0xFFFFFFFF, of_warp);
  }

  /// Writes the chosen of the batches' keys, whose first place is `begin`, and returns how many they are.
  template <class Keys>
  __device__ __forceinline__ int write_chosen(const Batches<Keys>& batches, Batch& batch,
                                              const Threshold& threshold, const ChosenBefore& before,
                                              int begin) const {
    if (call_.slot_table == nullptr && call_.candidates == 0 && call_.scores.data == nullptr) {
      std::int32_t* indices = call_.indices.at(row_.request, row_.token) + before.chosen;
      return place_chosen(shared_, batches, batch, threshold, call_.topk, before, ResultPlaces{indices},
                          begin);
    }
    const int chosen =
        place_chosen(shared_, batches, batch, threshold, call_.topk, before, SharedPlaces(shared_), begin);
    __syncthreads();
    write_tokens(before.chosen, chosen);
    return chosen;
  }

  /// The `count` places in shared_.chosen are the results from number `first` on.
  __device__ __forceinline__ void write_tokens(int first, int count) const {
    std::int32_t* indices = call_.indices.at(row_.request, row_.token) + first;
    if (call_.slot_table == nullptr && call_.candidates == 0) {
      for (int i = thread(); i < count; i += kChooseThreads) indices[i] = shared_.chosen[i];
    } else {
      write_results(indices, count);
    }
    if (call_.scores.data == nullptr) return;
    float* scores = call_.scores.at(row_.request, row_.token) + first;
    for (int i = thread(); i < count; i += kChooseThreads) {
      scores[i] = score_of(scores_.at(shared_.chosen[i]));
    }
  }
  __device__ __forceinline__ void write_results(std::int32_t* indices, int count) const {
    const std::int32_t* blocks = call_.candidates > 0 ? call_.blocks.at(row_.request, row_.token) : nullptr;
    constexpr int kSteps = kMaxIndexTopk / kChooseThreads;
    std::int32_t results[kSteps];  // first all loads, then all stores
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int i = step * kChooseThreads + thread();
      if (i >= count) break;
      const std::int64_t position = call_.position(blocks, shared_.chosen[i]);
      results[step] = call_.result(row_.request, static_cast<int>(position));
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int i = step * kChooseThreads + thread();
      if (i < count) indices[i] = results[step];
    }
  }
  /// What follows all `chosen` results, and their number.
  __device__ __forceinline__ void write_nothing(int chosen) const {
    std::int32_t* indices = call_.indices.at(row_.request, row_.token);
    float* scores = call_.scores.data == nullptr ? nullptr : call_.scores.at(row_.request, row_.token);
    for (int i = chosen + thread(); i < call_.topk; i += kChooseThreads) {
      indices[i] = -1;
      if (scores != nullptr) scores[i] = score_of(kNoToken);
    }
    write_count(chosen);
  }
  __device__ __forceinline__ void write_count(int chosen) const {
    if (threadIdx.x == 0 && call_.counts.data != nullptr) {
      *call_.counts.at(row_.request, row_.token) = chosen;
    }
  }

  /// The newest token that exists, mostly the last one; -1: there is none.
  __device__ __forceinline__ int newest_token() const {
    int newest = -1;
    for (int end = places_; end > 0 && newest < 0; end -= kChooseThreads) {
      const int place = end - 1 - thread();
      const int mine = place >= 0 && scores_.at(place) != kNoToken ? place : -1;
      const int of_warp = __reduce_max_sync(0xFFFFFFFF, mine);
      __syncthreads();
      if (threadIdx.x % 32 == 0) shared_.warps[0][threadIdx.x / 32] = of_warp;
      __syncthreads();
      newest = __reduce_max_sync(0xFFFFFFFF, shared_.warps[0][threadIdx.x % 32 % kChooseWarps]);
    }
    return newest;
  }

  const IndexCall& call_;
  ChooseShared& shared_;
  const HeldKeys& held_;
  const IndexRow row_;
  const Scores scores_;
  int places_ = 0;
};

template <class Config>
struct SelectShared {
  ChooseShared choose;
  uint4 held[Config::kHeldKeys / 4];
};
static_assert(sizeof(SelectShared<SelectConfig<1>>) <= 227 * 1024 &&
              2 * (sizeof(SelectShared<SelectConfig<2>>) + 1024) <= 228 * 1024);

/// A CTA a query token.
template <class Config>
__global__ void __launch_bounds__(kChooseThreads, Config::kCtas)
    select_kernel(const __grid_constant__ SelectArguments arguments) {
  extern __shared__ __align__(16) std::uint8_t select_shared[];
  auto& shared = *reinterpret_cast<SelectShared<Config>*>(select_shared);
  touch(arguments);
  clear_counts(shared.choose);
  __syncthreads();
  if (!arguments.follows_scores) cudaGridDependencySynchronize();
  const int number = static_cast<int>(blockIdx.x);
  const HeldKeys held{shared.held, Config::kHeldKeys};
  const WorkspaceScores scores{arguments.scores + number * arguments.score_stride};
  const Selector selector(arguments.call, scores, arguments.first_row + number, shared.choose, held);
  if (arguments.follows_scores) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  selector.choose_tokens();
  if (arguments.call.best_blocks > 0) selector.choose_blocks();
  if (arguments.call.all_scores.data != nullptr) selector.write_all_scores(0, 1);
}

struct SelectTeamShared {
  static constexpr int kHeldKeys = 16 * 1024;

  ChooseShared choose;
  TeamShared team;
  uint4 held[kHeldKeys / 4];
};

/// A cluster a query token.
__global__ void __launch_bounds__(kChooseThreads)
    select_team_kernel(const __grid_constant__ SelectArguments arguments) {
  extern __shared__ __align__(16) std::uint8_t team_shared[];
  auto& shared = *reinterpret_cast<SelectTeamShared*>(team_shared);
  touch(arguments);
  prepare_team(shared.team);
  ptx::cluster_arrive();
  clear_counts(shared.choose);
  const Team team{static_cast<int>(ptx::rank_in_cluster()), static_cast<int>(ptx::ctas_of_cluster())};
  const int number = static_cast<int>(blockIdx.x) / team.ctas;
  if (!arguments.follows_scores) cudaGridDependencySynchronize();
  const HeldKeys held{shared.held, SelectTeamShared::kHeldKeys};
  const WorkspaceScores scores{arguments.scores + number * arguments.score_stride};
  const Selector selector(arguments.call, scores, arguments.first_row + number, shared.choose, held);
  if (arguments.follows_scores) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  ptx::cluster_wait();                        // the others' barriers are there
  __syncthreads();
  selector.choose_in_team(shared.team, team);
  if (arguments.call.all_scores.data != nullptr) selector.write_all_scores(team.rank, team.ctas);
}

}  // namespace flashlatent::cuda::indexer
