// What the dense decode kernels share on the host beside a launch: its arguments, the combine step.
#pragma once

#include "cuda/common/dense_choice.h"
#include "cuda/common/dense_instance.h"
#include "cuda/parts/arguments.h"

namespace flashlatent::cuda {

/// What a kernel is launched with.
struct DenseLaunch {
  parts::DecodeArguments args;
  CUtensorMap kv;          ///< Unless the instance loads token by token.
  CUtensorMap query_rows;  ///< Of Q, where query.rows_in_line.
};

/// The one of this key, or null.
const DenseInstance* find_instance(std::initializer_list<std::span<const DenseInstance>> tables,
                                   const InstanceKey& key);

/// Launches the instance that `find(call, loading)` names, then the combine step unless that has done it. The
/// call that `find` gets may have another geometry: of sparse requests that need no plan.
Status launch_dense(const DecodeCall& call,
                    const DenseInstance* (*find)(const DecodeCall& call, Loading loading));

}  // namespace flashlatent::cuda
