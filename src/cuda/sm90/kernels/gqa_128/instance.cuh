// Included by the files of instances.
#pragma once

#include "cuda/sm90/kernels/gqa_128/instances.h"
#include "cuda/sm90/kernels/gqa_128/kernel.cuh"

namespace flashlatent::gqa_128 {

template <class Element, int kDim, Kind kKind, bool kE4m3 = false>
constexpr Instance instance(Dtype dtype) {
  using Shape = Config<Element, kDim, kKind, kE4m3>;
  static_assert(!Shape::kShared || Shape::kRows == kSharedTileRows);
  static_assert(!Shape::kSegments || Shape::kRows == kSegmentTileRows);
  return {{dtype, kDim, kKind, kE4m3}, cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>()};
}

template <class Element>
constexpr DtypeInstances dtype_instances(Dtype dtype) {
  return {{instance<Element, 64, Kind::kPlain>(dtype), instance<Element, 64, Kind::kTransforms>(dtype),
           instance<Element, 64, Kind::kShared>(dtype), instance<Element, 128, Kind::kPlain>(dtype),
           instance<Element, 128, Kind::kTransforms>(dtype), instance<Element, 128, Kind::kShared>(dtype),
           instance<Element, 256, Kind::kPlain>(dtype), instance<Element, 256, Kind::kTransforms>(dtype),
           instance<Element, 256, Kind::kShared>(dtype)}};
}

template <class Element>
constexpr SegmentInstances segment_instances(Dtype dtype) {
  return {{instance<Element, 64, Kind::kSegments>(dtype), instance<Element, 128, Kind::kSegments>(dtype),
           instance<Element, 256, Kind::kSegments>(dtype)}};
}

template <class Element>
constexpr E4m3Instances e4m3_instances(Dtype dtype) {
  return {{instance<Element, 64, Kind::kPlain, true>(dtype),
           instance<Element, 64, Kind::kTransforms, true>(dtype),
           instance<Element, 64, Kind::kSegments, true>(dtype),
           instance<Element, 128, Kind::kPlain, true>(dtype),
           instance<Element, 128, Kind::kTransforms, true>(dtype),
           instance<Element, 128, Kind::kSegments, true>(dtype)}};
}

}  // namespace flashlatent::gqa_128
