// What a file of instances includes.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/paged/instances.h"
#include "cuda/paged/kernel.cuh"

namespace flashlatent::paged {

template <class Config>
Status launch_instance(const Arguments& args, const Executor& executor) {
  return cuda::launch_ctas<kernel<Config>, Config, SharedMemory<Config>>(
      args.decode.geometry.parts * (args.decode.geometry.lanes / args.tiles_a_cta) * args.team, args.team,
      executor, args);
}

template <class Element, int kDim, int kColumns, bool kFp8, bool kPacked>
constexpr Instance instance(Dtype dtype) {
  using Shape = Config<Element, kDim, kColumns, kFp8, kPacked>;
  return {{dtype, kDim, kColumns, kFp8, kPacked}, Shape::kWarps, Shape::kStepTokens, launch_instance<Shape>};
}

template <class Element, int kDim>
constexpr DimInstances dim_instances(Dtype dtype) {
  return {{instance<Element, kDim, 8, false, false>(dtype), instance<Element, kDim, 8, false, true>(dtype),
           instance<Element, kDim, 8, true, false>(dtype), instance<Element, kDim, 8, true, true>(dtype),
           instance<Element, kDim, 16, false, false>(dtype), instance<Element, kDim, 16, false, true>(dtype),
           instance<Element, kDim, 16, true, false>(dtype), instance<Element, kDim, 16, true, true>(dtype)}};
}

}  // namespace flashlatent::paged
