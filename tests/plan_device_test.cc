// The device's plan is the host's, bit for bit.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/cuda_backend.h"
#include "group_list.h"
#include "plan/host_plan.h"
#include "plan/prefix_plan.h"
#include "plan/ragged_lengths.h"
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

  void expect_equal(const Batch& batch, const runtime::Buffer& device_plan, const Building& building = {}) {
    expect_equal(batch, device_plan, batch.lengths.data(), building);
  }
  template <class Lengths>
  void expect_equal(const Batch& batch, const runtime::Buffer& device_plan, const Lengths& lengths,
                    const Building& building = {}) {
    const Geometry& g = batch.geometry;
    std::vector<std::uint64_t> host(plan_bytes(g) / 8 + 1), device(plan_bytes(g) / 8 + 1);
    build_on_host(g, lengths, host.data(), building);
    ASSERT_TRUE(runtime::copy_to_host(device.data(), device_plan.data(), plan_bytes(g), executor_).ok());
    const PlanView a = plan_view(g, host.data()), b = plan_view(g, device.data());
    ASSERT_EQ(0, std::memcmp(a.header, b.header, sizeof(Header)));
    for (int k = 0; k <= g.parts; ++k) ASSERT_TRUE(a.cuts[k] == b.cuts[k]) << "cut " << k;
    ASSERT_EQ(0, std::memcmp(a.merges, b.merges, a.header->merges * sizeof(Merge)));
    for (int r = 0; r < g.requests && has_order(g); ++r) ASSERT_EQ(a.successors[r], b.successors[r]) << r;
  }

  Executor executor_;
};

TEST_F(DevicePlan, EqualsTheHosts) {
  std::mt19937_64 engine(1);
  for (int i = 0; i < 200; ++i) {
    const Batch batch = i % 10 == 0   ? random_whole_batch(engine)
                        : i % 10 == 1 ? random_shared_batch(engine)
                        : i % 10 == 2 ? random_even_batch(engine)
                        : i % 10 == 3 ? random_batch_by_length(engine)
                                      : random_batch(engine, i % 3 == 0);
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

// Two kernels, by how many requests and parts there are, and the edges between them.
TEST_F(DevicePlan, WithoutPackingEqualsTheHosts) {
  std::mt19937_64 engine(6);
  for (int i = 0; i < 200; ++i) {
    Batch batch = random_batch(engine, i % 5 == 0);
    Geometry& g = batch.geometry;
    if (i % 2 == 0) {
      g.requests = i % 4 == 0 ? 1 + i / 2 : 1020 + static_cast<int>(engine() % 8);
      g.parts = i % 8 == 0 ? 1 + static_cast<int>(engine() % 132) : 253 + static_cast<int>(engine() % 5);
      batch.lengths.resize(g.requests, 5000);
    }
    const Building building{.packs = false};
    const runtime::Buffer lengths = allocate(batch.lengths.size() * 4);
    const runtime::Buffer plan = allocate(plan_bytes(g));
    upload(lengths, batch.lengths);
    ASSERT_TRUE(runtime::fill(plan.data(), 0xFF, plan.size(), executor_).ok());
    const ConstTensorView view(lengths.data(), Dtype::kI32, {g.requests}, {DeviceType::kCuda, 0});
    ASSERT_TRUE(cuda::build_plan(g, view, plan.memory(), executor_, building).ok());
    expect_equal(batch, plan, building);
    if (HasFatalFailure()) FAIL() << "batch " << i;
  }
}

TEST_F(DevicePlan, OfSharedPrefixesEqualsTheHosts) {
  std::mt19937 engine(5);
  for (int i = 0; i < 40; ++i) {
    const int requests = i % 8 == 0 ? 3000 : 2 + static_cast<int>(engine() % 200);
    Batch batch{{.requests = requests, .parts = 16, .lanes = 8, .max_tokens = 1 << 20, .cost = {1883, 2000}},
                std::vector<std::int32_t>(requests, 0)};
    for (std::int32_t& length : batch.lengths) length = 6000 + static_cast<std::int32_t>(engine() % 3000);
    const prefix::Shape shape{.requests = requests,
                              .request_rows = 4,
                              .kv_heads = 8,
                              .max_tokens = 1 << 20,
                              .tile_rows = 128,
                              .block_tokens = 128,
                              .workers = 132,
                              .read_cost = 1,
                              .unit_block_cost = 2460,
                              .own_block_cost = 1008,
                              .own_split_cost = 1000};
    std::vector<prefix::GroupList> lists;
    for (std::int32_t first = 0; first + 2 < requests && i % 5 != 0;) {
      prefix::GroupList group{{}, 128 * static_cast<std::int32_t>(1 + engine() % 40)};
      const auto count = static_cast<std::int32_t>(2 + engine() % 60);
      for (std::int32_t r = first; r < std::min(first + count, requests); ++r) group.requests.push_back(r);
      first += count + static_cast<std::int32_t>(engine() % 3);
      lists.push_back(group);
    }
    const std::vector<prefix::Group> groups = prefix::views_of(lists);
    const std::int64_t bytes = prefix::offset(batch.geometry) + prefix::bytes(shape);
    std::vector<std::uint64_t> host(bytes / 8 + 1), fetched(bytes / 8 + 1);
    prefix::build_on_host(batch.geometry, shape, groups, batch.lengths.data(), host.data());
    const runtime::Buffer lengths = allocate(batch.lengths.size() * 4);
    const runtime::Buffer plan = allocate(bytes);
    upload(lengths, batch.lengths);
    ASSERT_TRUE(runtime::fill(plan.data(), 0xFF, plan.size(), executor_).ok());
    const ConstTensorView view(lengths.data(), Dtype::kI32, {requests}, {DeviceType::kCuda, 0});
    ASSERT_TRUE(
        cuda::build_plan(batch.geometry, shape, groups, batch.lengths.data(), view, plan.memory(), executor_)
            .ok());
    ASSERT_TRUE(runtime::copy_to_host(fetched.data(), plan.data(), bytes, executor_).ok());
    auto prefixes_of = [&](std::vector<std::uint64_t>& memory) {
      return prefix::view(shape,
                          reinterpret_cast<std::uint8_t*>(memory.data()) + prefix::offset(batch.geometry));
    };
    const prefix::View a = prefixes_of(host), b = prefixes_of(fetched);
    ASSERT_EQ(0, std::memcmp(a.header, b.header, sizeof(prefix::Header)));
    EXPECT_EQ(0, std::memcmp(a.tiles, b.tiles, a.header->tiles * sizeof(prefix::Tile)));
    EXPECT_EQ(0, std::memcmp(a.members, b.members, a.header->members * sizeof(std::int32_t)));
    EXPECT_EQ(0, std::memcmp(a.shares, b.shares, requests * sizeof(prefix::Share)));
    EXPECT_EQ(0, std::memcmp(a.own_lengths, b.own_lengths, requests * sizeof(std::int32_t)));
    const PlanView of_host = plan_view(batch.geometry, host.data());
    const PlanView of_device = plan_view(batch.geometry, fetched.data());
    ASSERT_EQ(0, std::memcmp(of_host.header, of_device.header, sizeof(Header)));
    for (int k = 0; k <= batch.geometry.parts; ++k) {
      EXPECT_TRUE(of_host.cuts[k] == of_device.cuts[k]) << "cut " << k;
    }
    for (int r = 0; r < requests; ++r) EXPECT_EQ(of_host.successors[r], of_device.successors[r]) << r;
  }
}

// Query tokens are items here, some of which ragged requests do not have.
TEST_F(DevicePlan, OfRaggedQueryTokensEqualsTheHosts) {
  std::mt19937 engine(7);
  for (int i = 0; i < 40; ++i) {
    const int requests = 1 + static_cast<int>(engine() % (i % 8 == 0 ? 1500 : 60));
    DecodeProblem problem;
    problem.query = {
        .batch = requests, .tokens = 1 + static_cast<int>(engine() % 9), .heads = 8, .ragged = true};
    problem.cache.max_pages = 200;
    problem.options.causal = i % 2 == 0;
    problem.options.window = i % 3 == 0 ? 3000 : 128;
    Batch batch{{.parts = 1 + static_cast<int>(engine() % 132), .cost = {600, 1900}}, {}};
    set_lists(batch.geometry, problem);
    std::vector<std::int32_t> begins(requests + 1);
    for (int r = 0; r < requests; ++r) {
      batch.lengths.push_back(static_cast<std::int32_t>(engine() % 13000));
      begins[r + 1] = begins[r] + static_cast<std::int32_t>(engine() % (problem.query.tokens + 1));
    }
    const runtime::Buffer lengths = allocate(batch.lengths.size() * 4), starts = allocate(begins.size() * 4);
    const runtime::Buffer plan = allocate(plan_bytes(batch.geometry));
    upload(lengths, batch.lengths);
    upload(starts, begins);
    ASSERT_TRUE(runtime::fill(plan.data(), 0xFF, plan.size(), executor_).ok());
    const auto lists = [&](const void* data) {
      return union_lengths({ConstTensorView(data, Dtype::kI32, {requests}), {}});
    };
    const RaggedLengths here{lists(lengths.data()), static_cast<const std::int32_t*>(starts.data())};
    ASSERT_TRUE(cuda::build_plan(batch.geometry, here, plan.memory(), executor_).ok());
    expect_equal(batch, plan, RaggedLengths{lists(batch.lengths.data()), begins.data()});
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
