// From accumulators to memory: normalises, applies the sink, writes the output or a partial result.
#pragma once

#include <cuda_runtime.h>

#include "cuda/parts/partial.cuh"
#include "cuda/parts/row_tile.cuh"
#include "cuda/parts/softmax.cuh"

namespace flashlatent::parts {

/// A finished row: the factor for its sums, and its lse (natural).
struct RowScale {
  float factor;
  float lse;
};

/// `max` is in base 2. An empty row gives 0 and -inf. NaN stays NaN.
__device__ __forceinline__ RowScale finish_row(float max, float sum) {
  if (sum == 0.0F) return {0.0F, -INFINITY};
  return {1.0F / sum, (max + log2f(sum)) * kLn2};
}

/// exp(lse) / (exp(lse) + exp(sink)).
__device__ __forceinline__ float sink_factor(float lse, float sink) {
  return lse == -INFINITY ? 0.0F : 1.0F / (1.0F + exp2f((sink - lse) * kLog2E));
}

/// The lse of a row as the call returns it, and its address.
__device__ __forceinline__ float final_lse(float empty_lse, float lse) {
  return lse == -INFINITY ? empty_lse : lse;
}
__device__ __forceinline__ float* lse_place(const OutputArguments& output, const RowTile& tile, int head,
                                            int token) {
  return output.lse + tile.request * output.lse_batch_stride + head * output.lse_head_stride +
         token * output.lse_token_stride;
}
__device__ __forceinline__ void write_lse(const OutputArguments& output, const RowTile& tile, int head,
                                          int token, float lse) {
  *lse_place(output, tile, head, token) = final_lse(output.empty_lse, lse);
}

/// Sparse prefill, where requests are query tokens: writes a row's largest score. `max` is in base 2; if it
/// is no number, lse is none either.
__device__ __forceinline__ void write_max_logit(const MaxLogits& to, const RowTile& tile, int head, float max,
                                                float lse) {
  to.data[tile.request * to.token_stride + head * to.head_stride] = isnan(lse) ? lse : max * kLn2;
}

/// The factor for a row's sums, with the sink.
__device__ __forceinline__ float output_factor(const OutputArguments& output, RowScale scale, int head,
                                               bool live) {
  return output.sink == nullptr || !live ? scale.factor
                                         : scale.factor * sink_factor(scale.lse, __ldg(output.sink + head));
}

/// The address of a row's first element in the output.
template <class Element>
__device__ __forceinline__ Element* output_row(const OutputArguments& output, const RowTile& tile, int head,
                                               int token) {
  return static_cast<Element*>(output.out) + tile.origin * output.batch_stride + token * output.token_stride +
         head * output.head_stride;
}

/// Lanes that are kLane apart exchange words: the lower lane gets both first words, the other both second
/// words.
template <int kLane>
__device__ __forceinline__ void exchange(std::uint32_t& first, std::uint32_t& second) {
  const bool upper = threadIdx.x & kLane;
  const std::uint32_t theirs = __shfl_xor_sync(0xffffffff, upper ? first : second, kLane);
  first = upper ? theirs : first;
  second = upper ? second : theirs;
}

/// Stores words: word k of a quad's lane is two columns, from 8 k + 2 lane on, of a row. Each lane stores 16
/// bytes, 64 consecutive bytes of a row together. Stores of 16 bytes alone would leave half a sector empty,
/// and the cost of a store is the number of places it goes to. Called by all lanes of a warp.
__device__ __forceinline__ void store_words(void* columns, std::uint32_t (&words)[4], bool live,
                                            bool aligned) {
  // Transposes: word k of lane l becomes word l of lane k.
  exchange<1>(words[0], words[1]);
  exchange<1>(words[2], words[3]);
  exchange<2>(words[0], words[2]);
  exchange<2>(words[1], words[3]);
  if (!live) return;
  auto* at = static_cast<std::uint32_t*>(columns) + threadIdx.x % 4 * 4;
  if (aligned) {
    *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) at[k] = words[k];
  }
}

__device__ __forceinline__ bool is_aligned(const void* place) {
  return reinterpret_cast<std::uintptr_t>(place) % 16 == 0;
}

/// Writes this thread's rows of o (columns first_column + 8 j + column + {0, 1}) to the output.
template <class Element, int kCount>
__device__ __forceinline__ void write_output(const float (&o)[kCount], int row, bool high, RowScale scale,
                                             const DecodeArguments& args, const RowTile& tile, int column,
                                             bool writes_lse) {
  static_assert(kCount % 16 == 0);
  const OutputArguments& output = args.output;
  const bool live = row < tile.rows;
  const int token = tile.token(args.query, live ? row : 0);
  const int head = tile.head(args.query, live ? row : 0);
  if (live && writes_lse) write_lse(output, tile, head, token, scale.lse);
  const float factor = output_factor(output, scale, head, live);
  Element* out = output_row<Element>(output, tile, head, token) + column - threadIdx.x % 4 * 2;
  const bool aligned = is_aligned(out);
#pragma unroll
  for (int j = 0; j < kCount / 4; j += 4) {
    std::uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int i = 4 * (j + k) + (high ? 2 : 0);
      words[k] = pack<Element>(o[i] * factor, o[i + 1] * factor);
    }
    store_words(out + 8 * j, words, live, aligned);
  }
}

/// Writes them as a partial result. `row` counts all partial rows: (partial * lanes + lane) * 64 + row.
template <class Stored, int kCount>
__device__ __forceinline__ void write_partial(const float (&o)[kCount], std::int64_t row, bool live,
                                              bool high, RowScale scale, const PartialArguments& partial,
                                              int v_dim, int column, bool writes_lse) {
  static_assert(kCount % 8 == 0);
  if (live && writes_lse) partial.lse[row] = scale.lse;
  if constexpr (std::is_same_v<Stored, __half>) {
    const PackedRow<__nv_bfloat16, kCount> packed(o, high, quad_bound(o, high));
    if (!live) return;
    const int half = column >= v_dim / 2;
    if (threadIdx.x % 4 == 0) partial_unit(partial, row, half) = scale.factor * packed.unit;
    uint4* to = packets_of(partial, row, v_dim, half) + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < packed.kPackets; ++i) to[4 * i] = packed.packets[i];
    return;
  }
  const int lane = threadIdx.x % 4;
  float* out = partial.out + row * v_dim + column - 2 * lane + lane % 2 * 8 + lane / 2 * 4;
#pragma unroll
  for (int j = 0; j < kCount / 4; j += 2) {
    std::uint32_t words[2][2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = 4 * (j + k) + (high ? 2 : 0);
      words[k][0] = __float_as_uint(o[i] * scale.factor);
      words[k][1] = __float_as_uint(o[i + 1] * scale.factor);
    }
    // Lanes 0 and 1 get the first four columns of j and of j + 1; lanes 2 and 3 get the others.
    exchange<1>(words[0][0], words[1][0]);
    exchange<1>(words[0][1], words[1][1]);
    if (live) {
      *reinterpret_cast<uint4*>(out + 8 * j) = make_uint4(words[0][0], words[0][1], words[1][0], words[1][1]);
    }
  }
}

}  // namespace flashlatent::parts
