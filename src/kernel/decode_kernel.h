// Kernels as rows of data: what each takes, how it is scheduled, how it is launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "flashlatent/decode.h"
#include "plan/held_tokens.h"
#include "plan/prefix.h"
#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent {

/// The most tokens of a request on CUDA: kernels count in int32 and look some blocks ahead.
inline constexpr std::int64_t kMostDeviceTokens = (1LL << 31) - (1 << 14);

/// Everything a launch needs. Shapes, dtypes, devices and buffer sizes are already validated.
struct DecodeCall {
  const DecodeProblem& problem;
  const DecodeInputs& inputs;
  const DecodeOutputs& outputs;
  const schedule::Geometry& geometry;
  const prefix::Shape& prefix;  ///< Without requests: they share no prefixes.
  Memory plan;
  Memory workspace;
  const Executor& executor;
  TensorView max_logits = {};      ///< fp32 (batch, h_q, s_q), or absent: sparse prefill's largest scores.
  schedule::HeldTokens held = {};  ///< Of contexts that ranks share, whose lengths `inputs` has.

  /// The same with another geometry, which must outlive it.
  DecodeCall with(const schedule::Geometry& other) const {
    return {problem, inputs, outputs, other, prefix, plan, workspace, executor, max_logits, held};
  }
};

struct DecodeKernel {
  const char* name;
  Backend backend;
  const char* takes;  ///< A sentence for `info`.
  /// Why this kernel does not take the problem (a clause naming the argument, its value and what would
  /// do); nothing if it does.
  std::optional<std::string> (*declines)(const DecodeProblem&);
  /// The schedule's fixed part, with the kernel's costs for this problem. `workers`: SMs of the device, or
  /// threads.
  schedule::Geometry (*geometry)(const DecodeProblem&, const schedule::Workers& workers);
  std::size_t (*workspace_bytes)(const DecodeProblem&, const schedule::Geometry&);
  /// Null in a build without the kernel's backend, which can say all the rest.
  Status (*launch)(const DecodeCall&);
  /// Why prefixes that requests share cannot be attended to by groups; nothing if they can. Null: never.
  std::optional<std::string> (*declines_prefixes)(const DecodeProblem&) = nullptr;
  /// If they can, how. With Options::prefix_sharing off it is not asked.
  prefix::Shape (*prefix_shape)(const DecodeProblem&, const schedule::Workers& workers) = nullptr;
  /// Which kernel does a call of a problem that this one takes, where these tensors lie as this one cannot
  /// read or write? Null: this one. Plan and workspace serve either. `reason`, unless it is null, is told
  /// why: a clause that names the tensor, what it is and what would do. Never another if there is no
  /// function.
  const DecodeKernel* (*substitute)(const DecodeProblem&, const DecodeInputs&, const DecodeOutputs&,
                                    std::string* reason) = nullptr;
  /// Sparse prefill on CUDA: whole query tokens in turn (schedule::Partition::kTurns), without plan and
  /// workspace; `launch` does it where the geometry says so. Why a problem of it is not taken, and the
  /// schedule. Null: none is.
  std::optional<std::string> (*declines_turns)(const DecodeProblem&) = nullptr;
  schedule::Geometry (*turns)(const DecodeProblem&, const schedule::Workers& workers) = nullptr;
};

}  // namespace flashlatent
