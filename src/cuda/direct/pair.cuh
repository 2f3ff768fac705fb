// The warpgroups of a CTA alone: two, an even block's and an odd one's.
//
//   even    S0       P0  O_l += V0^T P0    S2  O_l += V1^T P1    P2  O_l += V2^T P2    S4 ...
//   odd     S1       O_r += V0^T P0    P1  O_r += V1^T P1    S3  O_r += V2^T P2    P3 ...
//
// The base of a softmax (warpgroup.cuh) is seldom moved, and so not looked for: probabilities are made with
// the one that there is, and again if any comes out too large. What that takes is the largest of a thread's
// own, and one vote.
#pragma once

#include "cuda/direct/warpgroup.cuh"

namespace flashlatent::direct {

template <class Config>
class PairedWarpgroup : public Warpgroup<Config> {
 public:
  using Base = Warpgroup<Config>;
  using Base::Base;
  static_assert(Config::kWarpgroups == 2);

  __device__ __forceinline__ void prepare(const parts::RowTile& tile) {
    if (threadIdx.x < kRows) {
      shared_.base[0][threadIdx.x] = -INFINITY;
      shared_.base[1][threadIdx.x] = kNoBase;
    }
    Base::prepare(tile);
  }

  __device__ __forceinline__ void attend(const parts::Work& work) {
    this->work_ = &work;
    const int blocks = work.blocks();
    this->start();
    this->begin_ = work.segment.block_begin * 64;
    sums_ = {};
#pragma unroll 1
    for (int mine = me_;; mine += 2) {
      const bool has_one = mine < blocks;
      if (has_one) this->score(place_.ahead(mine > 0));
#pragma unroll 1
      for (int block = mine - 1; block <= mine; ++block) {  // the other's, and its own
        if (block < 0 || block >= blocks) continue;
        if (block == mine) {
          softmax(block);
        } else {
          take_over();
        }
        this->add_product(block);
        place_.next();
      }
      if (!has_one) break;
    }
    this->finish_products();
    this->sum_ = over_tokens<kRows>(sums_, thread() % 32, [](float a, float b) { return a + b; });
  }

 private:
  static constexpr int kRows = Config::kRows;
  static constexpr int kColumns = kRows / 4;
  static constexpr float kNoBase = -3e38F;  // any finite score exceeds it
  using Columns = etap::ColumnValues<kRows>;
  using Base::live_;
  using Base::me_;
  using Base::place_;
  using Base::s_;
  using Base::shared_;
  using Base::thread;

  /// What a thread has of two tokens, low and high: the exponents of their units.
  struct Units {
    std::uint32_t low, high;
  };

  /// From scores to P in shared memory, times the tokens' units. Nobody reads what is overwritten: the other
  /// warpgroup, whose P of the block before is there, has used this one's P before that.
  __device__ __forceinline__ void softmax(int block) {
    const int start = this->begin_ + block * 64;
    const std::uint32_t token =
        this->block_address(place_.slot()) + this->fragment().row * fp8_656::kTokenBytes;
    const Units units = {unit_exponent(token), unit_exponent(token + 8 * fp8_656::kTokenBytes)};
    if (live_ != parts::kAllLive || this->partial_tokens(live_, start) != 0) [[unlikely]] {
      etap::mask_columns<kRows>(s_, live_, this->fragment(), [&](int n) { return this->limit(n) - start; });
    }
    this->store_ratios(token, units.low, this->fragment().row);
    this->store_ratios(token + 8 * fp8_656::kTokenBytes, units.high, this->fragment().row + 8);
    if (thread() == 0) shared_.shrinks[me_] = 0;
    Columns sums;
    const bool exceeds = take_exponentials(units, sums);
    if (ptx::named_any(kAlone + me_, 128, exceeds)) [[unlikely]]
      rebase(units, sums);
    this->finish_products();  // with the other's P: it may make its next one
    ptx::arrive(shared_.has_p[me_]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums_[i] += sums[i];
  }

  /// The other's P is there: what is summed so far shrinks to its base.
  __device__ __forceinline__ void take_over() {
    const int other = me_ ^ 1;
    ptx::wait(shared_.has_p[other], this->parity_of(other));
    this->parities_ ^= 1U << other;
    if (this->shrinks(other)) [[unlikely]]
      shrink_sums(other);
  }
  __device__ __forceinline__ void shrink_sums(int b) {
    const Columns factor = this->columns_of(shared_.factor[b]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums_[i] *= factor[i];
  }

  /// P, relative to the bases that there are, and the sums of this thread's columns. Is any larger than it
  /// may be?
  __device__ __forceinline__ bool take_exponentials(Units units, Columns& sums) const {
    constexpr int kLargest = 9;
    static_assert(Config::kLargestP == 1 << kLargest);
    const float low_unit = log2_of(units.low) + kLargest, high_unit = log2_of(units.high) + kLargest;
    const float low_share = power_of_two(254 - kLargest - units.low),
                high_share = power_of_two(254 - kLargest - units.high);
    const Columns base = this->columns_of(shared_.base[1]);
    float p[kRows / 2];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      p[at] = parts::exp2_fast(s_[at] + (low_unit - base[i]));
      p[at + 2] = parts::exp2_fast(s_[at + 2] + (high_unit - base[i]));
      sums[i] = fmaf(p[at], low_share, p[at + 2] * high_share);
      largest = fmaxf(largest, fmaxf(p[at], p[at + 2]));
    }
    etap::store_probabilities<__half, kRows>(ptx::shared_address(shared_.p[me_]), p, thread());
    ptx::fence_for_async_proxy();
    return largest > Config::kLargestP * (1 << static_cast<int>(Config::kSlack));
  }

  /// Larger bases, and P again.
  __device__ __forceinline__ void rebase(Units units, Columns& sums) {
    Columns max;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      max[i] = fmaxf(s_[at] + log2_of(units.low), s_[at + 2] + log2_of(units.high));
    }
    this->put(shared_.warp_max[me_][thread() / 32],
              over_tokens<kRows>(max, thread() % 32, [](float a, float b) { return fmaxf(a, b); }));
    this->meet_alone();
    if (thread() < kRows) settle_base(thread());
    this->meet_alone();
    if (this->shrinks(me_)) shrink_sums(me_);
    take_exponentials(units, sums);
    this->meet_alone();
  }

  /// Row n's.
  __device__ __forceinline__ void settle_base(int n) {
    const float before = shared_.base[0][n];
    const float base = parts::settle_base(before, this->block_max(n), Config::kSlack);
    const float factor = before == -INFINITY ? 1.0F : parts::exp2_fast(before - base);
    if (factor != 1.0F && n < this->tile().rows) shared_.shrinks[me_] = 1;
    shared_.base[0][n] = base;
    shared_.base[1][n] = base == -INFINITY ? kNoBase : parts::finite_or_zero(base);
    shared_.factor[me_][n] = factor;
  }

  Columns sums_;  // of this thread's tokens
};

}  // namespace flashlatent::direct
