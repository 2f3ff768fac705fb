// Runs a case of index_topk() and compares it.
#pragma once

#include "flashlatent/backend.h"
#include "io/case.h"
#include "tools/decode_prefill.h"

namespace flashlatent::tools {

/// Runs the case, writes what `paths` ask for, prints the comparison; returns the exit code.
int decode_index(const io::DecodeCase& index_case, const DecodePaths& paths, const Executor& executor);

}  // namespace flashlatent::tools
