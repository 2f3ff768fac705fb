// One decode call from tensors on the CPU: places them on the executor's device, plans, runs, fetches
// results.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flashlatent/check_inputs.h"
#include "flashlatent/plan.h"
#include "runtime/device_memory.h"

namespace flashlatent::runtime {

class DecodeRun {
 public:
  /// Copies the inputs (any strides; each tensor's whole span of memory is copied) and allocates outputs,
  /// poisoned with NaN, plan and workspace.
  static Result<DecodeRun> create(const DecodeProblem& problem, const DecodeInputs& inputs,
                                  const Executor& executor);

  /// What flashlatent::check_inputs() finds in the inputs; waits for it.
  Status check_inputs() const;

  /// Plans and decodes, `times` over, asynchronously where the backend is.
  Status run(int times = 1);
  Status plan();
  Status decode();

  /// Poisons the outputs and the workspace, so that what run() does not write is seen.
  Status poison();

  /// Waits and copies the results to the CPU; the views stay valid while this object lives.
  Status fetch();
  ConstTensorView out() const { return host_out_view_; }
  ConstTensorView lse() const { return host_lse_view_; }
  /// Bytes of out and lse, to compare reruns.
  const std::vector<std::uint8_t>& out_bytes() const { return host_out_; }
  const std::vector<std::uint8_t>& lse_bytes() const { return host_lse_; }

  const Plan& handle() const { return *handle_; }
  const DecodeProblem& problem() const { return handle_->problem(); }
  DecodeInputs& inputs() { return inputs_; }
  DecodeOutputs& outputs() { return outputs_; }
  Memory plan_memory() const { return plan_.memory(); }
  Memory workspace_memory() const { return workspace_.memory(); }

 private:
  /// What plan() needs where prefixes may be shared.
  void keep_pages(const DecodeInputs& inputs);

  std::optional<Plan> handle_;  // empty until create() has made it
  Executor executor_;
  DecodeInputs inputs_;
  DecodeOutputs outputs_;
  std::vector<Buffer> buffers_;
  Buffer out_, lse_, plan_, workspace_;
  std::vector<std::int32_t> host_table_, host_lengths_;
  std::vector<std::uint8_t> host_out_, host_lse_;
  ConstTensorView host_out_view_, host_lse_view_;
};

}  // namespace flashlatent::runtime
