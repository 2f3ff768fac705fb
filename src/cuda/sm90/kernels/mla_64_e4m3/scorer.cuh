// The scorer: S = Q K^T of every block, and P for the two output warpgroups.
//
// A block's P is relative to the row's maximum in this block alone, so it uses all of e4m3's range, whatever
// other blocks have. The output warpgroups add a block's sums times a factor, which comes with P.
#pragma once

#include "cuda/sm90/kernels/mla_64_e4m3/query.cuh"
#include "cuda/sm90/math/column_softmax.cuh"

namespace flashlatent::mla_64_e4m3 {

template <class Config>
class Scorer {
 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args), query_(shared, args) {}

  /// Takes a segment's Q, when the previous segment has been scored.
  __device__ __forceinline__ void begin(const sm90::Work& work) {
    meet();
    query_.take(work.tile);
    const int thread = threadIdx.x % 128;
    if (thread < Config::kRows) shared_.scored_rows.find(args_, work.tile, thread);
    meet();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Dead tokens' scores are -inf times it.
      const float scale = shared_.row_scale[row(h)];
      scale_[h] = scale == 0 ? kLeastScale : scale;
      base_[h] = -INFINITY;
      sum_[h] = 0;
      largest_[h] = -INFINITY;
    }
  }

  /// All blocks of a segment, which has at least one.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    int left = work.blocks();
    float s[Config::kScores][32];
    if constexpr (Config::kOverlaps) {
      ask(s[0]);
      while (go_on(work, s[0], s[1], s[kSpare], left) && go_on(work, s[1], s[0], s[kSpare], left)) {
      }
    } else {
#pragma unroll 1
      for (; left > 0; --left) {
        ask(s[0]);
        take<0>(s[0], s[1], s[kSpare]);
        soften(work, s[0], left);
      }
    }
  }

 private:
  static constexpr int kRows = Config::kRows;
  static constexpr float kLargest = Config::kLargestP;
  static constexpr float kLeastScale = 0x1p-126F;
  static constexpr int kSpare = Config::kScores - 1;
  static constexpr bool kChainsInTurn = Config::kScores == 3;

  __device__ __forceinline__ static void meet() {
    ptx::named_sync(kScorerBarrier, 128);
  }
  __device__ __forceinline__ static sm90::Fragment fragment() {
    return sm90::fragment_of(threadIdx.x % 128);
  }
  __device__ __forceinline__ static int row(int h) {
    return fragment().row + 8 * h;
  }
  /// Does the warp have rows? In a tile of few rows some warps have none.
  __device__ __forceinline__ static bool has_rows() {
    return kRows >= 64 || threadIdx.x % 128 / 32 * 16 < kRows;
  }
  static constexpr int kHalves = kRows == 8 ? 1 : 2;  // rows g and g + 8

  /// Finishes a block whose scores are under way to `s`; afterwards the next block's scores are under way to
  /// `other`, if there is a next block.
  __device__ __forceinline__ bool go_on(const sm90::Work& work, float (&s)[32], float (&other)[32],
                                        float (&spare)[32], int& left) {
    if (left == 1) {
      take<0>(s, other, spare);
      soften(work, s, 1);
      return false;
    }
    if constexpr (Config::kChains == 1) {
      ask(other);
      take<1>(s, other, spare);
    } else {
      take<0>(s, other, spare);
      ask(other);
    }
    soften(work, s, left--);
    return true;
  }

  /// Starts the first chain of the next block to be scored.
  __device__ __forceinline__ void ask(float (&s)[32]) {
    const auto& place = Config::kOverlaps ? ahead_ : slot_;
    ptx::wait(shared_.full[place.index()], place.parity());
    if constexpr (!Config::kBoxes) ptx::fence_for_async_proxy();
    multiply<0>(s, place.index());
    if constexpr (Config::kOverlaps) ahead_.next();
  }
  /// Starts a chain of a block's products.
  template <int kChain>
  __device__ __forceinline__ void multiply(float (&s)[32], int slot) {
    constexpr int kSteps = 2 * Config::kChunks, kChains = Config::kChains;
    constexpr int kBegin = kChain * kSteps / kChains, kEnd = (kChain + 1) * kSteps / kChains;
    const std::uint64_t q =
        ptx::descriptor_k_major_64<kAtomBytes>(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q), 0));
    const std::uint64_t k = ptx::descriptor_k_major_64<Config::kChunks * kAtomBytes>(
        __shfl_sync(0xffffffff, ptx::shared_address(shared_.blocks[slot]), 0));
    ptx::pin_registers(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      ptx::WgmmaE4m3<64>::ss(s, q + i / 2 * (64 * 64 / 16) + i % 2 * ptx::kStepOfE4m3,
                             k + i / 2 * (kAtomBytes / 16) + i % 2 * ptx::kStepOfE4m3, i > kBegin);
    }
    ptx::wgmma_commit();
  }
  /// The scores of the present block, whose stage is then freed. kPending: blocks behind it whose products
  /// have been started. `a` and `b` take all chains but the first.
  template <int kPending>
  __device__ __forceinline__ void take(float (&s)[32], float (&a)[32], float (&b)[32]) {
    const int slot = slot_.index();
    if constexpr (Config::kChains > 1) {
      multiply<1>(a, slot);
      add_chains<1>(s, a, b, slot);
    }
    ptx::wgmma_wait<kPending>();
    ptx::pin_registers(s);
    live_ = shared_.live[slot];
    ptx::arrive(shared_.empty[slot]);
    slot_.next();
  }
  /// Adds the chains from kChain on, which is under way to `a`. With kChainsInTurn each is started before the
  /// previous one is waited for.
  template <int kChain>
  __device__ __forceinline__ void add_chains(float (&s)[32], float (&a)[32], float (&b)[32], int slot) {
    constexpr bool kLast = kChain + 1 == Config::kChains;
    if constexpr (!kLast && kChainsInTurn) multiply<kChain + 1>(b, slot);
    ptx::wgmma_wait<!kLast && kChainsInTurn ? 1 : 0>();
    ptx::pin_registers(s);
    ptx::pin_registers(a);
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] += a[i];
    if constexpr (!kLast && kChainsInTurn) {
      add_chains<kChain + 1>(s, b, a, slot);
    } else if constexpr (!kLast) {
      multiply<kChain + 1>(a, slot);
      add_chains<kChain + 1>(s, a, b, slot);
    }
  }

  /// P of the present block, from its scores `s`.
  __device__ __forceinline__ void soften(const sm90::Work& work, float (&s)[32], int left) {
    const int place = place_.index();
    if (has_rows()) {
      const int start = (work.segment.block_end - left) * 64;
      const RowsBehind<kRows>& rows = shared_.scored_rows;
      if (live_ != sm90::kAllLive || rows.seen_by_all(work).end - start < 64) [[unlikely]] {
        sm90::mask_scores(s, live_, rows.seen(work, row(0)).from(start),
                          rows.seen(work, kHalves > 1 ? row(1) : row(0)).from(start), fragment());
      }
      std::uint32_t words[2][4];
      float factor[2], shrink[2] = {1.0F, 1.0F};
      const bool shrinks = words_of_rows(s, words, factor, shrink);
      ptx::wait(shared_.p_free[place], place_.parity() ^ 1);
      publish(place, words, factor, shrink, shrinks, left == 1);
      ptx::fence_for_async_proxy();
    } else {
      ptx::wait(shared_.p_free[place], place_.parity() ^ 1);
    }
    ptx::arrive(shared_.has_p[place]);
    place_.next();
  }

  /// The maxima of this thread's rows, over the four lanes that share them.
  __device__ __forceinline__ static void find_maxima(const float (&s)[32], float (&max)[2]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float of[4];  // four short chains take less time than a long one
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = 8 * k + 2 * h;
        of[k] = fmaxf(fmaxf(s[i], s[i + 1]), fmaxf(s[i + 4], s[i + 5]));
      }
      max[h] = fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3]));
    }
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        max[h] = fmaxf(max[h], __shfl_xor_sync(0xffffffff, max[h], step));
      }
    }
  }

  /// P of this thread's tokens of both rows, and the factors of the block's sums and of the sums so far. Does
  /// a row of this warp rescale its sums so far? Both rows are computed side by side, without a branch
  /// between them: one warp a scheduler scores, so latencies add up.
  __device__ __forceinline__ bool words_of_rows(const float (&s)[32], std::uint32_t (&words)[2][4],
                                                float (&factor)[2], float (&shrink)[2]) {
    float max[2], base[2];
    find_maxima(s, max);
    bool moves[2] = {};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const bool empty = max[h] == -INFINITY;
      if constexpr (Config::kTurns) largest_[h] = fmaxf(largest_[h], max[h] * scale_[h]);
      // Rounded up, or P of huge scores could be larger than e4m3 has room for.
      base[h] = empty ? 0.0F : __fsub_ru(__fmul_ru(max[h], scale_[h]), kLargest);
      moves[h] = !empty && !(base[h] - base_[h] <= Config::kSlack);
    }
    const bool shrinks = __any_sync(0xffffffff, moves[0] || moves[1]);
    if (shrinks) [[unlikely]] {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (!moves[h]) continue;
        shrink[h] = sm90::shrink(base_[h], base[h]);
        sum_[h] *= shrink[h];
        base_[h] = base[h];
      }
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      factor[h] = max[h] == -INFINITY ? 0.0F : sm90::exp2_fast(base[h] - base_[h]);
      float sum = 0;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float score = s[4 * (2 * u + i / 2) + 2 * h + i % 2];
          p[i] = sm90::exp2_fast(fmaf(score, scale_[h], -base[h]));
        }
        sum += (p[0] + p[1]) + (p[2] + p[3]);
        words[h][u] = pack_e4m3(p[0], p[1], p[2], p[3]);
      }
      sum_[h] = fmaf(sum, factor[h], sum_[h]);
    }
    return shrinks;
  }

  /// Stores to the place of P, which is no longer read. `last`: the segment's last block.
  __device__ __forceinline__ void publish(int place, const std::uint32_t (&words)[2][4],
                                          const float (&factor)[2], const float (&shrink)[2], bool shrinks,
                                          bool last) const {
    BlockScales<kRows>& to = shared_.scales[place];
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int n = warp * 16 + 8 * h + lane % 8;
      ptx::store_matrices(ptx::shared_address(shared_.p[place]) + tile_offset(n, lane / 8), words[h]);
      if (lane % 4 == 0) {
        to.factor[row(h)] = factor[h];
        if (shrinks) to.shrink[row(h)] = shrink[h];
      }
      if (last) {
        const float sum = sm90::quad_sum(sum_[h]);
        if (lane % 4 == 0) {
          to.base[row(h)] = base_[h];
          to.sum[row(h)] = sum;
          if constexpr (Config::kTurns) shared_.largest.of_row[place][row(h)] = largest_[h];
        }
      }
    }
    if (lane == 0) to.shrinks[warp] = shrinks;
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const Query<Config> query_;
  RingPlace<Config::kSlots> ahead_, slot_;  // of the next block to be scored, and of the present block
  RingPlace<Config::kPlaces> place_;        // of its P
  std::uint64_t live_ = 0;                  // which tokens of the present block count
  float scale_[2], base_[2], sum_[2];       // of this thread's rows; sums of its tokens
  float largest_[2];                        // kTurns: scores of its rows so far, to base 2
};

}  // namespace flashlatent::mla_64_e4m3
