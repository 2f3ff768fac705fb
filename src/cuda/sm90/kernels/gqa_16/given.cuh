// Queries as the call gives them, and outputs. They have the cache's type; with e4m3 the arguments say
// whether bf16 or fp16. Everything between is fp16 then, so that one kernel serves both.
#pragma once

#include "cuda/sm90/kernels/gqa_16/arguments.h"
#include "cuda/sm90/math/softmax.cuh"

namespace flashlatent::gqa_16 {

using GivenBits = std::uint16_t;  // of an element

/// Two elements of an output, packed.
template <class Config>
__device__ __forceinline__ std::uint32_t pack_given(const Arguments& args, float first, float second) {
  if constexpr (Config::kFp8) {
    return args.given_is_bf16 ? sm90::pack<__nv_bfloat16>(first, second) : sm90::pack<__half>(first, second);
  } else {
    return sm90::pack<typename Config::Product>(first, second);
  }
}

}  // namespace flashlatent::gqa_16
