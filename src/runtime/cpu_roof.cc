#include "runtime/cpu_roof.h"

#include <cstddef>
#include <cstdint>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/cpu_roof.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashlatent::runtime::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Enough independent sums to hide a latency of 4 cycles on 2 units; 16 registers hold them and 2 factors.
constexpr int kSums = 12;

/// Does `rounds` times kSums multiply-adds; returns the operations. `sink` keeps the compiler from dropping
/// them.
double multiply_add(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> floats;
  hn::Vec<decltype(floats)> sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = hn::Set(floats, sink[0] + static_cast<float>(i));
  const auto factor = hn::Set(floats, sink[1]);
  const auto term = hn::Set(floats, sink[2]);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (auto& sum : sums) sum = hn::MulAdd(sum, factor, term);
  }
  for (const auto& sum : sums) sink[0] += hn::GetLane(hn::SumOfLanes(floats, sum));
  return 2.0 * kSums * static_cast<double>(hn::Lanes(floats)) * static_cast<double>(rounds);
}

/// Reads `bytes` (a multiple of 1,024) of aligned memory; returns the XOR of all words. Lanes are combined
/// one by one: AVX-512's reduction in GCC 12's header adds them as signed numbers, which may overflow.
std::uint64_t read(const std::uint8_t* memory, std::size_t bytes) {
  const hn::ScalableTag<std::uint64_t> words;
  const std::size_t n = hn::Lanes(words);
  const auto* at = reinterpret_cast<const std::uint64_t*>(memory);
  hn::Vec<decltype(words)> mixes[4];
  for (auto& mix : mixes) mix = hn::Zero(words);
  for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); i += 4 * n) {
    for (std::size_t j = 0; j < 4; ++j) mixes[j] = hn::Xor(mixes[j], hn::Load(words, at + i + j * n));
  }
  HWY_ALIGN std::uint64_t lanes[HWY_MAX_BYTES / sizeof(std::uint64_t)];
  hn::Store(hn::Xor(hn::Xor(mixes[0], mixes[1]), hn::Xor(mixes[2], mixes[3])), words, lanes);
  std::uint64_t mix = 0;
  for (std::size_t i = 0; i < n; ++i) mix ^= lanes[i];
  return mix;
}

}  // namespace flashlatent::runtime::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include "core/message.h"
#include "cpu/parallel.h"
#include "runtime/device_memory.h"

namespace flashlatent::runtime {

HWY_EXPORT(multiply_add);
HWY_EXPORT(read);

namespace {

constexpr int kTries = 7;
constexpr std::int64_t kRounds = 4'000'000;       // some 20 ms
constexpr std::size_t kReadBytes = 256ULL << 20;  // the largest caches are smaller

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double fma_gflops(int threads) {
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    std::vector<double> flops(threads);
    const double begin = seconds();
    cpu::parallel_for(threads, threads, [&](std::int64_t thread) {
      volatile float factors[] = {1.0F, 0.5F, 1.0F};  // unknown to the compiler
      float sink[] = {factors[0], factors[1], factors[2]};
      flops[thread] = HWY_DYNAMIC_DISPATCH(multiply_add)(kRounds, sink);
      factors[0] = sink[0];
    });
    const double end = seconds();
    best = std::max(best, std::accumulate(flops.begin(), flops.end(), 0.0) / (end - begin) * 1e-9);
  }
  return best;
}

double read_gbps(const std::uint8_t* memory, int threads) {
  const std::size_t share = kReadBytes / threads / 1024 * 1024;
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    std::vector<std::uint64_t> mixes(threads);
    const double begin = seconds();
    cpu::parallel_for(threads, threads, [&](std::int64_t thread) {
      mixes[thread] = HWY_DYNAMIC_DISPATCH(read)(memory + thread * share, share);
    });
    const double end = seconds();
    volatile std::uint64_t used =
        std::accumulate(mixes.begin(), mixes.end(), std::uint64_t{0}, std::bit_xor<>());
    static_cast<void>(used);
    best = std::max(best, static_cast<double>(share * threads) / (end - begin) * 1e-9);
  }
  return best;
}

}  // namespace

Result<CpuRoof> measure_cpu_roof(int threads) {
  if (threads < 0) return invalid_argument("threads is ", threads, "; 0 means all");
  CpuRoof roof;
  roof.threads = threads > 0 ? threads : cpu::hardware_threads();
  FLASHLATENT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate({}, kReadBytes));
  // Written, so that each page is mapped, with values that the system cannot merge.
  auto* words = static_cast<std::uint64_t*>(buffer.data());
  for (std::size_t i = 0; i < kReadBytes / sizeof(*words); ++i) words[i] = i * 0x9E3779B97F4A7C15ULL;
  roof.fma_gflops = fma_gflops(roof.threads);
  roof.read_gbps = read_gbps(static_cast<const std::uint8_t*>(buffer.data()), roof.threads);
  return roof;
}

}  // namespace flashlatent::runtime
#endif
