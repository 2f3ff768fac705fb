// The parts of the CUDA kernels alone, on one warpgroup: layouts and formulas, not speed.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/element.h"
#include "core/formats/fp8_584.h"
#include "cuda/sm90/kernels/fp8/units_584.cuh"
#include "cuda/sm90/load/fp8_tokens.cuh"
#include "cuda/sm90/math/fragment.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/pv_mma.cuh"
#include "cuda/sm90/math/qk_mma.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/merge/row_store.cuh"
#include "flashlatent/backend.h"

namespace flashlatent::sm90 {
namespace {

template <class Element>
Element from_float(float x);
template <>
__nv_bfloat16 from_float(float x) {
  return __float2bfloat16(x);
}
template <>
__half from_float(float x) {
  return __float2half(x);
}
float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
float to_float(__half x) {
  return __half2float(x);
}

/// Device memory of a test, freed with it.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> copy(size_);
    EXPECT_EQ(cudaMemcpy(copy.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return copy;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

/// A row-major (64, 64 * kTiles) matrix into swizzled tiles.
template <class Element, int kTiles>
__device__ void fill_tiles(Tile* tiles, const Element* matrix) {
  for (int i = threadIdx.x; i < kTileRows * kTiles * 8; i += blockDim.x) {
    const int row = i / (kTiles * 8);
    const int unit = i % (kTiles * 8);
    *reinterpret_cast<uint4*>(tiles[unit / 8].bytes + unit_offset(row, unit % 8)) =
        reinterpret_cast<const uint4*>(matrix)[i];
  }
  ptx::fence_for_async_proxy();
  __syncthreads();
}

template <int kColumns>
__device__ void store_accumulators(float* result, const float (&d)[kColumns / 2]) {
  const Fragment fragment = fragment_of(threadIdx.x);
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = fragment.row + (i & 2) * 4;
    result[row * kColumns + i / 4 * 8 + fragment.column + (i & 1)] = d[i];
  }
}

template <class Element>
__global__ void qk_kernel(const Element* q, const Element* k, float* s) {
  __shared__ Tile tiles[2];
  fill_tiles<Element, 1>(&tiles[0], q);
  fill_tiles<Element, 1>(&tiles[1], k);
  float d[32] = {};
  ptx::wgmma_fence();
  qk_chunk<Element>(d, ptx::Descriptors<false>(tiles), tiles[0], tiles[1], false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(d);
  store_accumulators<64>(s, d);
}

/// O = P V with P from a tile (mode 0) or from scores (mode 1).
template <class Element, int kColumns>
__global__ void pv_kernel(const Element* p, const Element* v, float* o, int mode) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  Tile* tiles = reinterpret_cast<Tile*>(bytes);
  fill_tiles<Element, 1>(&tiles[0], p);
  fill_tiles<Element, kColumns / 64>(&tiles[1], v);
  float d[kColumns / 2] = {};
  float s[32];
  const Fragment fragment = fragment_of(threadIdx.x);
  for (int i = 0; i < 32; ++i) {
    const int row = fragment.row + (i & 2) * 4;
    s[i] = static_cast<float>(p[row * 64 + i / 4 * 8 + fragment.column + (i & 1)]);
  }
  std::uint32_t packed[4][4];
  if (mode == 0) {
    load_fragment(packed, tiles[0], threadIdx.x);
  } else {
    pack_probabilities<Element>(packed, s);
  }
  ptx::pin_registers(d);
  ptx::wgmma_fence();
  pv<Element, kColumns>(d, packed, ptx::Descriptors<true>(tiles), &tiles[1]);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(d);
  store_accumulators<kColumns>(o, d);
}

/// Masked softmax of a 64 x 64 block; statistics are (row, {max, sum}).
__global__ void softmax_kernel(const float* scores, float scale, std::uint64_t live, int limit, float* p,
                               float* statistics) {
  const Fragment fragment = fragment_of(threadIdx.x);
  float s[32];
  for (int i = 0; i < 32; ++i) {
    const int row = fragment.row + (i & 2) * 4;
    s[i] = scores[row * 64 + i / 4 * 8 + fragment.column + (i & 1)];
  }
  // Row r attends to `limit` + r tokens.
  mask_scores(s, live, TokenPrefix{limit + fragment.row}, TokenPrefix{limit + fragment.row + 8}, fragment);
  const RowPair max = row_base(s, scale, {-INFINITY, -INFINITY}, {0, 0});
  RowPair sum = exponentials(s, scale, max);
  sum = {quad_sum(sum.low), quad_sum(sum.high)};
  store_accumulators<64>(p, s);
  if (fragment.column == 0) {
    statistics[2 * fragment.row] = max.low;
    statistics[2 * fragment.row + 1] = sum.low;
    statistics[2 * fragment.row + 16] = max.high;
    statistics[2 * fragment.row + 17] = sum.high;
  }
}

template <class Element>
__global__ void silence_kernel(const Element* v, std::uint64_t live, std::uint64_t partial, Element* result) {
  __shared__ Tile tile;
  fill_tiles<Element, 1>(&tile, v);
  silence_tokens<Element, 1, 128>([&](int, int token) { return tile.bytes + token * kRowBytes; }, live,
                                  partial, threadIdx.x);
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * 8; i += blockDim.x) {
    reinterpret_cast<uint4*>(result)[i] =
        *reinterpret_cast<const uint4*>(tile.bytes + unit_offset(i / 8, i % 8));
  }
}

/// What a row's values are multiplied by on their way to memory.
__host__ __device__ float row_factor(int row) {
  return row % 3 == 0 ? 0.5F : 1.0F + row % 3;
}

/// Row r of o goes to places[r] of `out`, or nowhere if that is negative.
template <class Element, int kColumns>
__global__ void row_store_kernel(const float* o, const int* places, Element* out) {
  __shared__ Tile room;
  const Fragment fragment = fragment_of(threadIdx.x);
  float d[kColumns / 2];
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = fragment.row + (i & 2) * 4;
    d[i] = o[row * kColumns + i / 4 * 8 + fragment.column + (i & 1)];
  }
  const float factor = of_lane({row_factor(fragment.row), row_factor(fragment.row + 8)});
  const int place = places[row_of_lane()];
  store_rows<Element>(d, factor, place < 0 ? nullptr : reinterpret_cast<std::uint8_t*>(out + place), room);
}

template <class Element>
class CudaParts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
  }

  std::vector<Element> random(int count) {
    std::normal_distribution<float> normal;
    std::vector<Element> values(count);
    for (Element& x : values) x = from_float<Element>(normal(engine_));
    return values;
  }

  std::mt19937 engine_{7};
};
using Elements = ::testing::Types<__nv_bfloat16, __half>;
TYPED_TEST_SUITE(CudaParts, Elements);

// Products of 16-bit numbers are exact in fp32; 64 of them are added in fp32 in some order.
constexpr double kSumError = 64 * 6e-8 * 64;

TYPED_TEST(CudaParts, ScoresOfOneChunk) {
  const auto q = this->random(64 * 64);
  const auto k = this->random(64 * 64);
  DeviceArray<TypeParam> q_device(q), k_device(k);
  DeviceArray<float> s_device(std::vector<float>(64 * 64, NAN));
  qk_kernel<<<1, 128>>>(q_device.data(), k_device.data(), s_device.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto s = s_device.host();
  for (int row = 0; row < 64; ++row) {
    for (int token = 0; token < 64; ++token) {
      double expected = 0;
      for (int i = 0; i < 64; ++i) expected += 1.0 * to_float(q[row * 64 + i]) * to_float(k[token * 64 + i]);
      ASSERT_NEAR(s[row * 64 + token], expected, kSumError) << "row " << row << " token " << token;
    }
  }
}

TYPED_TEST(CudaParts, OutputFromSharedAndRegisterProbabilities) {
  constexpr int kColumns = 256;
  const auto p = this->random(64 * 64);
  const auto v = this->random(64 * kColumns);
  DeviceArray<TypeParam> p_device(p), v_device(v);
  constexpr int kBytes = sizeof(Tile) * (1 + kColumns / 64);
  auto* kernel = pv_kernel<TypeParam, kColumns>;
  ASSERT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), cudaSuccess);
  for (int mode : {0, 1}) {
    DeviceArray<float> o_device(std::vector<float>(64 * kColumns, NAN));
    kernel<<<1, 128, kBytes>>>(p_device.data(), v_device.data(), o_device.data(), mode);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto o = o_device.host();
    for (int row = 0; row < 64; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        double expected = 0;
        for (int i = 0; i < 64; ++i) {
          expected += 1.0 * to_float(p[row * 64 + i]) * to_float(v[i * kColumns + column]);
        }
        ASSERT_NEAR(o[row * kColumns + column], expected, kSumError)
            << "mode " << mode << " row " << row << " column " << column;
      }
    }
  }
}

TYPED_TEST(CudaParts, SilencedTokens) {
  auto v = this->random(64 * 64);
  const TypeParam nan = from_float<TypeParam>(NAN);
  const TypeParam infinity = from_float<TypeParam>(-INFINITY);
  for (int row : {3, 40, 50}) {
    v[row * 64 + 5] = nan;
    v[row * 64 + 60] = infinity;
  }
  const std::uint64_t live = ~(1ULL << 3), partial = 1ULL << 40;
  DeviceArray<TypeParam> v_device(v), result_device(v);
  silence_kernel<<<1, 128>>>(v_device.data(), live, partial, result_device.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto result = result_device.host();
  for (int i = 0; i < 64 * 64; ++i) {
    const int row = i / 64;
    const float before = to_float(v[i]);
    const float expected = row == 3 || (row == 40 && !std::isfinite(before)) ? 0.0F : before;
    const float after = to_float(result[i]);
    ASSERT_TRUE(after == expected || (std::isnan(after) && std::isnan(expected))) << "row " << row;
  }
}

TYPED_TEST(CudaParts, RowsByWayOfSharedMemory) {
  constexpr int kColumns = 256, kStride = kColumns + 8;
  const auto values = this->random(64 * kColumns);
  std::vector<float> o(values.size());
  for (std::size_t i = 0; i < o.size(); ++i) o[i] = to_float(values[i]);
  std::vector<int> places(64);
  for (int row = 0; row < 64; ++row) places[row] = row * 37 % 64 * kStride;
  for (int row : {0, 5, 40, 63}) places[row] = -1;
  const float nobody = 77;
  DeviceArray<float> o_device(o);
  DeviceArray<int> places_device(places);
  DeviceArray<TypeParam> out_device(std::vector<TypeParam>(64 * kStride, from_float<TypeParam>(nobody)));
  row_store_kernel<TypeParam, kColumns><<<1, 128>>>(o_device.data(), places_device.data(), out_device.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<float> expected(64 * kStride, nobody);
  for (int row = 0; row < 64; ++row) {
    if (places[row] < 0) continue;
    for (int i = 0; i < kColumns; ++i) {
      expected[places[row] + i] = to_float(from_float<TypeParam>(o[row * kColumns + i] * row_factor(row)));
    }
  }
  const auto out = out_device.host();
  for (int i = 0; i < 64 * kStride; ++i) {
    ASSERT_EQ(to_float(out[i]), expected[i]) << "row " << i / kStride << " column " << i % kStride;
  }
}

TEST(CudaSoftmax, MaskMaximumSum) {
  if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
  std::mt19937 engine(11);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> scores(64 * 64);
  for (float& x : scores) x = normal(engine);
  const std::uint64_t live = 0x7FFF'FFFF'FFFF'FFF5ULL;
  const int limit = -1;  // row 0 sees nothing
  const float scale = 0.7F;
  scores[10 * 64 + 3] = NAN;  // token 3 is dead
  DeviceArray<float> s_device(scores), p_device(scores), statistics_device(std::vector<float>(128, NAN));
  softmax_kernel<<<1, 128>>>(s_device.data(), scale, live, limit, p_device.data(), statistics_device.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto p = p_device.host();
  const auto statistics = statistics_device.host();
  for (int row = 0; row < 64; ++row) {
    double max = -INFINITY, sum = 0;
    auto counts = [&](int token) { return (live >> token & 1) && token < limit + row; };
    for (int token = 0; token < 64; ++token) {
      if (counts(token)) max = std::max(max, 1.0 * scores[row * 64 + token] * scale);
    }
    for (int token = 0; token < 64; ++token) {
      const double expected = counts(token) ? std::exp2(1.0 * scores[row * 64 + token] * scale - max) : 0;
      sum += expected;
      // ex2.approx is good to 2^-22; the rounding of the scaled score adds |s| 2^-24.
      ASSERT_NEAR(p[row * 64 + token], expected, 2e-6) << "row " << row << " token " << token;
    }
    if (std::isinf(max)) {
      EXPECT_EQ(statistics[2 * row], -INFINITY);
    } else {
      EXPECT_NEAR(statistics[2 * row], max, 1e-5);
    }
    EXPECT_NEAR(statistics[2 * row + 1], sum, 64 * 2e-6);
  }
}

/// A row whose scores are so large that they are scaled by two operations, or NaN, or all masked, leaves the
/// bits of the other rows as they are.
TEST(CudaSoftmax, ARowsExponentialsAreItsOwn) {
  if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
  constexpr float kScale = 0.37F;
  std::mt19937 engine(9);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> scores(64 * 64);
  for (float& x : scores) x = normal(engine);
  const auto run = [&](const std::vector<float>& s) {
    DeviceArray<float> s_device(s), p_device(std::vector<float>(64 * 64)),
        statistics_device(std::vector<float>(128));
    softmax_kernel<<<1, 128>>>(s_device.data(), kScale, ~0ULL, 64, p_device.data(), statistics_device.data());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return p_device.host();
  };
  const std::vector<float> alone = run(scores);
  for (float other : {3e5F, -3e5F, std::numeric_limits<float>::quiet_NaN(), -INFINITY}) {
    std::vector<float> beside = scores;
    for (int row = 0; row < 64; row += 5) {
      for (int token = 0; token < 64; ++token) beside[row * 64 + token] = other;
    }
    const std::vector<float> p = run(beside);
    for (int row = 0; row < 64; ++row) {
      if (row % 5 == 0) continue;
      EXPECT_EQ(std::memcmp(&p[row * 64], &alone[row * 64], 64 * sizeof(float)), 0)
          << "row " << row << " beside rows of " << other;
    }
  }
}

/// A thread four codes.
__global__ void dequantize_kernel(const std::uint32_t* codes, const float* scales, uint2* values) {
  values[threadIdx.x] = times_fp32(codes[threadIdx.x], scales[blockIdx.x]);
}

TEST(CudaFp8, DequantizesEveryCodeAsTheCpuDoes) {
  if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
  std::vector<std::uint32_t> codes(64);
  for (std::uint32_t i = 0; i < 64; ++i) codes[i] = 0x03020100U + 0x04040404U * i;
  DeviceArray<std::uint32_t> codes_device(codes);
  for (float scale : {1.0F, 0x1p-13F, 0x1p119F, 0x1p-126F, 0.37F, 1e-4F, 3e38F}) {
    DeviceArray<float> scale_device({scale});
    DeviceArray<uint2> values_device(std::vector<uint2>(64));
    dequantize_kernel<<<1, 64>>>(codes_device.data(), scale_device.data(), values_device.data());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto values = values_device.host();
    for (int code = 0; code < 256; ++code) {
      const uint2 four = values[code / 4];
      const auto bits = static_cast<std::uint16_t>((code % 4 < 2 ? four.x : four.y) >> (code % 2 * 16));
      const float expected =
          bf16_to_float(float_to_bf16(fp8_656::decode(static_cast<std::uint8_t>(code)) * scale));
      const float value = bf16_to_float(bits);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << "code " << code << " scale " << scale;
      } else {
        EXPECT_EQ(value, expected) << "code " << code << " scale " << scale;
      }
    }
  }
}

__global__ void as_bf16_kernel(const std::uint32_t* codes, uint2* values) {
  values[threadIdx.x] = as_bf16(codes[threadIdx.x]);
}

TEST(CudaFp8, CodesAloneAreExact) {
  if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
  std::vector<std::uint32_t> codes(64);
  for (std::uint32_t i = 0; i < 64; ++i) codes[i] = 0x03020100U + 0x04040404U * i;
  DeviceArray<std::uint32_t> codes_device(codes);
  DeviceArray<uint2> values_device(std::vector<uint2>(64));
  as_bf16_kernel<<<1, 64>>>(codes_device.data(), values_device.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto values = values_device.host();
  for (int code = 0; code < 256; ++code) {
    const uint2 four = values[code / 4];
    const auto bits = static_cast<std::uint16_t>((code % 4 < 2 ? four.x : four.y) >> (code % 2 * 16));
    const float expected = fp8_656::decode(static_cast<std::uint8_t>(code)), value = bf16_to_float(bits);
    EXPECT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected) << "code " << code;
  }
}

constexpr int kUnitTokens = 16;  // of a warp

/// A warp: its tokens' values in units, as fp16, and the exponents of the units.
__global__ void units_kernel(const std::uint8_t* codes, const std::uint8_t* scales, std::uint16_t* values,
                             std::uint32_t* units) {
  constexpr int kBytes = fp8_584::kNopeDim;
  __shared__ alignas(16) std::uint8_t shared_codes[kUnitTokens * kBytes],
      shared_scales[kUnitTokens * fp8_584::kScaleBytes];
  for (int i = threadIdx.x; i < kUnitTokens * kBytes; i += 32) shared_codes[i] = codes[i];
  for (int i = threadIdx.x; i < kUnitTokens * fp8_584::kScaleBytes; i += 32) shared_scales[i] = scales[i];
  __syncwarp();
  const int row = threadIdx.x / 4, column = threadIdx.x % 4 * 16;
  const auto scales_of = [&](int token) {
    return fp8::UnitScales::at(ptx::shared_address(shared_scales + token * fp8_584::kScaleBytes));
  };
  fp8::UnitScales low = scales_of(row), high = scales_of(row + 8);
  const auto keys = [&](int group) {
    return fp8::KeyBytes::at<kBytes>(
        ptx::shared_address(shared_codes + row * kBytes + group * fp8_584::kGroup + column));
  };
  fp8::Ratios584 ratios;
  if (__any_sync(0xffffffff, low.is_odd() || high.is_odd())) {
    fp8::bound_values<1>(low, high, keys, [](std::uint32_t bound) {
      bound = __vmaxu2(bound, __shfl_xor_sync(0xffffffff, bound, 1));
      return __vmaxu2(bound, __shfl_xor_sync(0xffffffff, bound, 2));
    });
    fp8::find_odd_ratios(ratios, low, high);
  } else {
    fp8::find_ratios(ratios, low, high);
  }
  units[row] = low.unit();
  units[row + 8] = high.unit();
  for (int group = 0; group < fp8_584::kGroups; ++group) {
    const fp8::KeyBytes bytes = keys(group);
    for (int half = 0; half < 2; ++half) {
      const uint4& x = half == 0 ? bytes.low : bytes.high;
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
      const std::uint32_t ratio = __byte_perm(ratios[group], 0, half == 0 ? 0x1010 : 0x3232);
      auto* to = reinterpret_cast<std::uint32_t*>(values + (row + 8 * half) * kBytes +
                                                  group * fp8_584::kGroup + column);
      for (int i = 0; i < 4; ++i) {
        const ptx::HalfPairs pairs = ptx::widen_e4m3(words[i]);
        to[2 * i] = times(pairs.low, ratio);
        to[2 * i + 1] = times(pairs.high, ratio);
      }
    }
  }
}

/// Whatever scales and codes are, a token keeps its digits.
TEST(CudaFp8, UnitsSuitScalesAndCodesOfAnySize) {
  if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
  constexpr int kDim = fp8_584::kNopeDim;
  std::mt19937 engine(1);
  const auto below = [&](int n) { return static_cast<int>(engine() % n); };
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint8_t> codes(kUnitTokens * kDim), scales(kUnitTokens * fp8_584::kScaleBytes, 0xAB);
    for (int token = 0; token < kUnitTokens; ++token) {
      const int kind = (round + token) % 6, odd_group = below(fp8_584::kGroups), same = below(255);
      for (int group = 0; group < fp8_584::kGroups; ++group) {
        const bool odd = group == odd_group;
        int scale = 105 + below(28);
        if (kind == 1 || kind == 5 || (kind == 2 && odd)) scale = below(255);
        if (kind == 3 && odd) scale = std::min(254, scale + below(40));
        if (kind == 4) scale = same;
        scales[token * fp8_584::kScaleBytes + group] = static_cast<std::uint8_t>(scale);
        for (int i = 0; i < fp8_584::kGroup; ++i) {
          int code = below(127) + 128 * below(2);
          if (kind == 5 || (kind == 2 && odd)) code = 0;
          if (kind == 3 && odd) code %= 8;  // subnormal
          codes[token * kDim + group * fp8_584::kGroup + i] = static_cast<std::uint8_t>(code);
        }
      }
    }
    DeviceArray<std::uint8_t> codes_device(codes), scales_device(scales);
    DeviceArray<std::uint16_t> values_device(std::vector<std::uint16_t>(codes.size()));
    DeviceArray<std::uint32_t> units_device(std::vector<std::uint32_t>(kUnitTokens, 0));
    units_kernel<<<1, 32>>>(codes_device.data(), scales_device.data(), values_device.data(),
                            units_device.data());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto values = values_device.host();
    const auto units = units_device.host();
    for (int token = 0; token < kUnitTokens; ++token) {
      double norm2 = 0, error2 = 0;
      for (int i = 0; i < kDim; ++i) {
        const int scale = scales[token * fp8_584::kScaleBytes + i / fp8_584::kGroup];
        const double right = std::ldexp(double{fp8_656::decode(codes[token * kDim + i])}, scale - 127);
        const double is =
            std::ldexp(double{fp16_to_float(values[token * kDim + i])}, static_cast<int>(units[token]) - 127);
        norm2 += right * right;
        error2 += (is - right) * (is - right);
      }
      // A token off by 2^-66 is 0 beside any other.
      EXPECT_LE(std::sqrt(error2), 1e-6 * std::sqrt(norm2) + 0x1p-66)
          << "round " << round << " token " << token;
    }
  }
}

}  // namespace
}  // namespace flashlatent::sm90
