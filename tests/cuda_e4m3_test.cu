// The parts of the kernel with e4m3 products alone, on one warpgroup: how bytes lie, and in which order
// tokens meet.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/formats/e4m3_latent.h"
#include "cuda/sm90/kernels/mla_64_e4m3/tiles.cuh"
#include "cuda/sm90/math/tile.cuh"

namespace flashlatent::mla_64_e4m3 {
namespace {

constexpr int kChunks = e4m3_latent::kDim / 64, kRows = 64, kTokens = 64;
constexpr int kColumns = kChunks * 64;

struct Shared {
  alignas(1024) std::uint8_t block[kTokens * kColumns];
  alignas(1024) std::uint8_t rows[kChunks][kRows * 64];
  alignas(1024) std::uint8_t p[kRows * 64];
};

/// S of these rows and tokens, its values rounded to e4m3 as P, and (P V)^T of the first 64 columns times
/// `chunk`.
__global__ void score_and_multiply(const std::uint8_t* rows, const std::uint8_t* tokens, int chunk,
                                   float* s_out, float* o_out) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  for (int i = thread; i < kRows * kColumns / 16; i += 128) {
    const int row = i / (kColumns / 16), unit = i % (kColumns / 16);
    *reinterpret_cast<uint4*>(shared.rows[unit / 4] + tile_offset(row, unit % 4)) =
        reinterpret_cast<const uint4*>(rows)[i];
    *reinterpret_cast<uint4*>(shared.block + block_offset<kChunks>(row, unit / 4, unit % 4)) =
        reinterpret_cast<const uint4*>(tokens)[i];
  }
  ptx::fence_for_async_proxy();
  __syncthreads();
  float s[32];
  const std::uint64_t q = ptx::descriptor_k_major_64<kAtomBytes>(ptx::shared_address(shared.rows));
  const std::uint64_t k = ptx::descriptor_k_major_64<kChunks * kAtomBytes>(ptx::shared_address(shared.block));
  ptx::pin_registers(s);
  ptx::wgmma_fence();
  for (int i = 0; i < 2 * kChunks; ++i) {
    ptx::WgmmaE4m3<64>::ss(s, q + i / 2 * (kRows * 64 / 16) + i % 2 * ptx::kStepOfE4m3,
                           k + i / 2 * (kAtomBytes / 16) + i % 2 * ptx::kStepOfE4m3, i > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(s);
  const sm90::Fragment own = sm90::fragment_of(thread);
  for (int i = 0; i < 32; ++i) {
    s_out[(own.row + i % 4 / 2 * 8) * kTokens + i / 4 * 8 + own.column + i % 2] = s[i];
  }
  for (int h = 0; h < 2; ++h) {
    std::uint32_t words[4];
    for (int u = 0; u < 4; ++u) {
      const float* of = s + 8 * u + 2 * h;
      words[u] = pack_e4m3(of[0], of[1], of[4], of[5]);
    }
    ptx::store_matrices(ptx::shared_address(shared.p) + tile_offset(warp * 16 + 8 * h + lane % 8, lane / 8),
                        words);
  }
  ptx::fence_for_async_proxy();
  __syncthreads();
  ValueOperands a;
  transpose(a, ValueBytes::at<kChunks>(ptx::shared_address(shared.block) +
                                       block_offset<kChunks>(lane, chunk, warp)));
  const std::uint64_t p = ptx::descriptor_k_major_64<kAtomBytes>(ptx::shared_address(shared.p));
  float o[32];
  ptx::pin_registers(o);
  ptx::wgmma_fence();
  ptx::WgmmaE4m3<64>::rs(o, a[0], p, false);
  ptx::WgmmaE4m3<64>::rs(o, a[1], p + ptx::kStepOfE4m3, true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(o);
  for (int i = 0; i < 32; ++i) {
    const int column = warp * 16 + lane / 4 * 2 + i % 4 / 2, row = i / 4 * 8 + own.column + i % 2;
    o_out[row * 64 + column] = o[i];
  }
}

TEST(CudaE4m3, ScoresAndTransposedProduct) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  auto codes = [&] {
    std::vector<std::uint8_t> of(kRows * kColumns);
    for (std::uint8_t& code : of) code = e4m3::encode(normal(random));
    return of;
  };
  const std::vector<std::uint8_t> rows = codes(), tokens = codes();
  std::uint8_t *device_rows, *device_tokens;
  float *device_s, *device_o;
  ASSERT_EQ(cudaMalloc(&device_rows, rows.size()), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_tokens, tokens.size()), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_s, kRows * kTokens * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_o, kRows * 64 * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device_rows, rows.data(), rows.size(), cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device_tokens, tokens.data(), tokens.size(), cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(
      cudaFuncSetAttribute(score_and_multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
      cudaSuccess);
  for (int chunk = 0; chunk < e4m3_latent::kLatentDim / 64; ++chunk) {
    score_and_multiply<<<1, 128, sizeof(Shared)>>>(device_rows, device_tokens, chunk, device_s, device_o);
    std::vector<float> s(kRows * kTokens), o(kRows * 64);
    ASSERT_EQ(cudaMemcpy(s.data(), device_s, s.size() * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(o.data(), device_o, o.size() * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    double s_error = 0, s_norm = 0, o_error = 0, o_norm = 0;
    for (int row = 0; row < kRows; ++row) {
      for (int token = 0; token < kTokens; ++token) {
        double sum = 0;
        for (int d = 0; d < kColumns; ++d) {
          sum += double{e4m3::decode(rows[row * kColumns + d])} * e4m3::decode(tokens[token * kColumns + d]);
        }
        const double error = s[row * kTokens + token] - sum;
        s_error += error * error;
        s_norm += sum * sum;
      }
      for (int column = 0; column < 64; ++column) {
        double sum = 0;
        for (int token = 0; token < kTokens; ++token) {
          sum += double{e4m3::decode(e4m3::encode(s[row * kTokens + token]))} *
                 e4m3::decode(tokens[token * kColumns + chunk * 64 + column]);
        }
        const double error = o[row * 64 + column] - sum;
        o_error += error * error;
        o_norm += sum * sum;
      }
    }
    // The tensor cores' sums of e4m3 keep 13 bits behind the point.
    EXPECT_LT(std::sqrt(s_error / s_norm), 0x1p-10) << "chunk " << chunk;
    EXPECT_LT(std::sqrt(o_error / o_norm), 0x1p-10) << "chunk " << chunk;
  }
  cudaFree(device_rows);
  cudaFree(device_tokens);
  cudaFree(device_s);
  cudaFree(device_o);
}

}  // namespace
}  // namespace flashlatent::mla_64_e4m3
