// The compiled shapes of the trio kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/common/dense_instance.h"

namespace flashlatent::trio {

/// Pages that come by boxes are a multiple of so many tokens.
inline constexpr int kPageTokens = 32;

using Instances = std::array<cuda::DenseInstance, 2>;  // two dtypes

extern const Instances kInstances;
extern const Instances kShares;  // a CTA has a share of one request
extern const Instances kByTokens, kSharesByTokens;

}  // namespace flashlatent::trio
