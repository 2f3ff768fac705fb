// The calls that `flashlatent tune` measures.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/bench_case.h"
#include "tools/tune_fit.h"

namespace flashlatent::tools {

/// A shape, and the kernels by which it is timed.
struct TuneCase {
  BenchCase bench = {};
  std::vector<KernelCall> calls = {};
};

/// All shapes with those kernels that may be picked for them: which take no more than kWorthTiming times as
/// long as the fastest, by `table`. `filter`: only kernels whose names contain this. The first shapes are
/// those that tell most about constants that no shape before them tells.
inline constexpr double kWorthTiming = 1.7;
std::vector<TuneCase> tune_cases(const schedule::Workers& workers, const cost::Table& table,
                                 const std::string& filter = {});

/// "b4 s_q1 h64 s_k4096 uniform by mla_16".
std::string name_of(const TuneCase& c, const KernelCall& call);

}  // namespace flashlatent::tools
