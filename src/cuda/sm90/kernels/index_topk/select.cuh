// The best of a query token's scores, by a CTA or by a cluster of CTAs that each have a range of them.
#pragma once

#include "cuda/sm90/kernels/index_topk/choose.cuh"

namespace flashlatent::cuda::indexer {

struct SelectArguments {
  IndexCall call;
  const std::uint32_t* scores;
  std::int64_t score_stride;
  int first_row;
};

/// Scores as keys.
struct ScoreKeys {
  const std::uint32_t* scores;

  __device__ __forceinline__ std::uint32_t key(int place) const {
    return scores[place];
  }
  /// Scores of a query token lie in whole groups of four.
  __device__ __forceinline__ uint4 four(int place, int end) const {
    uint4 keys = {};
    if (place < end) keys = *reinterpret_cast<const uint4*>(scores + place);
    if (place + 1 >= end) keys.y = 0;
    if (place + 2 >= end) keys.z = 0;
    if (place + 3 >= end) keys.w = 0;
    return keys;
  }
};

/// Blocks as keys: a block's largest score, and more than any score for the newest block.
struct BlockKeys {
  const std::uint32_t* scores;
  int places, size, newest;

  __device__ __forceinline__ std::uint32_t key(int block) const {
    if (block == newest) return 0xFFFFFFFFU;
    const int begin = block * size, end = min(begin + size, places);
    std::uint32_t best = kNoToken;
#pragma unroll 1
    for (int i = begin; i < end; ++i) best = max(best, scores[i]);
    return best;
  }
  __device__ __forceinline__ uint4 four(int block, int end) const {
    const auto one = [&](int i) { return block + i < end ? key(block + i) : 0; };
    return make_uint4(one(0), one(1), one(2), one(3));
  }
};

__device__ __forceinline__ void clear_columns(SelectShared& shared) {
  constexpr int kWords = kDigits * 32;
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kWords; i += kSelectThreads * 4) {
    *reinterpret_cast<uint4*>(&shared.columns[0][0] + i) = make_uint4(0, 0, 0, 0);
  }
}

/// A query token, and the CTA's share of what is done for it.
template <bool kTeam>
class Selector {
 public:
  /// `scores`: those of query token `row` of the call.
  __device__ __forceinline__ Selector(const IndexCall& call, const std::uint32_t* scores, int row,
                                      SelectShared& shared, const SelectTeam<kTeam>& team)
      : call_(call), shared_(shared), team_(team), row_(row_of(call, row)), scores_(scores) {
    if (row_.count == 0) return;
    places_ = call.candidates > 0 ? call.span : call.visible(row_.request, row_.token, row_.own, row_.count);
  }

  __device__ __forceinline__ void choose_all() const {
    choose_tokens();
    if (call_.best_blocks > 0) choose_blocks();
    if (call_.all_scores.data != nullptr) write_all_scores();
  }

 private:
  /// The columns are cleared; a barrier of the CTA comes first.
  __device__ __forceinline__ void choose_tokens() const {
    const Chosen chosen = choose<kTeam>(shared_, team_, ScoreKeys{scores_}, places_, call_.topk, true);
    __syncthreads();
    std::int32_t* indices = call_.indices.at(row_.request, row_.token);
    float* scores = call_.scores.data == nullptr ? nullptr : call_.scores.at(row_.request, row_.token);
    const std::int32_t* blocks =
        call_.candidates > 0 ? call_.blocks.at(row_.request, row_.token) : nullptr;
    for (int i = static_cast<int>(threadIdx.x); i < chosen.count; i += kSelectThreads) {
      const int place = shared_.chosen[i];
      indices[chosen.begin + i] =
          call_.result(row_.request, static_cast<int>(call_.position(blocks, place)));
      if (scores != nullptr) scores[chosen.begin + i] = score_of(scores_[place]);
    }
    if (team_.rank != 0) return;
    for (int i = chosen.total + static_cast<int>(threadIdx.x); i < call_.topk; i += kSelectThreads) {
      indices[i] = -1;
      if (scores != nullptr) scores[i] = score_of(kNoToken);
    }
    if (threadIdx.x == 0 && call_.counts.data != nullptr) {
      *call_.counts.at(row_.request, row_.token) = chosen.total;
    }
  }

  /// The blocks whose largest scores are best; the newest block is always among them.
  __device__ __forceinline__ void choose_blocks() const {
    const int size = call_.candidate_block, newest = newest_token();
    const BlockKeys keys{scores_, places_, size, newest < 0 ? -1 : newest / size};
    __syncthreads();  // the chosen tokens have been read
    clear_columns(shared_);
    __syncthreads();
    const Chosen chosen =
        choose<kTeam>(shared_, team_, keys, (places_ + size - 1) / size, call_.best_blocks, false);
    __syncthreads();
    std::int32_t* best = call_.best.at(row_.request, row_.token);
    for (int i = static_cast<int>(threadIdx.x); i < chosen.count; i += kSelectThreads) {
      best[chosen.begin + i] = shared_.chosen[i];
    }
    if (team_.rank != 0) return;
    for (int i = chosen.total + static_cast<int>(threadIdx.x); i < call_.best_blocks; i += kSelectThreads) {
      best[i] = -1;
    }
  }

  __device__ __forceinline__ void write_all_scores() const {
    float* all = call_.all_scores.at(row_.request, row_.token);
    const int step = team_.ctas * kSelectThreads;
    for (int i = team_.rank * kSelectThreads + static_cast<int>(threadIdx.x); i < call_.span; i += step) {
      all[i] = score_of(i < places_ ? scores_[i] : kNoToken);
    }
  }

  /// The newest token that exists, mostly the last one; -1: there is none.
  __device__ __forceinline__ int newest_token() const {
    int newest = -1;
    for (int end = places_; end > 0 && newest < 0; end -= kSelectThreads) {
      const int place = end - 1 - static_cast<int>(threadIdx.x);
      const int mine = place >= 0 && scores_[place] != kNoToken ? place : -1;
      const int of_warp = __reduce_max_sync(0xFFFFFFFF, mine);
      __syncthreads();
      if (threadIdx.x % 32 == 0) shared_.better[threadIdx.x / 32] = of_warp;
      __syncthreads();
      newest = __reduce_max_sync(0xFFFFFFFF, shared_.better[threadIdx.x % 32 % kSelectWarps]);
    }
    return newest;
  }

  const IndexCall& call_;
  SelectShared& shared_;
  const SelectTeam<kTeam>& team_;
  const IndexRow row_;
  const std::uint32_t* const scores_;
  int places_ = 0;
};

/// A CTA a query token; with kTeam a cluster.
template <bool kTeam>
__global__ void __launch_bounds__(kSelectThreads, 2)
    select_kernel(const __grid_constant__ SelectArguments arguments) {
  extern __shared__ __align__(16) std::uint8_t select_shared[];
  auto& shared = *reinterpret_cast<SelectShared*>(select_shared);
  if constexpr (kTeam) ptx::cluster_arrive();  // waited for before the first store to another CTA
  const SelectTeam<kTeam> team;
  clear_columns(shared);
  __syncthreads();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const int number = static_cast<int>(blockIdx.x) / team.ctas;
  const std::uint32_t* scores = arguments.scores + number * arguments.score_stride;
  Selector<kTeam>(arguments.call, scores, arguments.first_row + number, shared, team).choose_all();
}

}  // namespace flashlatent::cuda::indexer
