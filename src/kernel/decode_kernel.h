// A kernel as a row of data: what it takes and how it is launched. How its calls are cut is decided elsewhere
// (choose/cutters.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "flashlatent/decode.h"
#include "plan/chosen_kernel.h"
#include "plan/held_tokens.h"
#include "plan/prefix.h"
#include "plan/schedule.h"

namespace flashlatent {

/// The most tokens of a request on CUDA: kernels count tokens in int32 and look some blocks ahead.
inline constexpr std::int64_t kMostDeviceTokens = (1LL << 31) - (1 << 14);

/// Everything a launch needs. Shapes, dtypes, devices and buffer sizes are already validated.
struct DecodeCall {
  const DecodeProblem& problem;
  const DecodeInputs& inputs;
  const DecodeOutputs& outputs;
  const schedule::Geometry& geometry;
  const prefix::Shape& prefix;  ///< With 0 requests: no prefixes are shared.
  Memory plan;
  Memory workspace;
  const Executor& executor;
  /// fp32 (batch, h_q, s_q), only for sparse prefill that wants them: the largest scores. Absent otherwise.
  TensorView max_logits = {};
  /// Where ranks share contexts: the rank's tokens. `inputs` has the lengths of whole contexts.
  schedule::HeldTokens held = {};
  /// Where the plan chooses between two kernels: which of them this one is.
  schedule::ChosenKernel choice = {};
  bool sparse_prefill = false;  ///< On CUDA then by schedule::Partition::kTurns.

  /// The same call with another geometry, which must outlive it.
  DecodeCall with(const schedule::Geometry& other) const {
    return {problem,   inputs,   outputs,    other, prefix, plan,
            workspace, executor, max_logits, held,  choice, sparse_prefill};
  }
};

/// What a kernel's code is compiled for.
enum class Architecture : std::uint8_t {
  kHost,   ///< Any CPU.
  kSm90a,  ///< NVIDIA Hopper: compute capability 9.0, with wgmma and TMA.
};

/// Which edges of the layer a kernel has in its own passes (DecodeInputs::q_norm, q_rotate, out_rotate,
/// DecodeOutputs::out_fp8).
struct FusedEdges {
  bool query = false, output = false;
};

struct DecodeKernel {
  const char* name;
  Architecture architecture;
  const char* takes;  ///< A sentence for `info`.
  /// Why the kernel does not take the problem: a clause that names the argument, its value and what would do.
  /// Empty if it takes the problem.
  std::optional<std::string> (*declines)(const DecodeProblem&);
  std::size_t (*workspace_bytes)(const DecodeProblem&, const schedule::Geometry&);
  /// Null in a build without the kernel's backend; all other members work there.
  Status (*launch)(const DecodeCall&);
  /// Why the kernel cannot have requests attend to shared prefixes by groups; empty if it can. Null: it never
  /// can.
  std::optional<std::string> (*declines_prefixes)(const DecodeProblem&) = nullptr;
  /// The kernel that runs a call of a problem which this kernel takes, but whose tensors lie in a way that
  /// this kernel cannot read or write. Returns null if this kernel can. Plan and workspace serve both.
  /// `reason`, unless null, is set to a clause that names the tensor, what it is and what would do. A null
  /// pointer here: the kernel never needs a substitute.
  const DecodeKernel* (*substitute)(const DecodeProblem&, const DecodeInputs&, const DecodeOutputs&,
                                    std::string* reason) = nullptr;
  /// Sparse prefill on CUDA, without plan and workspace: CTAs take whole query tokens by
  /// schedule::Partition::kTurns, which `launch` runs where the geometry has that partition. Why such a
  /// problem is not taken; `max_logits`: are the largest scores wanted? Null: none is.
  std::optional<std::string> (*declines_turns)(const DecodeProblem&, bool max_logits) = nullptr;
  /// Does a launch leave if the plan has chosen the call's other kernel (DecodeCall::choice)?
  bool leaves = false;
  /// The edges that `launch` sees to for a call of this geometry with these tensors. What it leaves out is a
  /// launch of its own, and absent from the tensors that it gets. Null: it leaves out all.
  FusedEdges (*fuses)(const DecodeProblem&, const schedule::Geometry&, const DecodeInputs&,
                      const DecodeOutputs&) = nullptr;

  constexpr Backend backend() const {
    return architecture == Architecture::kHost ? Backend::kCpu : Backend::kCuda;
  }
};

}  // namespace flashlatent
