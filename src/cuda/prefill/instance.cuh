// What a file of instances includes.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/prefill/instances.h"
#include "cuda/prefill/kernel.cuh"

namespace flashlatent::prefill {

template <class Config>
Status launch_instance(const Launch& launch, const Executor& executor) {
  return cuda::launch_ctas<kernel<Config>, Config, SharedMemory<Config>>(
      launch.ctas, 1, executor, launch.args, launch.keys, launch.values, launch.query);
}

template <class Element, int kDim, Kind kKind>
constexpr Instance instance(Dtype dtype) {
  using Shape = Config<Element, kDim, kKind>;
  static_assert(!Shape::kShared || Shape::kRows == kSharedTileRows);
  return {{dtype, kDim, kKind}, Shape::kRows, Shape::kBlockTokens, launch_instance<Shape>};
}

template <class Element>
constexpr DtypeInstances dtype_instances(Dtype dtype) {
  return {{instance<Element, 64, Kind::kPlain>(dtype), instance<Element, 64, Kind::kTransforms>(dtype),
           instance<Element, 64, Kind::kShared>(dtype), instance<Element, 128, Kind::kPlain>(dtype),
           instance<Element, 128, Kind::kTransforms>(dtype), instance<Element, 128, Kind::kShared>(dtype),
           instance<Element, 256, Kind::kPlain>(dtype), instance<Element, 256, Kind::kTransforms>(dtype),
           instance<Element, 256, Kind::kShared>(dtype)}};
}

}  // namespace flashlatent::prefill
