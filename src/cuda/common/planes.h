// From the tensors of keys and values to planes.
#pragma once

#include "cuda/parts/plane.h"
#include "flashlatent/decode.h"

namespace flashlatent::cuda {

/// Of a cache that is not latent.
parts::Plane key_plane(const DecodeProblem& problem, const DecodeInputs& inputs);
parts::Plane value_plane(const DecodeProblem& problem, const DecodeInputs& inputs);

}  // namespace flashlatent::cuda
