// The device's plan is the host's, bit for bit.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/cuda_backend.h"
#include "plan/host_plan.h"
#include "plan_cases.h"
#include "runtime/device_memory.h"

namespace flashlatent::schedule {
namespace {

class DevicePlan : public ::testing::Test {
 protected:
  void SetUp() override {
    executor_.backend = Backend::kCuda;
    if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
  }

  runtime::Buffer allocate(std::size_t bytes) {
    auto buffer = runtime::Buffer::allocate(executor_, bytes);
    EXPECT_TRUE(buffer.ok());
    return std::move(*buffer);
  }

  void upload(const runtime::Buffer& to, const std::vector<std::int32_t>& lengths) {
    EXPECT_TRUE(runtime::copy_to_device(to.data(), lengths.data(), lengths.size() * 4, executor_).ok());
  }

  void expect_equal(const Batch& batch, const runtime::Buffer& device_plan) {
    const Geometry& g = batch.geometry;
    std::vector<std::uint64_t> host(plan_bytes(g) / 8 + 1), device(plan_bytes(g) / 8 + 1);
    build_on_host(g, batch.lengths.data(), host.data());
    ASSERT_TRUE(runtime::copy_to_host(device.data(), device_plan.data(), plan_bytes(g), executor_).ok());
    const PlanView a = plan_view(g, host.data()), b = plan_view(g, device.data());
    ASSERT_EQ(0, std::memcmp(a.header, b.header, sizeof(Header)));
    for (int k = 0; k <= g.parts; ++k) ASSERT_TRUE(a.cuts[k] == b.cuts[k]) << "cut " << k;
    ASSERT_EQ(0, std::memcmp(a.merges, b.merges, a.header->merges * sizeof(Merge)));
  }

  Executor executor_;
};

TEST_F(DevicePlan, EqualsTheHosts) {
  std::mt19937_64 engine(1);
  for (int i = 0; i < 200; ++i) {
    const Batch batch = i % 10 == 0 ? random_whole_batch(engine) : random_batch(engine, i % 3 == 0);
    const runtime::Buffer lengths = allocate(batch.lengths.size() * 4);
    const runtime::Buffer plan = allocate(plan_bytes(batch.geometry));
    upload(lengths, batch.lengths);
    ASSERT_TRUE(runtime::fill(plan.data(), 0xFF, plan.size(), executor_).ok());
    const ConstTensorView view(lengths.data(), Dtype::kI32, {batch.geometry.requests},
                               {DeviceType::kCuda, 0});
    ASSERT_TRUE(cuda::build_plan(batch.geometry, view, plan.memory(), executor_).ok());
    expect_equal(batch, plan);
    if (HasFatalFailure()) FAIL() << "batch " << i;
  }
}

TEST_F(DevicePlan, ReplaysFromAGraphForNewLengths) {
  Batch batch{{.requests = 4096, .parts = 132, .max_tokens = 1 << 20, .cost = {10, 40}},
              std::vector<std::int32_t>(4096, 100)};
  const runtime::Buffer lengths = allocate(batch.lengths.size() * 4);
  const runtime::Buffer plan = allocate(plan_bytes(batch.geometry));
  upload(lengths, batch.lengths);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  executor_.stream = stream;
  const ConstTensorView view(lengths.data(), Dtype::kI32, {batch.geometry.requests}, {DeviceType::kCuda, 0});
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_TRUE(cuda::build_plan(batch.geometry, view, plan.memory(), executor_).ok());
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&instance, graph, 0), cudaSuccess);
  for (int seed = 0; seed < 3; ++seed) {
    std::mt19937 engine(seed);
    for (std::int32_t& length : batch.lengths) length = static_cast<std::int32_t>(engine() % 20000);
    upload(lengths, batch.lengths);
    ASSERT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    expect_equal(batch, plan);
  }
  cudaGraphExecDestroy(instance);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace flashlatent::schedule
