// Is what a benchmark computed right? A sample of its rows against the float64 oracle.
#pragma once

#include "runtime/bench_input.h"
#include "runtime/compare.h"

namespace flashlatent::runtime {

/// Compares about `rows` rows, of the first and the last request, with the oracle. Only their pages come to
/// the CPU, since a benchmark's cache may be larger than its memory.
Result<Comparison> compare_sample(const BenchInput& input, int rows, const Executor& executor);

}  // namespace flashlatent::runtime
