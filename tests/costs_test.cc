// Tables of costs as text (flashlatent/costs.h), and what calls are cut by.
#include "flashlatent/costs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "choose/candidates.h"
#include "cost/device.h"
#include "cost/table_file.h"
#include "plan/geometries.h"

namespace flashlatent {
namespace {

/// The built-in table as that of a GPU.
std::string table_of(const std::string& gpu) {
  std::string text = costs_text("GPU without a table");
  return text.replace(0, text.find('\n'), "gpu " + gpu);
}

DecodeProblem problem() {
  DecodeProblem p;
  p.query = {.batch = 4, .tokens = 1, .heads = 8};
  p.cache.max_pages = 100;
  p.options.softmax_scale = 0.1F;
  return p;
}

schedule::Workers workers_of(const char* gpu) {
  return cost::workers_of(*cost::find_gpu(gpu));
}

std::int64_t time_of(const char* kernel, const schedule::Workers& workers) {
  Executor executor;
  executor.backend = Backend::kCuda;
  const auto list = candidates(problem(), executor, workers);
  for (const Candidate& candidate : *list) {
    if (candidate.kernel->name == std::string(kernel)) return candidate.times.equal;
  }
  return -1;
}

TEST(CostTables, TextIsReadAsItWasWritten) {
  const cost::Table table = cost::built_in_table();
  const Result<cost::Table> again = cost::parse_table(cost::to_text(table));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(cost::to_text(*again), cost::to_text(table));
  EXPECT_EQ(again->gpu, "H200");
}

TEST(CostTables, OnlyWhatIsAddedToOthersMayBeNegative) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = table_of("X");
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << "the table has no " << from;
    return cost::parse_table(at == std::string::npos ? text : text.replace(at, from.size(), to));
  };
  EXPECT_TRUE(with("per_call=3900", "per_call=-3900").ok());
  const Result<cost::Table> table = with("per_merge=5400", "per_merge=-421");
  ASSERT_FALSE(table.ok());
  EXPECT_NE(table.status().message().find("'per_merge=-421'; a whole number of nanoseconds from 0 to"),
            std::string::npos)
      << table.status().message();
}

/// Whatever a file may say, each kernel takes or declines a call, and a plan of it can be made.
TEST(CostTables, AnyTableThatIsReadCanBePlannedBy) {
  std::mt19937 engine(3);
  std::vector<DecodeProblem> problems(6, problem());
  problems[1].query = {.batch = 1, .tokens = 1, .heads = 16};
  problems[2].query = {.batch = 200, .tokens = 2, .heads = 128};
  problems[3].cache.format = KvFormat::kFp8_656;
  problems[4].sparse = {.enabled = true, .topk = 2048};
  problems[4].cache.max_pages = 0;
  problems[5].cache = {.heads = 2, .qk_dim = 128, .v_dim = 128, .page_size = 16, .max_pages = 100};
  problems[5].cache.layout = KvLayout::kSeparate;
  for (int round = 0; round < 60; ++round) {
    cost::Table table = cost::built_in_table();
    for (cost::Constants& constants : table.constants) {
      for (const cost::Field& field : cost::fields()) {
        std::int32_t& constant = constants.*field.member;
        if (constant == 0 || engine() % 2 == 0) continue;
        const auto most = static_cast<std::int32_t>(1 << engine() % 24);
        constant = 1 + static_cast<std::int32_t>(engine() % most);
        if (field.may_be_negative && engine() % 2 == 0) constant = -constant;
      }
    }
    ASSERT_TRUE(cost::parse_table(cost::to_text(table)).ok());
    schedule::Workers workers = workers_of("H200");
    workers.costs = &table;
    for (const DecodeProblem& p : problems) {
      Executor executor;
      executor.backend = Backend::kCuda;
      const Result<std::vector<Candidate>> list = candidates(p, executor, workers);
      ASSERT_TRUE(list.ok()) << list.status().message();
      for (const Candidate& candidate : *list) {
        if (!candidate.reason.empty()) continue;
        EXPECT_GT(candidate.times.equal, 0) << candidate.kernel->name;
        const Status status = schedule::validate(candidate.geometry);
        EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnsupported)
            << candidate.kernel->name << ": " << status.message();
      }
    }
  }
}

TEST(CostTables, ATableOfAnH200sNumbersChangesNothingThere) {
  const std::int64_t before = time_of("mla_16_transposed", workers_of("H200"));
  ASSERT_TRUE(set_costs(table_of("H200")).ok());
  const schedule::Workers own = workers_of("H200");
  ASSERT_NE(own.costs, nullptr);
  EXPECT_EQ(time_of("mla_16_transposed", own), before);
}

TEST(CostTables, ADevicesOwnTableIsNotScaled) {
  const schedule::Workers scaled = workers_of("H20");
  EXPECT_EQ(scaled.costs, nullptr);
  // A comment, a blank line, and a kernel that is slow there.
  std::string text = "# measured\n\n" + table_of("NVIDIA H20");
  const std::size_t at = text.find("lone_share=", text.find("mla_16_transposed times "));
  text.replace(at, text.find_first_of(" \n", at) - at, "lone_share=500000");
  ASSERT_TRUE(set_costs(text).ok());
  const schedule::Workers own = workers_of("H20");
  ASSERT_NE(own.costs, nullptr);
  EXPECT_GE(time_of("mla_16_transposed", own), 500000);
  EXPECT_LT(time_of("mla_16_transposed", scaled), 500000);
  EXPECT_EQ(costs_text("NVIDIA H20"), costs_text("H20"));
  EXPECT_NE(costs_text("H20").find("lone_share=500000"), std::string::npos);
  EXPECT_EQ(workers_of("H20-3e").costs, nullptr) << "a name's prefix ends at a word";
}

TEST(CostTables, RefusesWhatIsNoTable) {
  const auto refused = [](const std::string& text, const std::string& piece) {
    const Status status = set_costs(text);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << piece;
    EXPECT_NE(status.message().find(piece), std::string::npos) << status.message();
  };
  refused("", "no line 'gpu NAME'");
  refused("gpu\n", "line 1 of the costs is 'gpu'");
  refused("gpu H20\ngpu H20\n", "line 2 of the costs is 'gpu H20'");
  refused("gpu H20\n", "the costs have no line 'plan packing ...'");
  const std::string table = cost::to_text(cost::built_in_table()), line = "gqa_128_split e4m3_dim64 ";
  const std::size_t at = table.find(line);
  refused(
      std::string(table).erase(at, table.find('\n', at) + 1 - at),
      "the costs have no line '" + line.substr(0, line.size() - 1) +
          " ...'; a line for each that `flashlatent costs` prints is accepted, and those of other versions");
  refused("gpu H20\nmla_17 rows16 per_block=1\n", "line 2 of the costs begins with 'mla_17 rows16'");
  refused("gpu H20\nmla_16\n", "line 2 of the costs begins with 'mla_16 '");
  refused("gpu H20\nmla_16 rows16 per_block=1\nmla_16 rows16 per_block=1\n", "line 3 of the costs is about");
  refused("gpu H20\nmla_16 rows16 per_blok=1\n", "'per_blok=1'; CONSTANT=NANOSECONDS of per_block, ");
  for (const char* number : {"", "1.5", "x", "999999999999", "1e3"}) {
    refused(std::string("gpu H20\nmla_16 rows16 per_block=") + number + "\n",
            "a whole number of nanoseconds");
  }
  refused("gpu H20\nmla_16 rows16 per_block=1 per_block=2\n", "has per_block twice");
  refused(std::string("\0\xff", 2), "line 1 of the costs begins with");
}

TEST(CostTablesDeathTest, NoneIsSetAfterAGpuWasAskedFor) {
  EXPECT_EXIT(
      {
        const bool before = set_costs(table_of("Hopper")).ok();
        const bool used = cost::table_for_calls("NVIDIA Hopper") != nullptr;
        const Status after = set_costs(table_of("Hopper"));
        const bool refused = after.message().find("before the first call") != std::string::npos;
        std::exit(before && used && refused ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(CostTables, AFileThatCannotBeReadIsNamed) {
  const Status none = load_costs("/no/such/file");
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.message().find("'/no/such/file' cannot be read"), std::string::npos);
  EXPECT_NE(load_costs(testing::TempDir()).message().find("cannot be read"), std::string::npos);
  const std::string path = testing::TempDir() + "flashlatent_costs";
  std::ofstream(path) << "";
  EXPECT_NE(load_costs(path).message().find("'" + path + "': the costs have no line 'gpu NAME'"),
            std::string::npos);
  std::ofstream(path) << "gpu H20\n";
  EXPECT_NE(load_costs(path).message().find("'" + path + "': the costs have no line"), std::string::npos);
  std::ofstream(path) << table_of("Hopper of a test");
  EXPECT_TRUE(load_costs(path).ok());
  std::remove(path.c_str());
  EXPECT_NE(cost::table_of("NVIDIA Hopper of a test 80GB"), nullptr);
}

}  // namespace
}  // namespace flashlatent
