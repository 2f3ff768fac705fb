// The scorer: Q K^T and the softmax of a row tile. It gives P to the two output warpgroups.
//
// Most of Q is in its registers, 128 of a thread. Products then read only K from shared memory, which is half
// of what shared memory can deliver.
//
//   scorer    Q K_0^T | softmax, P_0 | Q K_1^T | softmax, P_1 | Q K_2^T | ...
//   outputs                                | P_0 V_0              | P_1 V_1
#pragma once

#include <cfloat>

#include "cuda/sm90/kernels/mla_64_roles/stages.cuh"
#include "cuda/sm90/math/fragment.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"
#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::mla_64_roles {

inline constexpr int kScorerBarrier = 1;  // named barrier of its 128 threads

template <class Config>
class Scorer {
 public:
  using Element = typename Config::Element;
  using Shared = SharedMemory<Config>;

  __device__ __forceinline__ Scorer(Shared& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args), thread_(threadIdx.x % 128), fragment_(sm90::fragment_of(thread_)) {}

  /// Scores all stages of one segment.
  __device__ __forceinline__ void score_segment(const sm90::Work& work) {
    const int stages = stages_of(work.segment);
    if (stages <= 0) return;
    take_query();
    base_ = {kNoBase, kNoBase};
    sum_ = {0, 0};
    slack_ = {0, 0};
    if constexpr (Config::kTurns) {
      shared_.maxima.low[thread_].init();
      shared_.maxima.high[thread_].init();
    }
    if constexpr (!Config::kTurns) to_limit_ = seen(work, 0).end - first_token(work.segment);
    await_stage();
    begin_product();
    multiply<0, kSteps>();
    end_product();
    int left = stages;
#pragma unroll 1
    for (; left > 2; left -= 2) {
      take_turn<0, true>(work);
      take_turn<1, true>(work);
    }
    if (left == 2) {
      take_turn<0, true>(work);
      take_turn<1, false>(work);
    } else {
      take_turn<0, false>(work);
    }
  }

 private:
  static constexpr int kSteps = Config::kQkChunks * 4, kRegisterSteps = Config::kRegisterChunks * 4;
  static constexpr int kScores = kStageTokens / 2;  // of a thread
  using Scores = float[kScores];

  /// Takes the tile's Q, which was loaded into two stages of the ring: most columns as A operands, the last
  /// ones to their place in shared memory.
  __device__ __forceinline__ void take_query() {
    ptx::named_sync(kScorerBarrier, 128);  // the previous segment's products have read that place
    int stages[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      stages[half] = scored_;
      await_stage();
      next_stage();
      const StageTile* tiles = shared_.kv[stages[half]].tiles;
      if (thread_ / 64 == half) {
#pragma unroll
        for (int step = 0; step < kRegisterSteps; ++step) {
          const int row = thread_ / 32 % 2 * 16 + thread_ % 16, unit = step % 4 * 2 + thread_ % 32 / 16;
          ptx::load_matrices(q_[step], ptx::shared_address(&tiles[step / 4]) + sm90::unit_offset(row, unit));
        }
      }
#pragma unroll
      for (int chunk = Config::kRegisterChunks; chunk < Config::kQkChunks; ++chunk) {
        const auto* from = reinterpret_cast<const uint4*>(&tiles[chunk]);
        auto* to = reinterpret_cast<uint4*>(&shared_.q[chunk - Config::kRegisterChunks]) +
                   half * sizeof(StageTile) / sizeof(uint4);
        for (int i = thread_; i < sizeof(StageTile) / sizeof(uint4); i += 128) to[i] = from[i];
      }
    }
    ptx::fence_for_async_proxy();  // also waits for reads that are under way
    __syncwarp();
    if (Config::kByTokens || thread_ % 32 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // in place of the arrivals of two multiplying warps
        ptx::arrive(shared_.kv_empty[stages[half]]);
        ptx::arrive(shared_.kv_empty[stages[half]]);
      }
    }
    ptx::named_sync(kScorerBarrier, 128);
  }

  /// Waits for the next stage.
  __device__ __forceinline__ void await_stage() {
    ptx::wait(shared_.kv_full[scored_], scored_parity_);
    if constexpr (Config::kByTokens) ptx::fence_for_async_proxy();  // threads have written it
  }
  __device__ __forceinline__ void begin_product() {
    live_ = shared_.live[scored_].get();
    ptx::wgmma_fence();
  }
  /// s = Q K^T of the next stage, for the steps [kBegin, kEnd) of 16 columns.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void multiply() {
    using Wgmma = ptx::Wgmma<Element, kStageTokens>;
#pragma unroll
    for (int step = kBegin; step < kEnd; ++step) {
      const std::uint64_t k = descriptors_.k_major(&shared_.kv[scored_].tiles[step / 4]);
      const std::uint64_t b = k + step % 4 * ptx::kStepAlongRow;
      if (step < kRegisterSteps) {
        Wgmma::template rs<false>(s_, q_[step], b, step > 0);
      } else {
        const std::uint64_t a = descriptors_.k_major(&shared_.q[(step - kRegisterSteps) / 4]);
        Wgmma::template ss<false>(s_, a + step % 4 * ptx::kStepAlongRow, b, true);
      }
    }
  }
  __device__ __forceinline__ void end_product() {
    ptx::wgmma_commit();
    next_stage();
  }
  __device__ __forceinline__ void next_stage() {
    if (++scored_ == Config::kStages) {
      scored_ = 0;
      scored_parity_ ^= 1;
    }
  }

  /// The softmax of a stage. Probabilities have registers of their own. In the registers of the scores, which
  /// a later product writes, ptxas makes the product that is under way wait (C7519): 260 of a stage's 1,700
  /// clocks.
  struct Softmax {
    bool shrinks;          // does any row of the warp shrink?
    sm90::RowPair factor;  // factor for what has been summed
    std::uint32_t p[kScores / 8][4];
  };
  /// Half of the probabilities are computed before it is known whether the base stays, and again if it does
  /// not, which happens only in a row's first stages. So nothing waits for a maximum.
  __device__ __forceinline__ Softmax soften(float scale) {
    Softmax x;
    x.shrinks = false;
    x.factor = {1, 1};
    Half first, second;
    take_exponentials<0>(first, scale);
    sm90::RowPair max{-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      max.low = fmaxf(max.low, fmaxf(s_[4 * j], s_[4 * j + 1]));
      max.high = fmaxf(max.high, fmaxf(s_[4 * j + 2], s_[4 * j + 3]));
    }
    max = {max.low * scale, max.high * scale};
    if constexpr (Config::kTurns) raise_maxima(max);
    const bool grows =
        sm90::exceeds(max.low, base_.low, slack_.low) | sm90::exceeds(max.high, base_.high, slack_.high);
    if (__any_sync(0xffffffff, grows)) [[unlikely]] {
      const sm90::RowPair before = base_;
      base_ = sm90::row_base(s_, scale, before, slack_);
      slack_ = {fmaxf(slack_.low - (base_.low - before.low), 0.0F),
                fmaxf(slack_.high - (base_.high - before.high), 0.0F)};
      x.factor = sm90::shrink(before, base_);
      x.shrinks = sm90::shrinks(x.factor);
      if (sm90::has_huge(base_)) {
        sm90::multiply(s_, scale);
        scale = 1;
      }
      take_exponentials<0>(first, scale);
    }
    take_exponentials<1>(second, scale);
    sm90::RowPair sum{0, 0};
    pack(x.p[0], first, sum);
    pack(x.p[1], second, sum);
    sum_ = {fmaf(sum_.low, x.factor.low, sum.low), fmaf(sum_.high, x.factor.high, sum.high)};
    return x;
  }
  /// In registers the maxima and their address would spill.
  __device__ __forceinline__ void raise_maxima(sm90::RowPair max) {
    const int thread = thread_anew();
    shared_.maxima.low[thread].raise(max.low);
    shared_.maxima.high[thread].raise(max.high);
  }
  /// thread_, read again so that no address of it stays in a register.
  __device__ __forceinline__ static int thread_anew() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 128;
  }
  /// Half of the stage's tokens: 16 columns of P.
  using Half = float[kScores / 2];
  template <int kHalf>
  __device__ __forceinline__ void take_exponentials(Half& half, float scale) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float base = i % 4 < 2 ? base_.low : base_.high;
      half[i] = sm90::exp2_fast(fmaf(s_[kHalf * kScores / 2 + i], scale, -base));
    }
  }
  /// Packs P, and adds to this thread's share of the rows' sums.
  __device__ __forceinline__ static void pack(std::uint32_t (&p)[4], const Half& half, sm90::RowPair& sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      (i % 2 == 0 ? sum.low : sum.high) += half[2 * i] + half[2 * i + 1];
      p[i] = sm90::pack<Element>(half[2 * i], half[2 * i + 1]);
    }
  }
  /// The base of a row that has seen no token. It is not -inf, which would need a test before each
  /// exponential: no score is less.
  static constexpr float kNoBase = -FLT_MAX;

  /// Turns a stage's scores, which are under way, into P at place kPlace; then starts the scores of the next
  /// stage, if there is one.
  template <int kPlace, bool kHasNext>
  __device__ __forceinline__ void take_turn(const sm90::Work& work) {
    ptx::wait(shared_.p_empty[kPlace], (p_parities_ >> kPlace & 1) ^ 1);
    p_parities_ ^= 1U << kPlace;
    if constexpr (kHasNext) await_stage();
    if constexpr (kSlackBehindWaits && kPlace == 0) renew_slack();
    // By a vote of the warp: by rows, as in sm90::exponentials(), takes up to 4 % longer
    // (docs/log/correctness.md).
    const bool scales_first = !(args_.scale_log2 > 0) || sm90::has_huge(base_);
    // Computed before the wait for scores: 0.3 to 0.5 % faster.
    const bool is_plain = !scales_first && live_ == ~0U && (Config::kTurns || to_limit_ >= kStageTokens);
    float scale = args_.scale_log2;
    if (is_plain) [[likely]] {
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s_);
    } else {
      ptx::wgmma_wait_apart();
      ptx::pin_registers(s_);
      if (scales_first) {
        sm90::multiply(s_, scale);
        scale = 1;
      }
      mask(work);
    }
    const Softmax softmax = soften(scale);
    if constexpr (kHasNext) {
      begin_product();
      multiply<0, 4>();
      store(softmax, kPlace);
      multiply<4, kFence>();
      ptx::fence_for_async_proxy();
      multiply<kFence, kAnnouncing>();
      ptx::arrive(shared_.p_full[kPlace]);
      multiply<kAnnouncing, kSteps>();
      end_product();
    } else {
      store(softmax, kPlace);
      say_sums(shared_.statistics[kPlace]);
      if constexpr (Config::kTurns) say_maxima(kPlace);
      ptx::fence_for_async_proxy();
      ptx::arrive(shared_.p_full[kPlace]);
      if (shared_.poisoned != 0) clean_poison(kPlace);
    }
    if constexpr (!kSlackBehindWaits && kPlace == 1) renew_slack();
    if constexpr (!Config::kTurns) to_limit_ -= kStageTokens;
  }
  __device__ __forceinline__ void renew_slack() {
    slack_ = {sm90::slack_of(sm90::quad_sum(sum_.low)), sm90::slack_of(sm90::quad_sum(sum_.high))};
  }
  /// Where the slack is computed, in every second stage: before the wait for scores, or after the next
  /// products have been started (ptxas mixes its shuffles with these). The former is 2 % faster token by
  /// token and 0.7 % with shares. By boxes it is 0.4 % slower, because the time is then taken from the other
  /// warpgroups.
  static constexpr bool kSlackBehindWaits = Config::kByTokens || Config::kHasShare;
  /// Steps that are started before the fence, which waits for P's stores. With 12, token by token takes 1.3 %
  /// longer.
  static constexpr int kFence = 20;
  /// Steps that are started before P is announced. The multiplying warpgroups begin their products some 200
  /// clocks later. If P is announced too late, the tensor cores idle after the scores; if too early, the
  /// products delay scores that are waited for. 24 to 27 are equally fast; with 20 and 28, 128 heads took 1.4
  /// and 5 % longer (docs/log/mla_64_roles.md).
  static constexpr int kAnnouncing = 26;

  __device__ __forceinline__ void store(const Softmax& softmax, int place) {
    Statistics& statistics = shared_.statistics[place];
    const int thread = Config::kTurns ? thread_anew() : thread_;
    statistics.shrinks[thread / 32 * 16 + thread % 16] = softmax.shrinks;
    if (softmax.shrinks && fragment_.column == 0) {
      statistics.factors[fragment_.row] = softmax.factor.low;
      statistics.factors[fragment_.row + 8] = softmax.factor.high;
    }
    store_probabilities(softmax.p, place);
  }

  __device__ __forceinline__ void store_probabilities(const std::uint32_t (&p)[kScores / 8][4], int place) {
    std::uint32_t at = p_address_;
    asm volatile("" : "+r"(at));  // without this each of the four addresses gets a register, and they spill
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kScores / 8; ++k) ptx::store_matrices(at ^ (place * 64 + k * 32), p[k]);
  }

  /// Writes the rows' statistics at a segment's end.
  __device__ __forceinline__ void say_sums(Statistics& statistics) {
    const sm90::RowPair sum{sm90::quad_sum(sum_.low), sm90::quad_sum(sum_.high)};
    if (fragment_.column == 0) {
      statistics.bases[fragment_.row] = base_.low;
      statistics.bases[fragment_.row + 8] = base_.high;
      statistics.sums[fragment_.row] = sum.low;
      statistics.sums[fragment_.row + 8] = sum.high;
    }
    statistics.poisoned = shared_.poisoned;  // all threads write the same value
  }

  __device__ __forceinline__ void say_maxima(int place) {
    Maxima& maxima = shared_.maxima;
    const float low = sm90::quad_max(maxima.low[thread_].get());
    const float high = sm90::quad_max(maxima.high[thread_].get());
    if (fragment_.column == 0) {
      maxima.of_row[place][fragment_.row] = low;
      maxima.of_row[place][fragment_.row + 8] = high;
    }
  }

  __device__ __forceinline__ TokenPrefix seen(const sm90::Work& work, int row) const {
    return work.tile.seen_in_context(args_, work.segment.length, row);
  }

  /// Sets dead tokens' scores to -inf, and silences these tokens in V.
  __device__ __forceinline__ void mask(const sm90::Work& work) {
    const std::uint32_t live = live_;
    if constexpr (Config::kTurns) {
      // Every row sees all tokens of its query token; those past the last one are dead.
      if (live == ~0U) return;
      constexpr TokenPrefix kAll{kStageTokens};
      sm90::mask_scores(s_, live, kAll, kAll, fragment_);
      silence_dead(shared_, live, last_scored());
      return;
    }
    if (live == ~0U && to_limit_ >= kStageTokens) return;
    const auto partial = static_cast<std::uint32_t>(sm90::partial_tokens(live, {to_limit_}));
    const int start_token = seen(work, 0).end - to_limit_;
    sm90::mask_scores(s_, live, seen(work, fragment_.row).from(start_token),
                      seen(work, fragment_.row + 8).from(start_token), fragment_);
    silence(shared_, args_, work, live, partial, last_scored(), start_token);
  }
  /// The stage that was scored last.
  __device__ __forceinline__ int last_scored() const {
    return scored_ == 0 ? Config::kStages - 1 : scored_ - 1;
  }

  /// Silences tokens of a stage in V. Not inline: the loop has no registers to spare for it.
  __device__ __noinline__ static void silence(Shared& shared, const sm90::DecodeArguments& args,
                                              const sm90::Work& work, std::uint32_t live,
                                              std::uint32_t partial, int stage, int start_token) {
    const int thread = threadIdx.x % 128;
    StageTile* tiles = shared.kv[stage].tiles;
    if (partial != 0) {
      const int first_to_see_start =
          Visibility::first_to_see(work.segment.length, work.tile.tokens, start_token);
      const bool found = sm90::record_poison<Element, Config::kVDim, 128>(
          shared.poisoned_rows, tiles, partial, thread,
          [&](int token) { return work.tile.rows_from(args.query, token + first_to_see_start); });
      if (found) shared.poisoned = 1;
      ptx::named_sync(kScorerBarrier, 128);
    }
    silence_tokens(tiles, live, partial, thread);
  }
  /// The same for tokens that no row attends to.
  __device__ __noinline__ static void silence_dead(Shared& shared, std::uint32_t live, int stage) {
    silence_tokens(shared.kv[stage].tiles, live, 0, threadIdx.x % 128);
  }
  __device__ __forceinline__ static void silence_tokens(StageTile* tiles, std::uint32_t live,
                                                        std::uint32_t partial, int thread) {
    // tokens that a stage does not have; they count as live
    constexpr std::uint64_t kOthers = ~0ULL << kStageTokens;
    sm90::silence_tokens<Element, Config::kVChunks, 128>(
        [&](int i, int token) { return tiles[i].bytes + token * sm90::kRowBytes; }, live | kOthers, partial,
        thread);
    ptx::fence_for_async_proxy();
    ptx::named_sync(kScorerBarrier, 128);
  }

  /// Clears `poisoned_rows` after outputs have used it.
  __device__ __forceinline__ void clean_poison(int place) {
    ptx::wait(shared_.p_empty[place], (p_parities_ >> place & 1) ^ 1);
    for (int i = thread_; i < Config::kVDim; i += 128) shared_.poisoned_rows[i].clear();
    ptx::named_sync(kScorerBarrier, 128);  // all have read it
    if (thread_ == 0) shared_.poisoned = 0;
    ptx::named_sync(kScorerBarrier, 128);
  }

  Shared& shared_;
  const sm90::DecodeArguments& args_;
  const ptx::Descriptors<false> descriptors_{&shared_};
  const int thread_;
  const sm90::Fragment fragment_;
  const std::uint32_t p_address_ = sm90::fragment_address(shared_.p, thread_, 0);
  int scored_ = 0;  // the next stage
  std::uint32_t scored_parity_ = 0;
  std::uint32_t p_parities_ = 0;  // of both places of P
  std::uint32_t live_ = 0;        // tokens that count, of the stage scored last
  // tokens that the tile's first row attends to, from the stage's first token on
  int to_limit_ = 0;
  sm90::RowPair base_;   // what is subtracted from scores, base 2
  sm90::RowPair slack_;  // how far a score may be above it
  sm90::RowPair sum_;    // this thread's share
  Scores s_;
  std::uint32_t q_[kRegisterSteps][4];
};

}  // namespace flashlatent::mla_64_roles
