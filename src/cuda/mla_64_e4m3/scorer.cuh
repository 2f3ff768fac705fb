// The warpgroup that scores: S = Q K^T of every block, and P for the two that multiply.
//
// P of a group of blocks is relative to the row's maximum in this group alone, so that it has all of e4m3's
// range, whatever other groups have. Who multiplies adds a group's sums times a factor, which comes with P.
#pragma once

#include "cuda/mla_64_e4m3/query.cuh"
#include "cuda/parts/column_softmax.cuh"

namespace flashlatent::mla_64_e4m3 {

template <class Config>
class Scorer {
 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : shared_(shared), args_(args), query_(shared, args) {}

  /// Takes a segment's Q, when the one before has been scored.
  __device__ __forceinline__ void begin(const parts::Work& work) {
    meet();
    query_.take(work.tile);
    const int thread = threadIdx.x % 128;
    if (thread < Config::kRows) shared_.scored_rows.find(args_, work.tile, thread);
    meet();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Scores of tokens that do not count are -inf times it.
      const float scale = shared_.row_scale[row(h)];
      scale_[h] = scale == 0 ? kLeastScale : scale;
      base_[h] = -INFINITY;
      sum_[h] = 0;
    }
  }

  /// All blocks of a segment, of which there are some.
  __device__ __forceinline__ void attend(const parts::Work& work) {
    int left = work.blocks();
    float s[Config::kScores][32];
    if constexpr (Config::kGroup == 2) {
      while (score_two(work, s[0], s[1], left)) {
      }
    } else {
#pragma unroll 1
      for (; left > 0; --left) score_one(work, s[0], s[1], s[kSpare], left);
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
  __device__ __forceinline__ static parts::Fragment fragment() {
    return parts::fragment_of(threadIdx.x % 128);
  }
  __device__ __forceinline__ static int row(int h) {
    return fragment().row + 8 * h;
  }
  /// Of a tile of few rows not all warps, or not all their rows, have some.
  __device__ __forceinline__ static bool has_rows() {
    return kRows >= 64 || threadIdx.x % 128 / 32 * 16 < kRows;
  }
  static constexpr int kHalves = kRows == 8 ? 1 : 2;  // rows g and g + 8

  /// A group of one block.
  __device__ __forceinline__ void score_one(const parts::Work& work, float (&s)[32], float (&a)[32],
                                            float (&b)[32], int left) {
    ask(s);
    take(s, a, b);
    GroupOfP p;
    if (has_rows()) {
      hide(work, s, left);
      p = finish(s, nullptr);
    }
    send<1>(p, left == 1);
  }

  /// A group of two blocks, or of the last one. The second one's first chain is made while P of the first is.
  /// The next group is not asked for before this one's P is sent: its place may be that of blocks whose
  /// products wait for P.
  __device__ __forceinline__ bool score_two(const parts::Work& work, float (&a)[32], float (&b)[32],
                                            int& left) {
    if (left == 1) {
      score_one(work, a, b, b, left);
      return false;
    }
    ask(a);
    take(a, b, b);
    ask(b);
    hide(work, a, left);
    const FirstBlock first = hold(a);
    take(b, a, a);
    hide(work, b, left - 1);
    send<2>(finish(b, &first), left == 2);
    left -= 2;
    return left > 0;
  }

  /// Asks for the first chain of the block that is next to be scored.
  __device__ __forceinline__ void ask(float (&s)[32]) {
    ptx::wait(shared_.full[slot_.index()], slot_.parity());
    if constexpr (!Config::kBoxes) ptx::fence_for_async_proxy();
    multiply<0>(s, slot_.index());
  }
  /// Asks for a chain of a block's products.
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
  /// The scores of the block at hand, whose place is then given back. `a` and `b` take chains but the first.
  __device__ __forceinline__ void take(float (&s)[32], float (&a)[32], float (&b)[32]) {
    const int slot = slot_.index();
    if constexpr (Config::kChains > 1) {
      multiply<1>(a, slot);
      add_chains<1>(s, a, b, slot);
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);
    live_ = shared_.live[slot];
    ptx::arrive(shared_.empty[slot]);
    slot_.next();
  }
  /// Chains kChain, which is under way to `a`, and on. With kChainsInTurn each is asked for before the one
  /// ahead of it is waited for.
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

  /// Scores that do not count become -inf.
  __device__ __forceinline__ void hide(const parts::Work& work, float (&s)[32], int left) const {
    const int start = (work.segment.block_end - left) * 64;
    const RowsBehind<kRows>& rows = shared_.scored_rows;
    if (live_ != parts::kAllLive || rows.limit(work, 0) - start < 64) [[unlikely]] {
      parts::mask_scores(s, live_, rows.limit(work, row(0)) - start,
                         rows.limit(work, kHalves > 1 ? row(1) : row(0)) - start, fragment());
    }
  }

  /// Of this thread's rows, over the four lanes that share them.
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

  /// What is subtracted from a row's scores, so that its largest P is 2^kLargestP; -inf where no token
  /// counts. Rounded up, or P of huge scores could be larger than e4m3 has room for.
  __device__ __forceinline__ float base_of(float max, int h) const {
    return max == -INFINITY ? max : __fsub_ru(__fmul_ru(max, scale_[h]), kLargest);
  }

  /// A group's first block while the group's maxima are not known yet: P relative to this block's, as fp16.
  struct FirstBlock {
    std::uint32_t p[2][8];
    float base[2], sum[2];
  };
  __device__ __forceinline__ FirstBlock hold(const float (&s)[32]) const {
    FirstBlock first;
    float max[2];
    find_maxima(s, max);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      first.base[h] = base_of(max[h], h);
      const float base = parts::finite_or_zero(first.base[h]);
      first.sum[h] = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float a = parts::exp2_fast(fmaf(s[4 * j + 2 * h], scale_[h], -base));
        const float b = parts::exp2_fast(fmaf(s[4 * j + 2 * h + 1], scale_[h], -base));
        first.sum[h] += a + b;
        first.p[h][j] = parts::pack<__half>(a, b);
      }
    }
    return first;
  }

  /// What goes to a place of P.
  struct GroupOfP {
    std::uint32_t words[Config::kGroup][2][4];  // of this thread's tokens of its rows
    float factor[2], shrink[2] = {1.0F, 1.0F};  // of the group's sums, and of those so far
    bool shrinks = false;                       // does a row of this warp shrink its sums so far?
  };

  /// P of a group, of which `s` are the last block's scores. Both rows side by side, without a branch between
  /// them: one warp a scheduler scores, so that latencies add up.
  __device__ __forceinline__ GroupOfP finish(const float (&s)[32], const FirstBlock* first) {
    GroupOfP p;
    float max[2], base[2];
    find_maxima(s, max);
    bool moves[2] = {};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      base[h] = base_of(max[h], h);
      if (first != nullptr) base[h] = fmaxf(base[h], first->base[h]);
      moves[h] = base[h] != -INFINITY && !(base[h] - base_[h] <= Config::kSlack);
    }
    p.shrinks = __any_sync(0xffffffff, moves[0] || moves[1]);
    if (p.shrinks) [[unlikely]] {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (!moves[h]) continue;
        p.shrink[h] = parts::shrink(base_[h], base[h]);
        sum_[h] *= p.shrink[h];
        base_[h] = base[h];
      }
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      p.factor[h] = base[h] == -INFINITY ? 0.0F : parts::exp2_fast(base[h] - base_[h]);
      base[h] = parts::finite_or_zero(base[h]);
      float sum = 0;
      if (first != nullptr) {
        const float scale = parts::exp2_fast(first->base[h] - base[h]);
        sum = first->sum[h] * scale;
        rescale(first->p[h], scale, p.words[0][h]);
      }
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        float of[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float score = s[4 * (2 * u + i / 2) + 2 * h + i % 2];
          of[i] = parts::exp2_fast(fmaf(score, scale_[h], -base[h]));
        }
        sum += (of[0] + of[1]) + (of[2] + of[3]);
        p.words[first == nullptr ? 0 : 1][h][u] = pack_e4m3(of[0], of[1], of[2], of[3]);
      }
      sum_[h] = fmaf(sum, p.factor[h], sum_[h]);
    }
    return p;
  }
  __device__ __forceinline__ static void rescale(const std::uint32_t (&p)[8], float scale,
                                                 std::uint32_t (&words)[4]) {
    const __half2 by = __float2half2_rn(scale);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      words[u] = pack_e4m3(__hmul2(as_half2(p[2 * u]), by), __hmul2(as_half2(p[2 * u + 1]), by));
    }
  }
  __device__ __forceinline__ static __half2 as_half2(std::uint32_t word) {
    return *reinterpret_cast<const __half2*>(&word);
  }

  /// P of a group of kBlocks to those who multiply. `last`: of the segment.
  template <int kBlocks>
  __device__ __forceinline__ void send(const GroupOfP& p, bool last) {
    const int place = place_.index();
    ptx::wait(shared_.p_free[place], place_.parity() ^ 1);
    if (has_rows()) {
      publish<kBlocks>(place, p, last);
      ptx::fence_for_async_proxy();
    }
    ptx::arrive(shared_.has_p[place]);
    place_.next();
  }

  /// To the place of P, which nobody reads any more.
  template <int kBlocks>
  __device__ __forceinline__ void publish(int place, const GroupOfP& p, bool last) const {
    BlockScales<kRows>& to = shared_.scales[place];
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int n = warp * 16 + 8 * h + lane % 8;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::store_matrices(ptx::shared_address(shared_.p[place][block]) + tile_offset(n, lane / 8),
                            p.words[block][h]);
      }
      if (lane % 4 == 0) {
        to.factor[row(h)] = p.factor[h];
        if (p.shrinks) to.shrink[row(h)] = p.shrink[h];
      }
      if (last) {
        const float sum = parts::quad_sum(sum_[h]);
        if (lane % 4 == 0) {
          to.base[row(h)] = base_[h];
          to.sum[row(h)] = sum;
        }
      }
    }
    if (lane == 0) to.shrinks[warp] = p.shrinks;
  }

  SharedMemory<Config>& shared_;
  const parts::DecodeArguments& args_;
  const Query<Config> query_;
  RingPlace<Config::kSlots> slot_;     // of the block at hand
  RingPlace<Config::kPlaces> place_;   // of its group's P
  std::uint64_t live_ = 0;             // which tokens of the block at hand count
  float scale_[2], base_[2], sum_[2];  // of this thread's rows; sums of its tokens
};

}  // namespace flashlatent::mla_64_e4m3
