// The compiled shapes of the seesaw kernel, as rows of data.
#pragma once

#include <array>

#include "cuda/parts/arguments.cuh"
#include "flashlatent/backend.h"

namespace flashlatent::seesaw {

struct Instance {
  Dtype dtype;
  int qk_dim;
  int v_dim;
  bool by_token;  ///< Loads token by token (small or odd pages), not by TMA.
  Status (*launch)(const parts::DecodeArguments&, const CUtensorMap&, const Executor&);
};

using ShapeInstances = std::array<Instance, 4>;  // two dtypes, two loaders

// One file each, so that they compile side by side.
extern const ShapeInstances kInstances576x512;
extern const ShapeInstances kInstances512x512;
extern const ShapeInstances kInstances320x256;

}  // namespace flashlatent::seesaw
