// How a warpgroup's columns of the output are written at a segment's end, if a thread has few rows.
#pragma once

#include "cuda/sm90/kernels/fp8/output_part.cuh"

namespace flashlatent::fp8::few_rows {

template <class Shared, int kBarrier>
class WritingPart : public OutputPart<Shared, kBarrier> {
  using Base = OutputPart<Shared, kBarrier>;
  static constexpr int kColumns = Base::kRows / 4;  // of O^T, a thread's

 protected:
  using Base::Base, Base::fragment, Base::shared_;
  using typename Base::Accumulators, typename Base::Columns, typename Base::Config;

  struct OutputRows {
    __nv_bfloat16* of_column[kColumns];  // null: no such row
  };

  __device__ __forceinline__ OutputRows output_rows() const {
    OutputRows rows;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      rows.of_column[i] = shared_.row_place[i / 2 * 8 + fragment().column + i % 2].out;
    }
    return rows;
  }

  /// The final output.
  __device__ __forceinline__ void write(const Accumulators& o, const Columns& factor,
                                        const OutputRows& rows) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      __nv_bfloat16* out = rows.of_column[i];
      if (out == nullptr) continue;
#pragma unroll
      for (int chunk = 0; chunk < Config::kPartChunks; ++chunk) {
        const float* x = &o[chunk][i / 2 * 4 + i % 2];
        *reinterpret_cast<std::uint32_t*>(out + this->first_column() + chunk * 64) =
            sm90::pack<__nv_bfloat16>(x[0] * factor[i], x[2] * factor[i]);
      }
    }
  }
  /// A partial result of a tile with so many live rows.
  __device__ __forceinline__ void write(const Accumulators& o, const Columns& factor, int live_rows,
                                        float* partial) const {
    partial += fragment().column * Config::kVDim + this->first_column();
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int n = i / 2 * 8 + i % 2;
      if (n + fragment().column >= live_rows) continue;
#pragma unroll
      for (int chunk = 0; chunk < Config::kPartChunks; ++chunk) {
        const float* x = &o[chunk][i / 2 * 4 + i % 2];
        *reinterpret_cast<float2*>(partial + n * Config::kVDim + chunk * 64) =
            make_float2(x[0] * factor[i], x[2] * factor[i]);
      }
    }
  }
};

}  // namespace flashlatent::fp8::few_rows
