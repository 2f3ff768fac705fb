// Writes a thread's share of two rows to the output, or as a partial result.
#pragma once

#include "cuda/sm90/kernels/gqa_128/config.h"
#include "cuda/sm90/kernels/gqa_128/jobs.cuh"
#include "cuda/sm90/math/fragment.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/merge/epilogue.cuh"

namespace flashlatent::gqa_128 {

template <class Config>
class Output {
 public:
  using Element = typename Config::Element;
  static constexpr int kOutputs = Config::kDim / 2;  // of a thread, both rows

  __device__ __forceinline__ Output(const Arguments& args, const Job& job, const sm90::Fragment& fragment)
      : args_(args), job_(job), fragment_(fragment) {}

  /// Writes a row of the tile: the thread's first (`half` 0) or second row. Called by all lanes of a warp.
  __device__ __forceinline__ void write(const float (&o)[kOutputs], int row, int half,
                                        sm90::RowScale scale) const {
    if (Config::kShared || (Config::kSegments && job_.partial_row >= 0)) {
      if (row < job_.tile.rows) write_partial(o, row, half, scale);
    } else if constexpr (!Config::kShared) {
      write_output(o, row, half, scale);
    }
  }

 private:
  /// What a row's sums are multiplied by; includes the scale of e4m3 values.
  __device__ __forceinline__ float factor_of(const sm90::RowScale& scale) const {
    if constexpr (!Config::kE4m3) return scale.factor;
    return scale.factor * scale_of_head(args_.value_scale, job_.tile.kv_head);
  }

  __device__ __forceinline__ void write_partial(const float (&o)[kOutputs], int row, int half,
                                                sm90::RowScale scale) const {
    const std::int64_t partial = job_.partial_row + row;
    if (fragment_.column == 0) args_.partial.lse[partial] = scale.lse;
    const float factor = factor_of(scale);
    float* out = args_.partial.out + partial * args_.dim + fragment_.column;
#pragma unroll
    for (int j = 0; j < kOutputs / 4; ++j) {
      const int i = 4 * j + 2 * half;
      if (8 * j < args_.dim) {
        *reinterpret_cast<float2*>(out + 8 * j) = make_float2(o[i] * factor, o[i + 1] * factor);
      }
    }
  }

  /// Called by all lanes: the four lanes of a row exchange elements, so that each stores 16 bytes.
  __device__ __forceinline__ void write_output(const float (&o)[kOutputs], int row, int half,
                                               sm90::RowScale scale) const {
    const bool live = row < job_.tile.rows;
    const RowPlace place = place_of<Config::kShared>(args_, job_, live ? row : 0);
    const sm90::OutputArguments& to = args_.decode.output;
    if (live && fragment_.column == 0) {
      sm90::write_lse(to, job_.tile, place.head, place.token, scale.lse);
    }
    float factor = factor_of(scale);
    if (to.sink != nullptr) factor *= sm90::sink_factor(scale.lse, __ldg(to.sink + place.head));
    Element* out = static_cast<Element*>(to.out) + place.origin * to.batch_stride +
                   place.token * to.token_stride + place.head * to.head_stride;
#pragma unroll
    for (int first = 0; first < kOutputs / 4; first += 4) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 4 * (first + j) + 2 * half;
        pairs[j] = sm90::pack<Element>(o[i] * factor, o[i + 1] * factor);
      }
      if (args_.wide_output) {
        transpose(pairs);
        const int column = 8 * first + 4 * fragment_.column;
        if (live && column < args_.dim) {
          *reinterpret_cast<uint4*>(out + column) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = 8 * (first + j);
        if (live && column < args_.dim) {
          *reinterpret_cast<std::uint32_t*>(out + column + fragment_.column) = pairs[j];
        }
      }
    }
  }

  /// Lane i of four gets the others' pairs[i].
  __device__ __forceinline__ void transpose(std::uint32_t (&pairs)[4]) const {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      const bool upper = fragment_.column / 2 & step;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i & step) continue;
        const std::uint32_t other = __shfl_xor_sync(0xffffffff, upper ? pairs[i] : pairs[i + step], step);
        if (upper) {
          pairs[i] = other;
        } else {
          pairs[i + step] = other;
        }
      }
    }
  }

  const Arguments& args_;
  const Job& job_;
  const sm90::Fragment fragment_;
};

}  // namespace flashlatent::gqa_128
