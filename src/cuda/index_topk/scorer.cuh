// A warpgroup's half of a tile: the scores of 64 keys for each query token of the group. Keys are rows of
// wgmma's M side and come from registers; heads are columns. The sum over heads stays in a thread, but for
// two steps over the four lanes that share a row.
#pragma once

#include "cuda/index_topk/queries.cuh"
#include "cuda/ptx/maximum.cuh"
#include "cuda/ptx/wgmma_e4m3.cuh"

namespace flashlatent::cuda::indexer {

/// A thread's part of 64 keys: rows r and r + 8 of its warp's 16 (r = lane / 4), for each 32 columns a
/// fragment.
struct Keys {
  std::uint32_t fragments[index_keys::kGroups][4];
};

__device__ __forceinline__ void swap_if(bool condition, std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t x = condition ? b : a, y = condition ? a : b;
  a = x;
  b = y;
}

/// Lane c of row r reads 8 c to 8 c + 7 of each 32 bytes. Rows lie 128 bytes apart, and the half of a warp
/// that is served at a time has four of them: each begins at other 32 bytes, so that all banks are used.
__device__ __forceinline__ void read_fp8(Keys& keys, const std::uint8_t* tile, int row, int lane) {
  const int turn = row & 3;
  uint2 words[2][index_keys::kGroups];
#pragma unroll
  for (int i = 0; i < index_keys::kGroups; ++i) {
    const int offset = (i ^ turn) * 32 + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words[half][i] = *reinterpret_cast<const uint2*>(tile + (row + half * 8) * 128 + offset);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint2(&w)[index_keys::kGroups] = words[half];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      swap_if(turn & 1, w[i].x, w[i + 1].x);
      swap_if(turn & 1, w[i].y, w[i + 1].y);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      swap_if(turn & 2, w[i].x, w[i + 2].x);
      swap_if(turn & 2, w[i].y, w[i + 2].y);
    }
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      keys.fragments[i][half] = w[i].x;
      keys.fragments[i][2 + half] = w[i].y;
    }
  }
}

/// The same of e2m1: four bytes of each 16. Rows lie 64 bytes apart, and a warp is served at once.
__device__ __forceinline__ void read_mxfp4(Keys& keys, const std::uint8_t* tile, int row, int lane) {
  const int turn = row >> 1 & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t w[index_keys::kGroups];
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      w[i] = *reinterpret_cast<const std::uint32_t*>(tile + (row + half * 8) * 64 + (i ^ turn) * 16 +
                                                     lane % 4 * 4);
    }
    swap_if(turn & 1, w[0], w[1]);
    swap_if(turn & 1, w[2], w[3]);
    swap_if(turn & 2, w[0], w[2]);
    swap_if(turn & 2, w[1], w[3]);
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      const Expanded expanded = expand_e2m1(w[i]);
      keys.fragments[i][half] = expanded.low;
      keys.fragments[i][2 + half] = expanded.high;
    }
  }
}

/// relu that keeps NaN.
__device__ __forceinline__ float relu(float x) {
  return ptx::max_with_nan(x, 0);
}

/// Weighted sums over heads of two rows.
struct Totals {
  float first = 0, second = 0;
};

template <int kColumns>
__device__ __forceinline__ void add_heads(Totals& totals, const float (&dots)[kColumns / 2],
                                          const float* weights, int lane) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float2 w = *reinterpret_cast<const float2*>(weights + j * 8 + lane % 4 * 2);
    totals.first = fmaf(w.x, relu(dots[4 * j]), totals.first);
    totals.first = fmaf(w.y, relu(dots[4 * j + 1]), totals.first);
    totals.second = fmaf(w.x, relu(dots[4 * j + 2]), totals.second);
    totals.second = fmaf(w.y, relu(dots[4 * j + 3]), totals.second);
  }
}

/// q . k of one query token and a chunk of heads. `factors`: of the chunk's heads for each 32 columns.
template <int kColumns, IndexFormat kFormat, bool kFp4Query>
__device__ __forceinline__ void multiply(float (&dots)[kColumns / 2], const Keys& keys, std::uint64_t query,
                                         const float (&scales)[2][index_keys::kGroups], const float* factors,
                                         int lane) {
  using Product = ptx::WgmmaE4m3<kColumns>;
  constexpr bool kFactors = kFp4Query || kFormat == IndexFormat::kMxfp4_68;
  if constexpr (!kFactors) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      Product::rs(dots, keys.fragments[i], query + i * ptx::kStepOfE4m3, i > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(dots);
  } else {
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) dots[j] = 0;
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      float part[kColumns / 2];
      ptx::wgmma_fence();
      Product::rs(part, keys.fragments[i], query + i * ptx::kStepOfE4m3, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin_registers(part);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        float2 factor = {1, 1};
        if constexpr (kFp4Query) {
          factor = *reinterpret_cast<const float2*>(factors + i * kColumns + j * 8 + lane % 4 * 2);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float x = part[4 * j + 2 * half], y = part[4 * j + 2 * half + 1];
          if constexpr (kFp4Query) {
            x *= factor.x;
            y *= factor.y;
          }
          if constexpr (kFormat == IndexFormat::kMxfp4_68) {
            dots[4 * j + 2 * half] = fmaf(x, scales[half][i], dots[4 * j + 2 * half]);
            dots[4 * j + 2 * half + 1] = fmaf(y, scales[half][i], dots[4 * j + 2 * half + 1]);
          } else {
            dots[4 * j + 2 * half] += x;
            dots[4 * j + 2 * half + 1] += y;
          }
        }
      }
    }
  }
}

template <int kColumns, IndexFormat kFormat, bool kFp4Query>
__device__ void score_keys(const ScoreArguments& arguments, const Run& run, std::uint8_t* shared,
                           const Layout<index_keys::data_bytes(kFormat), kFp4Query>& layout, Fixed& fixed) {
  constexpr int kBytes = index_keys::data_bytes(kFormat);
  const int thread = threadIdx.x, lane = thread % 32;
  const int row = thread / 32 * 16 + lane / 4;  // of the tile
  const IndexCall& call = arguments.call;
  const Shape& shape = arguments.shape;
  auto* weights = reinterpret_cast<float*>(shared + layout.weights);
  auto* factors = reinterpret_cast<float*>(shared + layout.factors);
  int last_group = -1;
  Walk walk(arguments, run);
  for (int n = 0; !walk.done(); ++n, walk.next()) {
    if (walk.number() != last_group) {
      last_group = walk.number();
      ptx::named_sync(1, kConsumers);
      load_queries<kFp4Query>(arguments, walk.group(), thread, shared, weights, factors, fixed);
      ptx::fence_for_async_proxy();
      ptx::named_sync(1, kConsumers);
    }
    const int stage = n % kStages;
    ptx::wait(fixed.full[stage], n / kStages & 1);
    Keys keys;
    const std::uint8_t* tile = shared + layout.keys + stage * kTile * kBytes;
    if constexpr (kFormat == IndexFormat::kFp8_132) {
      read_fp8(keys, tile, row, lane);
    } else {
      read_mxfp4(keys, tile, row, lane);
    }
    const std::uint32_t scale_words[2] = {fixed.scales[stage][row], fixed.scales[stage][row + 8]};
    const bool exists[2] = {(fixed.exists[stage][row / 32] >> row % 32 & 1) != 0,
                            (fixed.exists[stage][(row + 8) / 32] >> (row + 8) % 32 & 1) != 0};
    __syncwarp();
    if (lane == 0) ptx::arrive(fixed.empty[stage]);
    float scales[2][index_keys::kGroups];
    if constexpr (kFormat == IndexFormat::kMxfp4_68) {
#pragma unroll
      for (int i = 0; i < index_keys::kGroups; ++i) {
        scales[0][i] = ue8m0(scale_words[0] >> 8 * i & 0xFF);
        scales[1][i] = ue8m0(scale_words[1] >> 8 * i & 0xFF);
      }
    }
    const int place = walk.first_place() + row;
    for (int token = 0; token < walk.group().rows; ++token) {
      Totals totals;
      for (int chunk = 0; chunk < shape.head_chunks; ++chunk) {
        const int part = token * shape.head_chunks + chunk;
        float dots[kColumns / 2];
        const std::uint64_t query =
            ptx::descriptor_k_major(ptx::shared_address(shared + part * kColumns * index_keys::kDim));
        multiply<kColumns, kFormat, kFp4Query>(dots, keys, query, scales,
                                               factors + part * kColumns * index_keys::kGroups, lane);
        add_heads<kColumns>(totals, dots, weights + part * kColumns, lane);
      }
#pragma unroll
      for (int step = 1; step <= 2; step *= 2) {
        totals.first += __shfl_xor_sync(0xFFFFFFFF, totals.first, step);
        totals.second += __shfl_xor_sync(0xFFFFFFFF, totals.second, step);
      }
      // Lane 0 of a row's four stores the first row's score, lane 1 the second one's.
      const int mine = lane % 4;
      if (mine < 2) {
        float score = mine == 0 ? totals.first : totals.second;
        if constexpr (kFormat == IndexFormat::kFp8_132)
          score *= __uint_as_float(mine == 0 ? scale_words[0] : scale_words[1]);
        const int own = place + mine * 8;
        const bool seen =
            (mine == 0 ? exists[0] : exists[1]) && (call.candidates > 0 || own < fixed.seen[token]);
        arguments.scores[(walk.group().row + token - arguments.first_row) * arguments.score_stride + own] =
            seen ? sortable(score) : kNoToken;
      }
    }
  }
}

}  // namespace flashlatent::cuda::indexer
