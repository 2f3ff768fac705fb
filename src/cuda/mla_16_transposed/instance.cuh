// What a file of instances includes.
#pragma once

#include "cuda/mla_16_transposed/instances.h"
#include "cuda/mla_16_transposed/kernel.cuh"

namespace flashlatent::mla_16_transposed {

template <class Element, int kQkDim, int kVDim, int kRows, class Loader, Told kTold = Told::kByPlan>
constexpr cuda::DenseInstance instance(Dtype dtype, cuda::Loading loading) {
  using Shape = Config<Element, kQkDim, kVDim, kRows, Loader, kTold>;
  return {{dtype, kQkDim, kVDim, kRows, loading, 1, 1, Shape::kTurns},
          cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>()};
}

}  // namespace flashlatent::mla_16_transposed
