// Arguments of the public combine(), for the kernels of fp32 (combine.cu) and of 16 bits (combine_halves.cu).
#pragma once

#include <algorithm>
#include <cstdint>

#include "flashlatent/tensor.h"

namespace flashlatent::cuda {

struct CombineArguments {
  const void* partial_out;
  const float* partial_lse;
  const float* sink;
  void* out;
  float* lse;
  std::int64_t partial_out_strides[4];  // part, batch, token, head
  std::int64_t partial_lse_strides[4];  // part, batch, head, token
  std::int64_t out_strides[3];          // batch, token, head
  std::int64_t lse_strides[3];          // batch, head, token
  std::int64_t rows;                    // batch * tokens * heads
  int tokens, heads, v_dim, count;

  CombineArguments(const ConstTensorView& partials, const ConstTensorView& partial_lses,
                   const ConstTensorView& attn_sink, const TensorView& outputs, const TensorView& lses)
      : partial_out(partials.data),
        partial_lse(static_cast<const float*>(partial_lses.data)),
        sink(attn_sink.present() ? static_cast<const float*>(attn_sink.data) : nullptr),
        out(outputs.data),
        lse(static_cast<float*>(lses.data)),
        rows(outputs.shape[0] * outputs.shape[1] * outputs.shape[2]),
        tokens(static_cast<int>(outputs.shape[1])),
        heads(static_cast<int>(outputs.shape[2])),
        v_dim(static_cast<int>(outputs.shape[3])),
        count(static_cast<int>(partials.shape[0])) {
    std::copy_n(partials.strides.begin(), 4, partial_out_strides);
    std::copy_n(partial_lses.strides.begin(), 4, partial_lse_strides);
    std::copy_n(outputs.strides.begin(), 3, out_strides);
    std::copy_n(lses.strides.begin(), 3, lse_strides);
  }
};

}  // namespace flashlatent::cuda
