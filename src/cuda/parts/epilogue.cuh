// From accumulators to memory: normalise, apply the sink, write the output or a partial result.
#pragma once

#include <cuda_runtime.h>

#include "cuda/parts/arguments.cuh"
#include "cuda/parts/softmax.cuh"

namespace flashlatent::parts {

/// A finished row: what to multiply its sums by, and its lse (natural).
struct RowScale {
  float factor;
  float lse;
};

/// `max` is in base 2. An empty row gives 0 and -inf; NaN stays NaN.
__device__ __forceinline__ RowScale finish_row(float max, float sum) {
  if (sum == 0.0F) return {0.0F, -INFINITY};
  return {1.0F / sum, (max + log2f(sum)) * kLn2};
}

/// exp(lse) / (exp(lse) + exp(sink)).
__device__ __forceinline__ float sink_factor(float lse, float sink) {
  return lse == -INFINITY ? 0.0F : 1.0F / (1.0F + exp2f((sink - lse) * kLog2E));
}

/// The final lse of a row, and its place.
__device__ __forceinline__ float final_lse(const OutputArguments& output, float lse) {
  return lse == -INFINITY ? output.empty_lse : lse;
}
__device__ __forceinline__ float* lse_place(const OutputArguments& output, const RowTile& tile, int head,
                                            int token) {
  return output.lse + tile.request * output.lse_batch_stride + head * output.lse_head_stride +
         token * output.lse_token_stride;
}
__device__ __forceinline__ void write_lse(const OutputArguments& output, const RowTile& tile, int head,
                                          int token, float lse) {
  *lse_place(output, tile, head, token) = final_lse(output, lse);
}

/// This thread's rows of o (columns first_column + 8 j + column + {0, 1}) as the final output.
template <class Element, int kCount>
__device__ __forceinline__ void write_output(const float (&o)[kCount], int row, bool high, RowScale scale,
                                             const DecodeArguments& args, const RowTile& tile, int column,
                                             bool writes_lse) {
  if (row >= tile.rows) return;
  const OutputArguments& output = args.output;
  const int token = tile.token(args.query, row);
  const int head = tile.head(args.query, row);
  if (writes_lse) write_lse(output, tile, head, token, scale.lse);
  const float factor = output.sink == nullptr
                           ? scale.factor
                           : scale.factor * sink_factor(scale.lse, __ldg(output.sink + head));
  Element* out = static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                 token * output.token_stride + head * output.head_stride + column;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const int i = 4 * j + (high ? 2 : 0);
    *reinterpret_cast<std::uint32_t*>(out + 8 * j) = pack<Element>(o[i] * factor, o[i + 1] * factor);
  }
}

/// The same as a partial result. `row` counts in all rows of the slots: (slot * lanes + lane) * 64 + row.
template <int kCount>
__device__ __forceinline__ void write_partial(const float (&o)[kCount], std::int64_t row, bool high,
                                              RowScale scale, const PartialArguments& partial, int v_dim,
                                              int column, bool writes_lse) {
  if (writes_lse) partial.lse[row] = scale.lse;
  float* out = partial.out + row * v_dim + column;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const int i = 4 * j + (high ? 2 : 0);
    *reinterpret_cast<float2*>(out + 8 * j) = make_float2(o[i] * scale.factor, o[i + 1] * scale.factor);
  }
}

}  // namespace flashlatent::parts
