// One sparse prefill from tensors on the CPU: places them on the executor's device, runs, fetches results.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/sparse_prefill.h"
#include "runtime/compare.h"
#include "runtime/device_memory.h"

namespace flashlatent::runtime {

class PrefillRun {
 public:
  /// Copies the inputs (any strides; each tensor's whole span of memory is copied) and allocates outputs and
  /// workspace, poisoned.
  static Result<PrefillRun> create(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                   const Executor& executor);

  /// Asynchronous where the backend is.
  Status run();

  /// Fills the outputs and the workspace with this byte, so that what run() does not write is seen.
  Status poison(int byte = 0xFF);

  /// Waits and copies the results to the CPU; the views stay valid while this object lives.
  Status fetch();
  const SparsePrefillOutputs& results() const { return host_; }
  /// Bytes of out, max_logits and lse, to compare reruns.
  const std::vector<std::uint8_t>& bytes() const { return host_bytes_; }

  SparsePrefillInputs& inputs() { return inputs_; }
  SparsePrefillOutputs& outputs() { return outputs_; }
  Memory workspace() const { return workspace_.memory(); }

 private:
  Executor executor_;
  SparsePrefillOptions options_;
  SparsePrefillInputs inputs_;
  SparsePrefillOutputs outputs_, host_;
  std::vector<Buffer> buffers_;
  Buffer results_, workspace_;
  std::vector<std::uint8_t> host_bytes_;
};

/// A sparse decode case of one query token a request as a sparse prefill, views of the same memory. Plain
/// pages of one token become contiguous rows.
SparsePrefillInputs prefill_inputs(const DecodeInputs& decode);

/// Results on the CPU beside the oracle's, all three of them.
Result<Comparison> compare_prefill(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                   const SparsePrefillOutputs& results);

}  // namespace flashlatent::runtime
