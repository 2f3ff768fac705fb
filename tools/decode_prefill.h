// flashlatent decode CASE for cases of sparse prefill.
#pragma once

#include <string>
#include <vector>

#include "flashlatent/backend.h"
#include "io/case.h"
#include "io/safetensors.h"

namespace flashlatent::tools {

struct DecodePaths {
  std::string input, output, json;  ///< `output` and `json` may be empty: nothing is written.
};

/// Writes a call's results, of which some may be absent, and its FP8 output, if there is one: codes uint8
/// (tokens, groups, columns), and scales.
Status write_results(const std::string& path, std::vector<io::NamedTensor> tensors, const Fp8Output& fp8);

/// Runs the case, compares it with the file's references or the oracle, and returns the exit status.
int decode_prefill(const io::DecodeCase& prefill_case, const DecodePaths& paths, const Executor& executor);

}  // namespace flashlatent::tools
