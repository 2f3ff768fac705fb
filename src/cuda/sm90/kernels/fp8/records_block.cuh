// What a scoring warpgroup does with a block of records, whatever the number of query rows: tokens from
// stages to scores, and to values in tiles.
#pragma once

#include "cuda/sm90/kernels/fp8/record_copies.cuh"
#include "cuda/sm90/kernels/fp8/record_keys.cuh"
#include "cuda/sm90/math/fragment.cuh"

namespace flashlatent::fp8::records {

template <class Shared>
class ScoredBlock {
 protected:
  using Config = typename Shared::Config;
  static constexpr int kRows = Config::kRows;
  static constexpr std::uint32_t kAllOfWarp = (1U << kWarpTokens) - 1;

  /// `scorer`: this warpgroup's number among those that score.
  __device__ __forceinline__ ScoredBlock(Shared& shared, int scorer) : shared_(shared), scorer_(scorer) {}

  /// The thread's number in its warpgroup; made anew at each use, since registers are short.
  __device__ __forceinline__ static int thread() {
    int thread = threadIdx.x % 128;
    asm volatile("" : "+r"(thread));
    __builtin_assume(thread >= 0);  // divisions take three instructions less
    return thread;
  }

  /// s_ = K Q^T of the next block in the stages, which becomes the values of the next slices.
  __device__ __forceinline__ void score() {
    const Held held = shared_.held[scorer_][thread() / 32][wait_for_stage(turn_)];
    live_ = held.live;
    if (__any_sync(0xffffffff, sm90::RecordRows::is_e2m1(static_cast<sm90::Record>(held.record)))) {
      multiply<Nvfp4Keys>();
    } else {
      multiply<Mxfp8Keys<Config::kWholeTokens>>();
    }
    slice_ += Config::kSlices;
  }
  /// Leaves a block to the other scorer.
  __device__ __forceinline__ void pass_block() { slice_ += Config::kSlices; }

  /// Scores become exponents of P times the tokens' units, to base 2. `scale`: of scores in units.
  __device__ __forceinline__ void to_exponents(float scale) {
    const float2 factor =
        make_float2(scale * sm90::power_of_two(units_.low), scale * sm90::power_of_two(units_.high));
    const float2 log = make_float2(sm90::log2_of(units_.low), sm90::log2_of(units_.high));
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      s_[i] = i % 4 < 2 ? fmaf(s_[i], factor.x, log.x) : fmaf(s_[i], factor.y, log.y);
    }
  }
  /// Scores of tokens that do not count become -inf.
  __device__ __forceinline__ void mask() {
    const int row = thread() % 32 / 4;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      if ((live_ >> (row + i / 2 % 2 * 8) & 1) == 0) s_[i] = -INFINITY;
    }
  }

  Shared& shared_;
  const int scorer_;
  std::uint32_t live_ = 0;  // which of the warp's tokens count
  Units units_;             // of this thread's tokens
  float s_[kRows / 2];

 private:
  /// Waits for this warp's stage number `turn`, and returns its place.
  __device__ __forceinline__ int wait_for_stage(std::uint32_t turn) const {
    const int slot = turn % Config::kWarpStages;
    ptx::wait(shared_.full[scorer_][thread() / 32][slot], turn / Config::kWarpStages & 1);
    return slot;
  }
  /// The address of this thread's first token in that stage.
  template <class Keys>
  __device__ __forceinline__ std::uint32_t token_in(int slot) const {
    return ptx::shared_address(shared_.stages[scorer_][thread() / 32][slot]) +
           thread() % 32 / 4 * Keys::kPitch;
  }
  /// By all lanes. Their reads are over when `read`, which depends on them, has been compared with something;
  /// an arrival by itself does not wait for reads. What then happens is a read without a branch.
  __device__ __forceinline__ void free_stage(std::uint32_t read) {
    ptx::Barrier& empty = shared_.empty[scorer_][thread() / 32][turn_ % Config::kWarpStages];
    asm volatile(
        "{\n.reg .pred p;\n.reg .u32 unused;\nsetp.eq.u32 p, %0, 0x9E3779B9;\n"
        "@p ld.volatile.shared.u32 unused, [%1];\n}" ::"r"(read),
        "r"(ptx::shared_address(&empty))
        : "memory");
    ptx::arrive(empty);
    ++turn_;
  }

  std::uint32_t turn_ = 0;   // stages of this warp so far
  std::uint32_t slice_ = 0;  // slices of values so far

 private:
  template <class Keys>
  __device__ __forceinline__ void multiply() {
    constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;
    constexpr int kHalf = Config::kChunks / 2, kSliceChunks = Config::kChunks / Config::kSlices;
    const std::uint64_t q =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0));
    const auto next = [&] { return token_in<Keys>(wait_for_stage(turn_)); };
    // A stage's bytes are read at once, since the stage is filled again only then. Whole tokens are not
    // needed again before the next block, so that the first product need not wait for all reads.
    constexpr bool kFreesLater = Config::kWholeTokens;
    const std::uint32_t token = token_in<Keys>(turn_ % Config::kWarpStages);
    Keys keys(token, thread() % 4);
    keys.read(token, thread() % 4);
    if (!kFreesLater) free_stage(keys.read_so_far());
    keys.settle(thread() % 4, next);
    fp8::Operands a[2];
    std::uint32_t to = 0;  // in the slice that is stored
#pragma unroll
    for (int n = 0; n < Config::kChunks; ++n) {
      const int i = (n + kHalf) % Config::kChunks;  // the last half of the columns comes first
      if (n >= 2) ptx::wgmma_wait<1>();
      keys.widen(a[n % 2], i);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(s_, a[n % 2], q + i * kTileStep, n > 0);
      ptx::wgmma_commit();
      if (kFreesLater && n == 0) free_stage(keys.read_so_far());
      if (n % kSliceChunks == 0) {
        const std::uint32_t slice = slice_ + n / kSliceChunks;
        const int place = slice % Config::kSlicePlaces;
        to = sm90::fragment_address(shared_.values[place].chunks[0], thread(), 0);
        ptx::wait(shared_.free[place], (slice / Config::kSlicePlaces & 1) ^ 1);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::store_matrices((to ^ k * 32) + n % kSliceChunks * static_cast<std::uint32_t>(sizeof(sm90::Tile)),
                            a[n % 2][k]);
      }
      if (Keys::kStages == 2 && n == kHalf - 1) {
        keys.read(next(), thread() % 4);
        free_stage(keys.read_so_far());
      }
    }
    units_ = keys.units();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
  }
};

}  // namespace flashlatent::fp8::records
