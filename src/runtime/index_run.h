// One call of index_topk() with tensors from the CPU: places them on the executor's device, runs, and fetches
// results.
#pragma once

#include <cstdint>
#include <vector>

#include "flashlatent/index_topk.h"
#include "runtime/device_memory.h"
#include "runtime/output_memory.h"

namespace flashlatent::runtime {

/// Which outputs a call writes beside indices and counts.
struct IndexWanted {
  int topk = 0;
  int best_blocks = 0;
  bool scores = true;
  bool all_scores = true;
};

class IndexRun {
 public:
  /// Copies the inputs (any strides) and allocates outputs and workspace, which are poisoned.
  static Result<IndexRun> create(const IndexTopkInputs& inputs, const IndexTopkOptions& options,
                                 const IndexWanted& wanted, const Executor& executor);

  /// Runs the call; asynchronous where the backend is.
  Status run();
  /// Fills the outputs and the workspace with `byte`, so that what run() leaves out is noticed.
  Status poison(int byte = 0xFF);
  /// Waits, and copies the results to the CPU. The views are valid as long as this object.
  Status fetch();
  const IndexTopkOutputs& results() const { return host_; }
  /// Bytes of all outputs, to compare runs.
  const std::vector<std::uint8_t>& bytes() const { return results_.bytes(); }

  IndexTopkInputs& inputs() { return inputs_; }
  IndexTopkOutputs& outputs() { return outputs_; }
  Memory workspace() const { return workspace_.memory(); }

 private:
  Executor executor_;
  IndexTopkOptions options_;
  IndexTopkInputs inputs_;
  IndexTopkOutputs outputs_, host_;
  std::vector<Buffer> buffers_;
  OutputMemory results_;
  Buffer workspace_;
};

}  // namespace flashlatent::runtime
