// What the dense decode kernels share on the host: schedule geometry, launch arguments, the combine step.
#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "cuda/common/decode_arguments.h"
#include "cuda/common/dense_instance.h"

namespace flashlatent::cuda {

/// One kernel's row tiles and costs.
struct DenseShape {
  int tile_rows;
  schedule::CostModel cost;
  int team = 1;  ///< CTAs that share the blocks of a segment.
};

/// What a call with shares of one request (schedule::kEven, kByLength) takes longer with fp16, whose partial
/// results are twice as many bytes: nanoseconds.
inline constexpr int kFp32Partials = 2500;
/// And by length, for which the plan is read.
inline constexpr int kReadsPlan = 400;

/// The schedule on so many SMs.
schedule::Geometry split_geometry(const DecodeProblem& problem, int workers, const DenseShape& shape);
/// The same, but each request and group of row tiles is a part where splits never pay.
schedule::Geometry dense_geometry(const DecodeProblem& problem, int workers, const DenseShape& shape);

/// What a kernel is launched with.
struct DenseLaunch {
  parts::DecodeArguments args;
  CUtensorMap kv;          ///< Unless the instance loads token by token.
  CUtensorMap query_rows;  ///< Of Q, where query.rows_in_line.
};

/// What this call's kernel must do.
Loading loading_of(const DecodeProblem& problem, const ConstTensorView& kv_cache);
/// What a kernel must be able to do to take the problem, whatever the number of pages.
Loading loading_of(const DecodeProblem& problem);

/// The one of this key, or null.
const DenseInstance* find_instance(std::initializer_list<std::span<const DenseInstance>> tables,
                                   const InstanceKey& key);

/// Why a kernel for latent caches does not take another.
std::string not_latent(const DecodeProblem& problem);
/// Why a kernel does not take so many query rows a KV head.
std::string too_many_rows(const DecodeProblem& problem, int most);
/// Why no kernel of these dimensions is there, of a plain cache where those "are accepted".
std::string unknown_dimensions(const DecodeProblem& problem,
                               const char* accepted = "576/512, 512/512 and 320/256 are");

/// Is the combine step left to a kernel that can do it? Not where most requests are split: four CTAs of a
/// launch of its own run on a multiprocessor at once. With four row tiles side by side calls took up to 3 %
/// longer so.
bool merges_in_kernel(const schedule::Geometry& geometry);

/// Launches the instance that `find(call, loading)` names, then the combine step unless that has done it. The
/// call that `find` gets may have another geometry: of sparse requests that need no plan.
Status launch_dense(const DecodeCall& call,
                    const DenseInstance* (*find)(const DecodeCall& call, Loading loading));

}  // namespace flashlatent::cuda
