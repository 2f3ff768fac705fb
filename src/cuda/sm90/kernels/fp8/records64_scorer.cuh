// The scoring warpgroup of the 64-row kernel for records: exponents of blocks, and their values.
#pragma once

#include "cuda/sm90/kernels/fp8/records64_smem.cuh"
#include "cuda/sm90/load/query_max.cuh"
#include "cuda/sm90/math/fragment.cuh"

namespace flashlatent::fp8::records64 {

template <class Config>
class Scorer {
  static constexpr int kRows = Config::kRows;

 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args) {}

  /// All blocks of one segment.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    const int blocks = work.blocks();
    ptx::wait(shared_.query_ready, query_parity_);
    query_parity_ ^= 1;
    if (blocks <= 0) return;
    scale_ = args_.scale_log2 * __int_as_float((127 - sm90::query_exponent(shared_.query_max)) << 23);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) score();
  }

 private:
  __device__ __forceinline__ static int thread() { return sm90_thread(); }
  __device__ __forceinline__ static int sm90_thread() {
    int thread = threadIdx.x % 128;
    asm volatile("" : "+r"(thread));  // registers are short
    return thread;
  }

  /// The next block.
  __device__ __forceinline__ void score() {
    const int warp = thread() / 32;
    const Held held = shared_.held[warp][wait_for_stage()];
    if (__any_sync(0xffffffff, sm90::RecordRows::is_e2m1(static_cast<sm90::Record>(held.record)))) {
      multiply<records::Nvfp4Keys>();
    } else {
      multiply<records::Mxfp8Keys<true>>();
    }
    put_exponents(held.live);
    half_ += 2;
  }

  /// Waits for this warp's next stage, and returns its number.
  __device__ __forceinline__ int wait_for_stage() const {
    const int slot = turn_ % Config::kWarpStages;
    ptx::wait(shared_.full[thread() / 32][slot], turn_ / Config::kWarpStages & 1);
    return slot;
  }
  /// The address of this thread's first token in that stage.
  template <class Keys>
  __device__ __forceinline__ std::uint32_t token_in(int slot) const {
    return ptx::shared_address(shared_.stages[thread() / 32][slot]) + thread() % 32 / 4 * Keys::kPitch;
  }
  /// By all lanes, which have read the stage.
  __device__ __forceinline__ void free_stage() {
    ptx::arrive(shared_.empty[thread() / 32][turn_ % Config::kWarpStages]);
    ++turn_;
  }

  /// s_ = K Q^T of a block; K becomes its values.
  template <class Keys>
  __device__ __forceinline__ void multiply() {
    constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;
    constexpr int kHalf = Config::kPartChunks;
    const std::uint64_t q =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0));
    // The second stage is the next one.
    const auto second = [&] {
      const int slot = (turn_ + 1) % Config::kWarpStages;
      ptx::wait(shared_.full[thread() / 32][slot], (turn_ + 1) / Config::kWarpStages & 1);
      return token_in<Keys>(slot);
    };
    Keys keys(token_in<Keys>(turn_ % Config::kWarpStages), thread() % 4, second);
    fp8::Operands a[2];
    keys.load(kHalf);
#pragma unroll
    for (int n = 0; n < Config::kChunks; ++n) {
      const int i = (n + kHalf) % Config::kChunks;  // the last half of the columns comes first
      if (n >= 2) ptx::wgmma_wait<1>();
      keys.widen(a[n % 2], i);
      if constexpr (Keys::kInHalves) {
        if (n == kHalf - 1) {
          keys.go_on(second(), thread() % 4);
          free_stage();
        }
      }
      if (n + 1 < Config::kChunks) keys.load((i + 1) % Config::kChunks);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(s_, a[n % 2], q + i * kTileStep, n > 0);
      ptx::wgmma_commit();
      const std::uint32_t half = half_ + n / kHalf;
      const int place = half % Config::kHalves;
      if (n % kHalf == 0) ptx::wait(shared_.free[place], (half / Config::kHalves & 1) ^ 1);
      sm90::store_fragment(shared_.values[place].chunks[n % kHalf], a[n % 2], thread());
    }
    free_stage();
    units_ = keys.units();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
  }

  /// Hands the block over. `live`: which of the warp's tokens count.
  __device__ __forceinline__ void put_exponents(std::uint32_t live) {
    const float low = scale_ * sm90::power_of_two(units_.low), high = scale_ * sm90::power_of_two(units_.high);
    const float low_log = sm90::log2_of(units_.low), high_log = sm90::log2_of(units_.high);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      s_[i] = i % 4 < 2 ? fmaf(s_[i], low, low_log) : fmaf(s_[i], high, high_log);
    }
    const int lane = thread() % 32, token = thread() / 32 * kWarpTokens + lane / 4;
    if (live != (1U << kWarpTokens) - 1) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        if ((live >> (lane / 4 + i / 2 % 2 * 8) & 1) == 0) s_[i] = -INFINITY;
      }
    }
    ptx::wait(shared_.read, read_parity_ ^ 1);
    read_parity_ ^= 1;
    Exponents& to = shared_.exponents;
    if (lane % 4 == 0) {
      to.share[token] = sm90::power_of_two(254 - units_.low);
      to.share[token + 8] = sm90::power_of_two(254 - units_.high);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane % 4 * 2 + i, flip = Exponents::flip(row);
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        to.of_row[8 * j + row][token ^ flip] = s_[4 * j + i];
        to.of_row[8 * j + row][(token + 8) ^ flip] = s_[4 * j + 2 + i];
      }
    }
    ptx::fence_for_async_proxy();  // values
    ptx::arrive(shared_.scored);
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  std::uint32_t turn_ = 0;  // stages of this warp so far
  std::uint32_t half_ = 0;  // halves of values so far
  std::uint32_t query_parity_ = 0, read_parity_ = 0;
  float scale_ = 0;         // of scores in units, to base 2
  records::Units units_;    // of this thread's tokens
  float s_[kRows / 2];
};

}  // namespace flashlatent::fp8::records64
