// How mla_64_pingpong would cut a call, in any build.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "dispatch/select.h"

namespace flashlatent {

/// For a GPU of `workers` multiprocessors.
inline schedule::Geometry pingpong_plan(const DecodeProblem& problem, int workers) {
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.kernel = "mla_64_pingpong";
  const Result<std::vector<Candidate>> list = candidates(problem, executor, workers);
  EXPECT_TRUE(list.ok()) << list.status().message();
  const Candidate* best = cheapest(*list);
  EXPECT_NE(best, nullptr);
  return best->geometry;
}

}  // namespace flashlatent
