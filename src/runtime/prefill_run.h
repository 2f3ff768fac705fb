// One sparse prefill with tensors from the CPU: places them on the executor's device, runs, and fetches
// results.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/sparse_prefill.h"
#include "runtime/compare.h"
#include "runtime/device_memory.h"
#include "runtime/fp8_memory.h"
#include "runtime/output_memory.h"

namespace flashlatent::runtime {

class PrefillRun {
 public:
  /// Copies the inputs (any strides: the whole span of memory of each tensor) and allocates outputs and
  /// workspace, which are poisoned.
  static Result<PrefillRun> create(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                   const Executor& executor, const Fp8Request& fp8 = {});

  /// Runs the call; asynchronous where the backend is.
  Status run();

  /// Fills the outputs and the workspace with `byte`, so that what run() leaves out is noticed.
  Status poison(int byte = 0xFF);

  /// Waits, and copies the results to the CPU. The views are valid as long as this object.
  Status fetch();
  const SparsePrefillOutputs& results() const { return host_; }
  /// Bytes of out, max_logits and lse, to compare runs.
  const std::vector<std::uint8_t>& bytes() const { return results_.bytes(); }
  const std::vector<std::uint8_t>& fp8_bytes() const { return fp8_.bytes(); }

  SparsePrefillInputs& inputs() { return inputs_; }
  SparsePrefillOutputs& outputs() { return outputs_; }
  Memory workspace() const { return workspace_.memory(); }

 private:
  Executor executor_;
  SparsePrefillOptions options_;
  SparsePrefillInputs inputs_;
  SparsePrefillOutputs outputs_, host_;
  std::vector<Buffer> buffers_;
  OutputMemory results_;
  Buffer workspace_;
  Fp8Memory fp8_;
};

/// The options of a sparse prefill that computes this problem, with its output edge.
SparsePrefillOptions prefill_options(const DecodeProblem& problem);

/// A sparse decode case with one query token a request, as a sparse prefill on the same memory. A plain cache
/// with pages of one token becomes contiguous rows. Edges go with it.
SparsePrefillInputs prefill_inputs(const DecodeInputs& decode);

/// A rotation with positions (batch, 1) as one with (batch).
Rotation without_query_token(Rotation rotation);

/// Compares all three results, on the CPU, with the oracle's: compare().
Result<Comparison> compare_prefill(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                   const SparsePrefillOutputs& results, RowSample sample = {},
                                   OracleMemory* memory = nullptr);

}  // namespace flashlatent::runtime
