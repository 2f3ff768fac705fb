// What the dense decode kernels share on the host: schedule geometry, launch arguments, the combine step.
#pragma once

#include <optional>
#include <string>

#include "cuda/parts/arguments.cuh"
#include "dispatch/kernel.h"

namespace flashlatent::cuda {

/// One kernel's row tiles and costs.
struct DenseShape {
  int tile_rows;
  schedule::CostModel cost;
};

schedule::Geometry dense_geometry(const DecodeProblem& problem, int workers, const DenseShape& shape);
std::size_t dense_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// What a kernel is launched with.
struct DenseLaunch {
  parts::DecodeArguments args;
  CUtensorMap kv;          ///< Unless the instance loads token by token.
  CUtensorMap query_rows;  ///< Tiles of rows, where query.rows_in_line.
};

/// A compiled kernel: what it is compiled for, and its launch.
struct DenseInstance {
  Dtype dtype;
  int qk_dim;
  int v_dim;
  int tile_rows;
  bool by_token;  ///< Loads token by token (small or odd pages), not by TMA.
  int cluster;    ///< Row tiles, and CTAs, that share KV blocks.
  Status (*launch)(const DenseLaunch&, const Executor&);
};

/// lse = -inf for the query tokens that ragged requests do not have.
Status write_missing_rows(const parts::DecodeArguments& args, int heads, const Executor& executor);

/// Launches the instance that `find(by_token)` names, then the combine step.
Status launch_dense(const DecodeCall& call,
                    const DenseInstance* (*find)(const DecodeCall& call, bool by_token));

}  // namespace flashlatent::cuda
