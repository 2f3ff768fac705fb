// Tables of costs as text (flashlatent/costs.h), and what calls are cut by.
#include "flashlatent/costs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "choose/candidates.h"
#include "cost/device.h"
#include "cost/table_file.h"

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
  const std::string path = testing::TempDir() + "flashlatent_costs";
  std::ofstream(path) << "gpu H20\n";
  EXPECT_NE(load_costs(path).message().find("'" + path + "': the costs have no line"), std::string::npos);
  std::ofstream(path) << table_of("Hopper of a test");
  EXPECT_TRUE(load_costs(path).ok());
  std::remove(path.c_str());
  EXPECT_NE(cost::table_of("NVIDIA Hopper of a test 80GB"), nullptr);
}

}  // namespace
}  // namespace flashlatent
