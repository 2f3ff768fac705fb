// What dense decode kernels have in common on the host beside a launch: arguments and the combine step.
#pragma once

#include "cuda/host/dense_instance.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/load/query_maps.h"
#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::cuda {

/// The parameters of a launch.
struct DenseLaunch {
  sm90::DecodeArguments args;
  CUtensorMap kv;  ///< Unset if the instance loads token by token.
  sm90::QueryMaps query;
};

/// The instance with this key; null if there is none.
const DenseInstance* find_instance(std::initializer_list<std::span<const DenseInstance>> tables,
                                   const InstanceKey& key);

/// Launches the instance that `find(call, loading)` returns, then the combine step unless the kernel runs it.
/// `find` may get a call with another geometry: that of sparse requests that need no plan.
Status launch_dense(const DecodeCall& call,
                    const DenseInstance* (*find)(const DecodeCall& call, Loading loading));

}  // namespace flashlatent::cuda
