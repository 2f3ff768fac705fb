#include "runtime/cpu_roof.h"

#include <gtest/gtest.h>

#include <iostream>

namespace flashlatent::runtime {
namespace {

TEST(CpuRoof, IsPlausible) {
  const Result<CpuRoof> roof = measure_cpu_roof(1);
  ASSERT_TRUE(roof.ok()) << roof.status().message();
  std::cout << roof->fma_gflops << " GFLOP/s, " << roof->read_gbps << " GB/s\n";
  EXPECT_EQ(roof->threads, 1);
  // From a slow SIMD unit under emulation to more than any core: wrong units fall outside.
  EXPECT_GT(roof->fma_gflops, 0.5);
  EXPECT_LT(roof->fma_gflops, 1000);
  EXPECT_GT(roof->read_gbps, 0.1);
  EXPECT_LT(roof->read_gbps, 1000);
}

TEST(CpuRoof, RefusesNegativeThreads) {
  const Status status = measure_cpu_roof(-2).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("threads is -2"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace flashlatent::runtime
