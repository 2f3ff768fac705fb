// The parts of a case of kind index_topk: one call of index_topk().
#pragma once

#include "flashlatent/index_topk.h"
#include "io/safetensors.h"

namespace flashlatent::io {

struct IndexCase {
  IndexTopkOptions options;
  int topk = 0;
  int best_blocks = 0;  ///< 0: not wanted.
};

/// Reads the metadata of such a case and checks its tensors: shapes as index_topk() wants them, and lengths
/// within the page table. kInvalidArgument names the file, the tensor or metadata key, and what is expected.
Result<IndexCase> read_index_case(const SafetensorsFile& file);

/// Its inputs, views of the file's memory.
IndexTopkInputs index_inputs(const SafetensorsFile& file);

/// Is this a tensor or a metadata key of such a case?
bool is_index_tensor(std::string_view name);
bool is_index_metadata(std::string_view name);

}  // namespace flashlatent::io
