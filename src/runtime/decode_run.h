// One decode call with tensors from the CPU: places them on the executor's device, plans, runs, and fetches
// results.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flashlatent/check_inputs.h"
#include "flashlatent/plan.h"
#include "runtime/device_memory.h"
#include "runtime/fp8_memory.h"

namespace flashlatent::runtime {

class DecodeRun {
 public:
  /// Copies the inputs (any strides: the whole span of memory of each tensor) and allocates plan, workspace
  /// and outputs, which are poisoned with NaN.
  static Result<DecodeRun> create(const DecodeProblem& problem, const DecodeInputs& inputs,
                                  const Executor& executor, const Fp8Request& fp8 = {});

  /// flashlatent::check_inputs() on the inputs; waits for the result.
  Status check_inputs() const;

  /// Plans and decodes `times` times; asynchronous where the backend is.
  Status run(int times = 1);
  Status plan();
  Status decode();

  /// Overwrites the lengths that calls read from then on (lengths_of()). `lengths`: on the CPU, contiguous,
  /// with the shapes that the inputs' have. An absent tensor changes nothing.
  Status set_lengths(const PlanLengths& lengths);

  /// Poisons the outputs and the workspace, so that what run() leaves out is noticed.
  Status poison();

  /// Waits, and copies the results to the CPU. The views are valid as long as this object.
  Status fetch();
  ConstTensorView out() const { return host_out_view_; }
  ConstTensorView lse() const { return host_lse_view_; }
  const Fp8Output& fp8() const { return fp8_.here(); }  ///< Absent if none was asked for.
  /// Bytes of out and lse, to compare runs.
  const std::vector<std::uint8_t>& out_bytes() const { return host_out_; }
  const std::vector<std::uint8_t>& lse_bytes() const { return host_lse_; }
  const std::vector<std::uint8_t>& fp8_bytes() const { return fp8_.bytes(); }

  const Plan& handle() const { return *handle_; }
  const DecodeProblem& problem() const { return handle_->problem(); }
  DecodeInputs& inputs() { return inputs_; }
  DecodeOutputs& outputs() { return outputs_; }
  Memory plan_memory() const { return plan_.memory(); }
  Memory workspace_memory() const { return workspace_.memory(); }

 private:
  /// Keeps what plan() needs where prefixes may be shared.
  void keep_pages(const DecodeInputs& inputs);

  std::optional<Plan> handle_;  // empty until create() has made it
  Executor executor_;
  DecodeInputs inputs_;
  DecodeOutputs outputs_;
  std::vector<Buffer> buffers_;
  Buffer out_, lse_, plan_, workspace_;
  Fp8Memory fp8_;
  std::vector<std::int32_t> host_table_, host_lengths_;
  std::vector<std::uint8_t> host_out_, host_lse_;
  ConstTensorView host_out_view_, host_lse_view_;
};

}  // namespace flashlatent::runtime
