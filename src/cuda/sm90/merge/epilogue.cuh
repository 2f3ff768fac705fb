// From accumulators to memory: normalises, applies the sink, writes the output or a partial result.
#pragma once

#include <cuda_runtime.h>

#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/merge/partial.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::sm90 {

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

/// Sparse prefill, where requests are query tokens: writes a row's largest score, if the call wants it. `max`
/// is in base 2; if it is NaN, so is lse.
__device__ __forceinline__ void write_max_logit(const MaxLogits& to, const RowTile& tile, int head, float max,
                                                float lse) {
  if (to.data == nullptr) return;
  to.data[tile.request * to.token_stride + head * to.head_stride] = isnan(lse) ? lse : max * kLn2;
}

/// A head's sink; -inf where there are no sinks.
__device__ __forceinline__ float sink_of(const OutputArguments& output, int head) {
  return output.sink == nullptr ? -INFINITY : __ldg(output.sink + head);
}

/// The factor of a row's sums, including the sink.
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

/// Words k of lanes l of a quad become words l of lane k.
__device__ __forceinline__ void transpose_words(std::uint32_t (&words)[4]) {
  exchange<1>(words[0], words[1]);
  exchange<1>(words[2], words[3]);
  exchange<2>(words[0], words[2]);
  exchange<2>(words[1], words[3]);
}
__device__ __forceinline__ void store_transposed(void* columns, const std::uint32_t (&words)[4],
                                                 bool aligned) {
  auto* at = static_cast<std::uint32_t*>(columns) + threadIdx.x % 4 * 4;
  if (aligned) {
    *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) at[k] = words[k];
  }
}

/// Word k of each lane of a quad is of column 8 k + 2 lane of a row, two columns a word: stores them, 16
/// bytes a lane. All lanes of a warp. 64 bytes of a row go together: with 16 bytes half a sector would be
/// empty, and a store's time depends on the number of its places.
__device__ __forceinline__ void store_words(void* columns, std::uint32_t (&words)[4], bool live,
                                            bool aligned) {
  transpose_words(words);
  if (live) store_transposed(columns, words, aligned);
}

__device__ __forceinline__ bool is_aligned(const void* place) {
  return reinterpret_cast<std::uintptr_t>(place) % 16 == 0;
}

/// This thread's rows of o (columns first_column + 8 j + column + {0, 1}) as the final output. `sink`: the
/// row's head's.
///
/// Lanes exchange the words of several stores before they branch: with a branch around each store a warp
/// waits for one exchange after another, 4,000 clocks for 64 x 256.
template <class Element, int kCount>
__device__ __forceinline__ void write_output(const float (&o)[kCount], int row, bool high, RowScale scale,
                                             float sink, const DecodeArguments& args, const RowTile& tile,
                                             int column, bool writes_lse) {
  static_assert(kCount % 16 == 0);
  constexpr int kStores = kCount / 16, kTogether = kStores % 4 == 0 ? 4 : kStores % 2 == 0 ? 2 : 1;
  const OutputArguments& output = args.output;
  const bool live = row < tile.rows;
  const int token = tile.token(args.query, live ? row : 0);
  const int head = tile.head(args.query, live ? row : 0);
  if (live && writes_lse) write_lse(output, tile, head, token, scale.lse);
  const float factor = output.sink == nullptr ? scale.factor : scale.factor * sink_factor(scale.lse, sink);
  Element* out = output_row<Element>(output, tile, head, token) + column - threadIdx.x % 4 * 2;
  const bool aligned = is_aligned(out);
#pragma unroll
  for (int first = 0; first < kStores; first += kTogether) {
    std::uint32_t words[kTogether][4];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = 16 * (first + n) + 4 * k + (high ? 2 : 0);
        words[n][k] = pack<Element>(o[i] * factor, o[i + 1] * factor);
      }
      transpose_words(words[n]);
    }
    if (!live) continue;
#pragma unroll
    for (int n = 0; n < kTogether; ++n) store_transposed(out + 32 * (first + n), words[n], aligned);
  }
}
template <class Element, int kCount>
__device__ __forceinline__ void write_output(const float (&o)[kCount], int row, bool high, RowScale scale,
                                             const DecodeArguments& args, const RowTile& tile, int column,
                                             bool writes_lse) {
  const float sink = row < tile.rows ? sink_of(args.output, tile.head(args.query, row)) : 0.0F;
  write_output<Element>(o, row, high, scale, sink, args, tile, column, writes_lse);
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

}  // namespace flashlatent::sm90
