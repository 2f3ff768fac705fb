// Included by the files of instances.
#pragma once

#include "cuda/sm90/kernels/gqa_16/instances.h"
#include "cuda/sm90/kernels/gqa_16/kernel.cuh"

namespace flashlatent::gqa_16 {

template <class Cached, int kDim, int kColumns, bool kPacked>
constexpr Instance instance(CachedType cached) {
  using Shape = Config<Cached, kDim, kColumns, kPacked>;
  return {{cached, kDim, kColumns, kPacked},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>()};
}

template <class Cached>
constexpr Instances instances(CachedType cached) {
  return {{instance<Cached, 64, 8, false>(cached), instance<Cached, 64, 8, true>(cached),
           instance<Cached, 64, 16, false>(cached), instance<Cached, 64, 16, true>(cached),
           instance<Cached, 128, 8, false>(cached), instance<Cached, 128, 8, true>(cached),
           instance<Cached, 128, 16, false>(cached), instance<Cached, 128, 16, true>(cached),
           instance<Cached, 256, 8, false>(cached), instance<Cached, 256, 8, true>(cached)}};
}

}  // namespace flashlatent::gqa_16
