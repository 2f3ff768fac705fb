// The scoring warpgroup of the 64-row kernel for records: exponents of blocks, and their values.
#pragma once

#include "cuda/sm90/kernels/fp8/records64_smem.cuh"
#include "cuda/sm90/kernels/fp8/records_block.cuh"
#include "cuda/sm90/load/query_max.cuh"

namespace flashlatent::fp8::records64 {

template <class Config>
class Scorer : records::ScoredBlock<SharedMemory<Config>> {
  using Base = records::ScoredBlock<SharedMemory<Config>>;
  using Base::kRows, Base::live_, Base::s_, Base::shared_, Base::thread, Base::units_;

 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Base(shared, 0), args_(args) {}

  /// All blocks of one segment.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    const int blocks = work.blocks();
    ptx::wait(shared_.query_ready, query_parity_);
    query_parity_ ^= 1;
    if (blocks <= 0) return;
    scale_ = args_.scale_log2 * __int_as_float((127 - sm90::query_exponent(shared_.query_max)) << 23);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      Base::score();
      put_exponents();
    }
  }

 private:
  /// Hands the block over.
  __device__ __forceinline__ void put_exponents() {
    this->to_exponents(scale_);
    if (live_ != Base::kAllOfWarp) [[unlikely]]
      this->mask();
    ptx::wait(shared_.read, read_parity_ ^ 1);
    read_parity_ ^= 1;
    Exponents& to = shared_.exponents;
    const int lane = thread() % 32, token = thread() / 32 * kWarpTokens + lane / 4;
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

  const sm90::DecodeArguments& args_;
  std::uint32_t query_parity_ = 0, read_parity_ = 0;
  float scale_ = 0;  // of scores in units, to base 2
};

}  // namespace flashlatent::fp8::records64
