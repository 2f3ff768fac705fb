// flashlatent decode CASE for cases of sparse prefill.
#pragma once

#include <string>

#include "flashlatent/backend.h"
#include "io/case.h"

namespace flashlatent::tools {

struct DecodePaths {
  std::string input, output, json;  ///< `output` and `json` may be empty: nothing is written.
};

/// Runs the case, compares it with the file's references or the oracle, and returns the exit status.
int decode_prefill(const io::DecodeCase& prefill_case, const DecodePaths& paths, const Executor& executor);

}  // namespace flashlatent::tools
