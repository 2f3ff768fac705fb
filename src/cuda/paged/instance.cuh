// What a file of instances includes.
#pragma once

#include "cuda/paged/instances.h"
#include "cuda/paged/kernel.cuh"

namespace flashlatent::paged {

template <class Element, int kDim, int kColumns, bool kFp8, bool kPacked>
constexpr Instance instance(Dtype dtype) {
  using Shape = Config<Element, kDim, kColumns, kFp8, kPacked>;
  return {{dtype, kDim, kColumns, kFp8, kPacked},
          Shape::kWarps,
          Shape::kStepTokens,
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>()};
}

template <class Element, int kDim>
constexpr DimInstances dim_instances(Dtype dtype) {
  static_assert(most_columns(kDim) == 16);
  return {{instance<Element, kDim, 8, false, false>(dtype), instance<Element, kDim, 8, false, true>(dtype),
           instance<Element, kDim, 8, true, false>(dtype), instance<Element, kDim, 8, true, true>(dtype),
           instance<Element, kDim, 16, false, false>(dtype), instance<Element, kDim, 16, false, true>(dtype),
           instance<Element, kDim, 16, true, false>(dtype), instance<Element, kDim, 16, true, true>(dtype)}};
}

template <class Element, int kDim>
constexpr WideInstances wide_instances(Dtype dtype) {
  static_assert(most_columns(kDim) == 8);
  return {{instance<Element, kDim, 8, false, false>(dtype), instance<Element, kDim, 8, false, true>(dtype),
           instance<Element, kDim, 8, true, false>(dtype), instance<Element, kDim, 8, true, true>(dtype)}};
}

}  // namespace flashlatent::paged
