// Results from registers to memory. `o` is the transposed fragment: chunk by chunk, dimensions down, query
// rows across (math/tile.cuh).
#pragma once

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::mla_16_transposed {

/// Partial results: rows of v_dim fp32. A warp's store is four rows by 32 bytes.
template <int kRows, int kChunks>
__device__ __forceinline__ void write_partial(const float (&o)[kChunks][kRows / 2], float* out, int live_rows,
                                              sm90::Fragment fragment) {
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

/// Eight rows (j) of the output: 8x8 matrices are transposed in registers, so that a warp's store is eight
/// rows by 16 bytes.
template <class Element>
class OutputRows {
 public:
  __device__ __forceinline__ OutputRows(const sm90::DecodeArguments& args, const sm90::RowTile& tile, int j,
                                        int thread) {
    const sm90::OutputArguments& output = args.output;
    const int n = 8 * j + thread % 32 / 4;
    is_live_ = n < tile.rows;
    out_ = static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
           tile.token(args.query, n) * output.token_stride + tile.head(args.query, n) * output.head_stride +
           thread / 32 * 16 + thread % 4 * 2;
  }

  /// 64 columns; `x` points at the thread's four values among them.
  __device__ __forceinline__ void write(const float* x, int chunk) const {
    Element* const out = is_live_ ? out_ + chunk * 64 : nullptr;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t pair = ptx::transpose_matrix(sm90::pack<Element>(x[2 * half], x[2 * half + 1]));
      if (out != nullptr) *reinterpret_cast<std::uint32_t*>(out + half * 8) = pair;
    }
  }

 private:
  Element* out_;
  bool is_live_;
};

template <class Element, int kRows, int kChunks>
__device__ __forceinline__ void write_output(const float (&o)[kChunks][kRows / 2],
                                             const sm90::DecodeArguments& args, const sm90::RowTile& tile,
                                             int thread) {
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const OutputRows<Element> rows(args, tile, j, thread);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) rows.write(&o[chunk][4 * j], chunk);
  }
}

}  // namespace flashlatent::mla_16_transposed
