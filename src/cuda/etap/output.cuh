// Results from registers to memory. `o` is the transposed fragment: chunk by chunk, dimensions down, query
// rows across (parts/tile.cuh).
#pragma once

#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/tile.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::etap {

/// Partial results: rows of kChunks * 64 fp32. A warp's store is four rows by 32 bytes.
template <int kRows, int kChunks>
__device__ __forceinline__ void write_partial(const float (&o)[kChunks][kRows / 2], float* out, int live_rows,
                                              parts::Fragment fragment) {
  out += fragment.column * kChunks * 64 + fragment.row;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = 8 * j + i;
      if (n + fragment.column >= live_rows) continue;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          out[(n * kChunks + chunk) * 64 + half * 8] = o[chunk][4 * j + 2 * half + i];
        }
      }
    }
  }
}

/// The output: 8x8 matrices are turned in registers, so that a warp's store is eight rows by 16 bytes.
template <class Element, int kRows, int kChunks>
__device__ __forceinline__ void write_output(const float (&o)[kChunks][kRows / 2],
                                             const parts::DecodeArguments& args, const parts::RowTile& tile,
                                             int thread) {
  const parts::OutputArguments& output = args.output;
  const int dim = thread / 32 * 16 + thread % 4 * 2;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const int n = 8 * j + thread % 32 / 4;
    Element* out = static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                   tile.token(args.query, n) * output.token_stride +
                   tile.head(args.query, n) * output.head_stride + dim;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* x = &o[chunk][4 * j + 2 * half];
        const std::uint32_t pair = ptx::transpose_matrix(parts::pack<Element>(x[0], x[1]));
        if (n < tile.rows) *reinterpret_cast<std::uint32_t*>(out + chunk * 64 + half * 8) = pair;
      }
    }
  }
}

}  // namespace flashlatent::etap
