// The table of costs, and what it makes of some calls. No device is asked.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "choose/cutters.h"
#include "core/token_bytes.h"
#include "cost/device.h"
#include "cost/model.h"
#include "cost/packing.h"
#include "cost/table_file.h"
#include "dispatch/select.h"

namespace flashlatent {
namespace {

using cost::Constants;
using cost::Kernel;
using cost::Row;

std::string name_of(const Row& row) {
  return cost::kKernelNames[static_cast<std::size_t>(row.kernel)];
}

TEST(CostTable, HasEachConstantOnceAndSaysWhereItIsFrom) {
  using Numbers = std::array<std::int32_t, sizeof(Constants) / sizeof(std::int32_t)>;
  std::map<std::string, Numbers> known;
  for (const Row& row : cost::rows::kH200) {
    const auto numbers = std::bit_cast<Numbers>(row.constants);
    const std::string name = cost::name_of({row.kernel, row.situation});
    Numbers& before = known[name];
    EXPECT_NE(std::string(row.from), "") << name;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_TRUE(before[i] == 0 || numbers[i] == 0) << name << ": constant " << i << " is both " << before[i]
                                                     << " and " << numbers[i] << ", from " << row.from;
      before[i] += numbers[i];
    }
  }
  EXPECT_EQ(known.size(), cost::kPlaces.size()) << "two situations have one name";
}

TEST(CostTable, IsOfKernelsThatThereAre) {
  for (const Row& row : cost::rows::kH200) {
    if (row.kernel == Kernel::kLatent || row.kernel == Kernel::kPlan) continue;
    bool known = false;
    for (const choose::Cutter* cutter : choose::cutters()) known |= name_of(row) == cutter->kernel.name;
    EXPECT_TRUE(known) << name_of(row);
  }
}

TEST(CostTable, PrintsCosts) {
  EXPECT_EQ(
      cost::to_string(schedule::CostModel{.per_block = 1, .per_split = 2, .per_call = -3, .per_merge = 4}),
      "per_block 1, per_split 2, per_call -3, per_merge 4, per_block_alone 0, per_block_near 0 ns");
}

// A step of one layer is not packed; one of many layers is, as is a plan of which nothing is said.
TEST(CostPacking, PaysByTheCallsThatShareAPlan) {
  const schedule::Workers h200(132);
  schedule::Geometry g{.requests = 128, .parts = 132, .tile_rows = 64, .max_tokens = 1 << 20};
  for (int tile_rows : {16, 64}) {
    g.tile_rows = tile_rows;
    EXPECT_GT(cost::packing_time(g, h200), 0);
    EXPECT_GT(cost::packing_gain(g, h200), 0);
    EXPECT_TRUE(cost::packing_pays(g, 0, h200));
    EXPECT_FALSE(cost::packing_pays(g, 1, h200));
    EXPECT_TRUE(cost::packing_pays(g, 61, h200));
    bool paid = false;
    for (int calls = 1; calls <= 100; ++calls) {
      const bool pays = cost::packing_pays(g, calls, h200);
      EXPECT_TRUE(pays || !paid) << calls << " calls gain what fewer do";
      paid = pays;
    }
  }
}

// Where shapes say that nothing is packed there is nothing to decide.
TEST(CostPacking, TakesNoTimeWhereNothingIsPacked) {
  const schedule::Workers h200(132);
  schedule::Geometry g{.requests = 1000, .parts = 132, .max_tokens = 1 << 20};
  EXPECT_EQ(cost::packing_time(g, h200), 0);
  EXPECT_EQ(cost::packing_gain(g, h200), 0);
  g.requests = 128;
  g.partition = schedule::Partition::kSharesByLength;
  EXPECT_EQ(cost::packing_time(g, h200), 0);
}

TEST(CostModel, AddsWhatACallTakesMore) {
  schedule::CostModel costs = {.per_block = 10, .per_split = 20, .per_call = 30, .per_merge = 40};
  cost::add(costs, {.per_block = 0, .per_split = 0, .per_call = -5, .per_merge = 2});
  EXPECT_EQ(cost::to_string(costs),
            "per_block 10, per_split 20, per_call 25, per_merge 42, per_block_alone 0, per_block_near 0 ns");
}

TEST(CostModel, CountsBytesAtTheShareOfTheBandwidth) {
  const cost::Costs splits = {.beside = {.per_block = 0, .per_split = 7}};
  EXPECT_EQ(cost::by_memory(splits, 348, 132).per_block, 10);
  EXPECT_EQ(cost::by_memory(splits, 348, 132).per_split, 7);
  EXPECT_EQ(cost::by_memory({}, 1, 132).per_block, 1);
  EXPECT_EQ(cost::block_alone(650, 132), 348);
  // Alone a multiprocessor reads as fast where all together read half of that.
  schedule::Workers slower = 132;
  slower.memory = 2;
  EXPECT_EQ(cost::by_memory(splits, 348, slower).per_block, 20);
  EXPECT_EQ(cost::by_memory(splits, 348, slower).per_split, 14);  // as many blocks as before
  EXPECT_EQ(cost::by_memory(splits, 348, slower, 2).per_block, 15);
  EXPECT_EQ(cost::by_memory(splits, 348, 132, 2).per_block, 10);
  EXPECT_EQ(cost::block_alone(1300, slower), 348);
  EXPECT_EQ(cost::by_team({.per_block = 80}, 8).per_block, 10);
}

TEST(CostModel, ABlockTakesWhatBindsIt) {
  const cost::Costs costs = {
      .beside = {.per_block = 100, .per_split = 10, .per_call = -20, .per_block_alone = 90},
      .block_memory = 80,
      .block_products = 60};
  schedule::Workers workers = 132;
  EXPECT_EQ(costs.on(workers).per_block, 100);
  workers.memory = 1.5;
  EXPECT_EQ(costs.on(workers).per_block, 120);
  EXPECT_EQ(costs.on(workers).per_block_near, 100);  // as with an H200's memory
  EXPECT_EQ(costs.on(workers).per_split, 12);
  workers.products = 4;
  EXPECT_EQ(costs.on(workers).per_block, 240);
  EXPECT_EQ(costs.on(workers).per_block_alone, 240);
  workers.clock = 3;
  EXPECT_EQ(
      cost::to_string(costs.on(workers)),
      "per_block 300, per_split 30, per_call -60, per_merge 0, per_block_alone 270, per_block_near 300 ns");
}

TEST(CostModel, OfTeamsScalesWhatTheyStream) {
  schedule::Workers workers = 132;
  workers.memory = 24;
  workers.clock = 1.5;
  cost::TeamCosts costs = {.call = 10,
                           .shared_merge = 20,
                           .lone_merge = 30,
                           .block_here = 40,
                           .block_alone = 50,
                           .block_streaming = 60,
                           .block_memory = 0,
                           .lone_request = -70};
  EXPECT_EQ(cost::to_string(costs.on(workers)),
            "call 15, shared_merge 30, lone_merge 45, block_here 60, block_alone 150, block_streaming 1440, "
            "lone_request -105 ns");
  EXPECT_TRUE(cost::memory_binds(costs.on(workers)));
  EXPECT_FALSE(cost::memory_binds(costs));
  costs.block_memory = 10;  // the rest of a block takes clocks, alone as well
  EXPECT_EQ(costs.on(workers).block_streaming, 240);
  EXPECT_EQ(costs.on(workers).block_alone, 75);
}

TEST(CostDevices, AreKnownByTheirDriversNames) {
  for (const auto& [name, known] : {std::pair{"NVIDIA H200", "H200"},
                                    {"NVIDIA H200 NVL", "H200 NVL"},
                                    {"NVIDIA H100 80GB HBM3", "H100"},
                                    {"NVIDIA H100 PCIe", "H100 PCIe"},
                                    {"NVIDIA H100 NVL", "H100 NVL"},
                                    {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", "H100"},
                                    {"NVIDIA H800", "H800"},
                                    {"NVIDIA H20", "H20"},
                                    {"NVIDIA H20-3e", "H20-3e"},
                                    {"NVIDIA GH200 480GB", "GH200"},
                                    {"NVIDIA GH200 144G HBM3e", "GH200 144G HBM3e"},
                                    {"H100", "H100"}}) {
    const cost::Gpu* gpu = cost::find_gpu(name);
    ASSERT_NE(gpu, nullptr) << name;
    EXPECT_EQ(gpu->name, known) << name;
  }
  for (const char* name : {"", "NVIDIA ", "NVIDIA A100-SXM4-80GB", "NVIDIA H2000", "NVIDIA H1"}) {
    EXPECT_EQ(cost::find_gpu(name), nullptr) << name;
  }
}

TEST(CostDevices, AreBesideAnH200) {
  const auto factors = [](const schedule::Workers& w) { return std::array{w.memory, w.clock, w.products}; };
  const std::array<float, 3> same = {1, 1, 1};
  EXPECT_EQ(factors(cost::workers_of(*cost::find_gpu("H200"))), same);
  EXPECT_EQ(factors(schedule::Workers(132)), same);
  const schedule::Workers h100 = cost::workers_of(*cost::find_gpu("H100"));
  EXPECT_EQ(h100.count, 132);
  EXPECT_NEAR(h100.memory, 4.68 / 3.09, 1e-6);
  EXPECT_EQ(h100.clock, 1);
  // A slice has as much memory a multiprocessor.
  EXPECT_EQ(cost::workers_of(*cost::find_gpu("H100"), 60).memory, h100.memory);
  const schedule::Workers h20 = cost::workers_of(*cost::find_gpu("H20"));
  EXPECT_LT(h20.memory, 0.8F);
  EXPECT_EQ(h20.products, 4);
  // What drivers say of both: MHz of the memory, bits, MHz.
  EXPECT_NEAR(cost::workers_of(cost::gpu_from_driver(132, 3201, 6144, 1980), 132).memory, 1, 0.03);
  EXPECT_NEAR(cost::workers_of(cost::gpu_from_driver(132, 2619, 5120, 1980), 132).memory, h100.memory, 0.03);
  EXPECT_NEAR(cost::workers_of(cost::gpu_from_driver(114, 1593, 5120, 1755), 114).memory,
              cost::workers_of(*cost::find_gpu("H100 PCIe")).memory, 0.05);
}

TEST(CostDevices, ReadFromL2WhatFitsThere) {
  const schedule::Workers h100 = cost::workers_of(*cost::find_gpu("H100"));
  EXPECT_EQ(cost::reading(h100, 20e6).memory, 1);
  EXPECT_EQ(cost::reading(h100, 60e6).memory, h100.memory);
  const float between = cost::reading(h100, 41e6).memory;
  EXPECT_GT(between, 1.2);
  EXPECT_LT(between, 1.3);
  EXPECT_EQ(cost::reading(schedule::Workers(132), 41e6).memory, 1);
}

/// The sum of all kernels' estimates of sparse decode of 28 requests on an H100: by its own memory, or as if
/// all were in L2.
std::int64_t estimate_of_28(DecodeProblem problem, bool in_l2) {
  problem.query.batch = 28;
  problem.query.heads = 16;
  problem.options.softmax_scale = 1;
  Executor executor;
  executor.backend = Backend::kCuda;
  schedule::Workers workers = cost::workers_of(*cost::find_gpu("H100"));
  if (in_l2) workers.memory = workers.clock;
  Result<std::vector<Candidate>> list = candidates(problem, executor, workers);
  std::int64_t sum = 0;
  if (!list.ok()) return sum;
  for (const Candidate& candidate : *list) {
    if (candidate.reason.empty()) sum += candidate.times.equal;
  }
  return sum;
}

TEST(CostDevices, CountTheBytesOfEachFormatAndOfBothCaches) {
  DecodeProblem problem;
  problem.cache.format = KvFormat::kFp8_584;
  problem.cache.qk_dim = problem.cache.v_dim = 512;
  EXPECT_EQ(token_bytes(problem.cache), 584);
  // 33 MB fit into L2; of 1,024 bytes a token they would be 59.
  problem.sparse = {.enabled = true, .topk = 2048};
  EXPECT_GT(estimate_of_28(problem, true), 0);
  EXPECT_EQ(estimate_of_28(problem, false), estimate_of_28(problem, true));
  // 67 MB of two caches do not, though those of the first one alone would.
  problem.cache.extra = {.enabled = true, .indexed = true, .topk = 2048};
  EXPECT_GT(estimate_of_28(problem, false), estimate_of_28(problem, true));
  problem.cache.extra = {.enabled = true, .indexed = false, .max_pages = 32};
  EXPECT_GT(estimate_of_28(problem, false), estimate_of_28(problem, true));

  DecodeProblem::Cache cache;
  EXPECT_EQ(token_bytes(cache), 1152);
  cache.format = KvFormat::kE4m3;
  EXPECT_EQ(token_bytes(cache), 576);
  cache.format = KvFormat::kFp8_656;
  EXPECT_EQ(token_bytes(cache), 656);
  cache = {.heads = 8, .qk_dim = 128, .v_dim = 64, .layout = KvLayout::kSeparate};
  EXPECT_EQ(token_bytes(cache), 2 * 8 * 192);
  cache.format = KvFormat::kE4m3;
  EXPECT_EQ(token_bytes(cache), 8 * 192);
}

struct Call {
  int batch, tokens, heads;
  const char* kernel;
  std::int64_t estimate;  ///< Nanoseconds.
  KvFormat format = KvFormat::kPlain;
  bool sparse = false;
  int page_size = 64;
  int separate_heads = 0;  ///< KV heads of separate keys and values; 0: a latent cache.
};

/// What the picks were measured with. A line that a refit changes is one to look at.
constexpr Call kCalls[] = {
    {1, 1024, 16, "mla_16_team16", 6215},
    {1, 4096, 16, "mla_16_team8", 7186},
    {4, 4096, 16, "mla_16_team8", 10624},
    {16, 4096, 16, "mla_16", 25729},
    {64, 4096, 16, "mla_16", 80460},
    {128, 4096, 16, "mla_16", 136373},
    {128, 4096, 8, "mla_16_transposed", 135465},
    {1, 8192, 128, "mla_64_pingpong", 13200},
    {8, 8192, 64, "mla_64_pingpong", 29350},
    {32, 2048, 128, "mla_64_roles", 34940},
    {48, 4096, 128, "mla_64_roles", 99930},
    {96, 4096, 64, "mla_64_pingpong", 127809},
    {128, 4096, 128, "mla_64_roles", 222125},
    {128, 4096, 64, "mla_64_roles", 145168, KvFormat::kPlain, false, 1},
    {1, 4096, 16, "fp8_16_team8", 8991, KvFormat::kFp8_656},
    {32, 2048, 16, "fp8_32", 22381, KvFormat::kFp8_656, true},
    {128, 4096, 32, "fp8_32", 105227, KvFormat::kFp8_656},
    {128, 4096, 64, "fp8_64", 128878, KvFormat::kFp8_656},
    {2, 2048, 128, "mla_64_pingpong", 15768, KvFormat::kFp8_656, true},
    {64, 2048, 128, "mla_64_roles", 57096, KvFormat::kPlain, true},
    {64, 4096, 32, "gqa_16", 240855, KvFormat::kPlain, false, 16, 8},
    {1, 4096, 32, "gqa_16", 10400, KvFormat::kPlain, false, 16, 8},
    {16, 4096, 32, "gqa_128_split", 15505, KvFormat::kPlain, false, 16, 1},
    {1, 512, 32, "gqa_16", 7250, KvFormat::kPlain, false, 16, 8},
};

DecodeProblem problem_of(const Call& call) {
  DecodeProblem problem;
  problem.query.batch = call.batch;
  problem.query.heads = call.heads;
  problem.options.softmax_scale = 1;
  auto& cache = problem.cache;
  cache.format = call.format;
  cache.page_size = call.page_size;
  if (call.separate_heads > 0) {
    cache.layout = KvLayout::kSeparate;
    cache.heads = call.separate_heads;
    cache.qk_dim = cache.v_dim = 128;
  }
  if (call.sparse) {
    problem.sparse = {.enabled = true, .topk = call.tokens};
  } else {
    cache.max_pages = (call.tokens + call.page_size - 1) / call.page_size;
  }
  return problem;
}

/// The same on an H100: what memory binds takes half as long again, and some picks are others.
constexpr Call kCallsOnH100[] = {
    {1, 1024, 16, "mla_16_team16", 6215},
    {4, 4096, 16, "mla_16_team8", 10624},
    {8, 8192, 16, "mla_16", 34060},
    {24, 2048, 16, "mla_16_team4", 25162},
    {64, 4096, 16, "mla_16", 104780},
    {128, 4096, 16, "mla_16", 202060},
    {96, 4096, 64, "mla_64_pingpong", 159856},
    {128, 4096, 128, "mla_64_roles", 244545},
    {128, 4096, 32, "fp8_32", 112438, KvFormat::kFp8_656},
    {64, 4096, 32, "gqa_16", 358100, KvFormat::kPlain, false, 16, 8},
};

void expect_picks(std::span<const Call> calls, const schedule::Workers& workers) {
  Executor executor;
  executor.backend = Backend::kCuda;
  for (const Call& call : calls) {
    const DecodeProblem problem = problem_of(call);
    Result<std::vector<Candidate>> list = candidates(problem, executor, workers);
    ASSERT_TRUE(list.ok()) << list.status().message();
    const Candidate* picked = cheapest(*list);
    ASSERT_NE(picked, nullptr);
    EXPECT_STREQ(picked->kernel->name, call.kernel) << to_string(problem);
    EXPECT_EQ(picked->times.equal, call.estimate) << to_string(problem);
  }
}

TEST(Costs, PickWhatTheyWereMeasuredToPick) {
  expect_picks(kCalls, 132);
  expect_picks(kCalls, cost::workers_of(*cost::find_gpu("NVIDIA H200")));
}

TEST(Costs, PickOnAnH100) {
  expect_picks(kCallsOnH100, cost::workers_of(*cost::find_gpu("NVIDIA H100 80GB HBM3")));
}

}  // namespace
}  // namespace flashlatent
