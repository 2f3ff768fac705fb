// `flashlatent bench shapes` as its users run it: files of shapes, shapes that are drawn, what is said of
// all.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "program.h"

namespace flashlatent::io {
namespace {

class Shapes : public Program {
 protected:
  /// A file of this text.
  std::string written(const std::string& text) {
    const std::string path = file("shapes.json");
    std::ofstream(path) << text;
    return path;
  }
};

constexpr const char* kTwo =
    R"([{"kind":"paged","b":2,"s_q":2,"h_q":4,"h_kv":2,"d":64,"lengths":[70,9],"ms":{"fa3":4e3,"flashlatent":1e3}},
        {"kind":"mla","b":3,"s_q":1,"h_q":4,"h_kv":1,"d":576,"lengths":100,"ms":{"fa3":9e3,"flashmla":2e3}}])";

TEST_F(Shapes, AreTimedBesideTheFilesTimes) {
  expect_right("bench shapes " + written(kTwo) + " --backend cpu --repeats 1 --json " + file("out.json"),
               {"paged b2 s_q2 h4-2 d64 s_k39 varied", "latent b3 s_q1 h4 s_k100 uniform", "of flashmla",
                "time over the file's best", "furthest behind"});
  const auto out = json("out.json");
  for (const char* key : {"machine", "source_tree", "command", "roof", "file", "summary", "results"}) {
    EXPECT_TRUE(out.contains(key)) << key;
  }
  const auto &paged = out.at("results").at(0), &latent = out.at("results").at(1);
  EXPECT_EQ(paged.at("kernel"), "cpu_dense");
  EXPECT_EQ(paged.at("lengths"), nlohmann::json({70, 9}));
  EXPECT_EQ(paged.at("layers"), 1);
  EXPECT_EQ(paged.at("rival"), "fa3");
  EXPECT_NEAR(double(paged.at("ratio")), double(paged.at("ms")) / 4e3, 1e-9);
  EXPECT_NEAR(double(paged.at("ratio_to_ours_in_file")), double(paged.at("ms")) / 1e3, 1e-9);
  EXPECT_EQ(latent.at("kind"), "latent");
  EXPECT_EQ(latent.at("d_v"), 512);
  EXPECT_EQ(latent.at("rival"), "flashmla");
  const auto& ratio = out.at("summary").at("ratio");
  EXPECT_NEAR(double(ratio.at("all").at("geometric_mean")),
              std::sqrt(double(paged.at("ratio")) * double(latent.at("ratio"))), 1e-9);
  EXPECT_EQ(ratio.at("paged s_q 2").at("shapes"), 1);
  EXPECT_EQ(ratio.at("all").at("above_1_03"), 0);
  EXPECT_EQ(out.at("summary").at("ratio").at("latent").at("shapes"), 1);
}

TEST_F(Shapes, ByEveryKernelThatTakesThem) {
  expect_right(
      "bench shapes " + written(kTwo) + " --backend cpu --repeats 1 --all-kernels --json " + file("out.json"),
      {"picked kernels beside the best by name: 2 of 2 within 3 % (100.0 %), 0 beyond 8 %",
       "(picked); 1.000 of the best"});
  const auto out = json("out.json");
  EXPECT_EQ(out.at("summary").at("picks").at("shapes"), 2);
  EXPECT_EQ(out.at("summary").at("picks").at("within_3_percent"), 2);
  // The oracle runs only by name.
  for (const auto& row : out.at("results")) {
    EXPECT_EQ(row.at("kernels_ms").size(), 1);
    EXPECT_GT(row.at("kernels_ms").at("cpu_dense"), 0);
  }
}

// A plan for another GPU: its costs, and as many multiprocessors as it has.
TEST_F(Shapes, ArePlannedForAGpu) {
  const std::string plan =
      "plan --batch 128 --tokens 4096 --lengths uniform --heads 16 --brief --json " + file("plan.json");
  const auto planned = [&](const std::string& options) {
    expect_right(plan + options);
    return json("plan.json");
  };
  const auto h200 = planned(""), named = planned(" --gpu H200"),
             h100 = planned(" --gpu 'NVIDIA H100 80GB HBM3'");
  EXPECT_EQ(h200.at("costs"), named.at("costs"));
  EXPECT_EQ(h200.at("workers").at("memory"), 1);
  EXPECT_GT(double(h100.at("estimate_ms")), 1.4 * double(h200.at("estimate_ms")));
  EXPECT_EQ(planned(" --gpu H20").at("workers").at("count"), 78);
  EXPECT_EQ(planned(" --gpu H20 --workers 40").at("workers").at("count"), 40);
  expect_refused("plan --gpu A100", {"--gpu is 'A100'", "H200, H100"});
  for (const char* cpu : {"--backend cpu", "--kernel cpu_dense"}) {
    expect_refused(std::string("plan --gpu H100 ") + cpu, {"--gpu is 'H100'", "CPU's kernels"});
  }
  expect_refused("plan --layout packed", {"--layout", "--dim"});
}

// Times of another device are compared by the floor of each.
TEST_F(Shapes, OfAnotherDeviceAreComparedByTheFloor) {
  const std::string text = R"({"gpu":"NVIDIA H100","roof":{"read_tbps":3,"matmul_tflops":9e9},"shapes":)";
  expect_right("bench shapes " + written(text + kTwo + "}") +
                   " --backend cpu --repeats 1 --layers 2 --json " + file("out.json"),
               {"the file's times are of NVIDIA H100"});
  const auto out = json("out.json");
  EXPECT_TRUE(out.at("file").at("by_floor"));
  for (const auto& row : out.at("results")) {
    const double best = row.at("rival") == "fa3" ? 4e3 : 2e3,
                 bytes = double(row.at("gbps")) * double(row.at("ms")) * 1e6;
    EXPECT_NEAR(double(row.at("ratio")),
                double(row.at("ms")) / double(row.at("floor_ms")) * (bytes / 3 * 1e-9) / best,
                1e-6 * double(row.at("ratio")));
    EXPECT_EQ(row.at("layers"), 2);
  }
}

TEST_F(Shapes, AreDrawnBySeed) {
  auto names = [&](const std::string& options) { return run("bench shapes --list" + options).out; };
  const std::string list = names(" --count 200 --seed 3");
  EXPECT_EQ(names(" --count 200 --seed 3"), list);
  EXPECT_NE(names(" --count 200 --seed 4"), list);
  EXPECT_TRUE(list.starts_with(names(" --count 20 --seed 3")));
  for (const char* part :
       {"paged b", "latent b", "s_q1 ", "s_q2 ", "s_q4 ", "uniform", "varied", "d64 ", "d256 "}) {
    EXPECT_NE(list.find(part), std::string::npos) << part;
  }
}

// The project's own file can be read.
TEST_F(Shapes, OfTheH100) {
  const std::string path = std::string(FLASHLATENT_SOURCE_DIR) + "/bench/shapes/h100.json";
  const Outcome outcome = run("bench shapes " + path + " --list");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 169);
}

TEST_F(Shapes, StayAsTheyAreInTheirFile) {
  const std::string path = written(kTwo);
  expect_refused("bench shapes " + path + " --repeats 1 --json " + path, {"--json", "the same file as FILE"});
  EXPECT_EQ(json("shapes.json").size(), 2);
}

TEST_F(Shapes, OfAWrongFileAreRefused) {
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    expect_refused("bench shapes " + written(text), parts);
  };
  expect_refused("bench shapes", {"FILE", "--count"});
  expect_refused("bench shapes " + file("none.json"), {"none.json"});
  expect_refused("bench shapes " + written(kTwo) + " --count 3", {"--count", "FILE"});
  expect_refused("bench shapes " + written(kTwo) + " --filter zzz", {"--filter 'zzz'"});
  expect_refused("bench shapes --count 0", {"--count", "0"});
  refused("no", {"shapes.json", "no JSON"});
  refused("{}", {"no list of shapes"});
  refused("[]", {"has no shape"});
  refused(R"({"gpu":3,"shapes":[]})", {"gpu is 3"});
  refused(R"({"gpu":"x","shapes":[]})", {"roof"});
  refused("[7]", {"shape 1", "is 7"});
  // So deep that a function that calls itself for each level runs out of stack.
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  for (const std::string& text : {deep, "[{\"kind\":" + deep + "}]", "{\"shapes\":[" + deep + "]}"}) {
    refused(text, {"nested more than 8 deep"});
  }
  const std::string paged = R"("kind":"paged","b":2,"s_q":1,"h_q":4,"h_kv":2,"d":64)";
  for (const auto& [from, to, said] :
       {std::tuple{R"("paged")", R"("gqa")", "kind is \"gqa\""},
        {R"("b":2)", R"("b":0)", "b is 0"},
        {R"("s_q":1)", R"("s_q":1.5)", "s_q is 1.5"},
        {R"("h_q":4,)", "", "h_q is null"},
        {R"("h_kv":2)", R"("h_kv":3)", "multiple"},
        {R"("d":64)", R"("d":"64")", "d is \"64\""},
        {R"("kind":"paged")", R"("kind":"latent")", "of a latent cache 576 and 1"}}) {
    std::string text = paged;
    text.replace(text.find(from), std::string(from).size(), to);
    refused("[{" + text + R"(,"lengths":9}])", {"shapes.json: shape 1", said});
  }
  for (const auto& [lengths, said] : {std::tuple{R"("lengths":-1)", "lengths is -1"},
                                      {R"("lengths":[1])", "a list of b = 2"},
                                      {R"("lengths":[1,true])", "lengths is [1,true]"},
                                      {R"("lengths":9,"ms":3)", "ms is 3"},
                                      {R"("lengths":9,"ms":{"fa3":0})", "ms.fa3 is 0"},
                                      {R"("lengths":9,"ms":{"fa3":1e-300})", "from 1e-06 to"},
                                      {R"("lengths":9,"ms":{"fa3":1e300})", "from 1e-06 to"}}) {
    refused("[{" + paged + "," + lengths + "}]", {"shape 1", said});
  }
}

}  // namespace
}  // namespace flashlatent::io
