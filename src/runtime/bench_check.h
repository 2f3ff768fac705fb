// Checks a sample of a benchmark's results against the float64 oracle.
#pragma once

#include "runtime/bench_input.h"
#include "runtime/compare.h"

namespace flashlatent::runtime {

/// Compares about `rows` rows of the first and the last request with the oracle. Only the pages of these
/// requests are copied to the CPU: a benchmark's cache may be larger than the CPU's memory. `memory`: as
/// in compare().
Result<Comparison> compare_sample(const BenchInput& input, int rows, const Executor& executor,
                                  OracleMemory* memory = nullptr);

}  // namespace flashlatent::runtime
