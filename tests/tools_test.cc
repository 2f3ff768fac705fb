// The program as its users run it: exit codes, what it prints, what it writes.
#include "program.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "core/formats/formats.h"

namespace flashlatent::io {
namespace {

TEST_F(Program, ShowsHelpAndVersion) {
  for (const char* command : {"", "info", "decode", "check", "bench", "replay", "make-case"}) {
    expect_right(std::string(command) + " --help", {"Usage: flashlatent"});
  }
  expect_right("--version");
}

TEST_F(Program, DecodeSaysWhichPageNumberItSkips) {
  const std::string path = file("case.safetensors");
  const std::string shape = " --heads 2 --lengths 600 --page-size 16 ";
  for (const bool invalid : {false, true}) {
    expect_right("make-case " + path + shape + (invalid ? "--invalid-pages" : ""));
    const Outcome outcome = run("decode " + path);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("block_table[0, ") != std::string::npos, invalid) << outcome.err;
  }
}

TEST_F(Program, MakeCaseOfEveryFormat) {
  const std::string path = file("case.safetensors");
  for (const LatentFormat* format : kFormats) {
    SCOPED_TRACE(std::string(format->name) + " by " + to_string(format->place));
    const std::string place =
        has_places(format->format) ? std::string(" --scale-place ") + to_string(format->place) : "";
    for (const char* tokens : {"", " --topk 33"}) {
      expect_right("make-case " + path + " --heads 4 --lengths 40,0,9 --page-size 3 --kv " + format->name +
                   place + tokens);
      expect_right("decode " + path, {" rows right"});
    }
  }
}

TEST_F(Program, Info) {
  expect_right("info --json " + file("info.json"), {"backend cpu: available", "cpu_dense", "source tree"});
  const auto info = json("info.json");
  EXPECT_TRUE(info.at("backends").at("cpu").at("available"));
  EXPECT_FALSE(info.at("backends").at("cpu").at("devices").empty());
  // Why a backend is not available stands behind that.
  const auto& cuda = info.at("backends").at("cuda");
  expect_right("info",
               {cuda.at("available") ? "backend cuda: available\n"
                                     : "backend cuda: not available\n  " + std::string(cuda.at("reason"))});
}

TEST_F(Program, CheckSmall) {
  expect_right("check --suite small --json " + file("check.json"), {" 0 wrong, 0 refused"});
  const auto check = json("check.json");
  EXPECT_EQ(check.at("wrong"), 0);
  EXPECT_EQ(check.at("right"), check.at("results").size());
  EXPECT_EQ(check.at("max_refused"), 0);
  for (const auto& result : check.at("results")) EXPECT_EQ(result.at("kernel"), "cpu_dense");
  // The command has the last part of paths, and shards as they are.
  expect_right("check --suite small --shard 1/20 --json " + file("shard.json"), {" 0 wrong, 0 refused"});
  EXPECT_EQ(json("shard.json").at("command"),
            "flashlatent check --suite small --shard 1/20 --json shard.json");
}

// The oracle has no groups: it refuses one case of the small suite.
TEST_F(Program, CheckFailsWhereTooManyCasesAreRefused) {
  const std::string one = "check --suite small --kernel reference --filter 'paged prefix'";
  for (const auto& [options, code, said] :
       {std::tuple{"", 1, "all of 1 cases were refused"},
        {" --max-refused 0", 1, "1 of 1 cases were refused, and 0 may be"},
        {" --max-refused 1", 0, "0 wrong, 1 refused"}}) {
    const Outcome outcome = run(one + options + " --json " + file("refused.json"));
    EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find(said), std::string::npos) << outcome.out;
    EXPECT_EQ(json("refused.json").at("refused"), 1);
    EXPECT_EQ(json("refused.json").at("results").at(0).at("kernel"), "");
  }
  expect_refused("check --suite small --max-refused -1", {"--max-refused"});
}

// The CPU takes all that is valid, and a case depends on its number and the seed only.
TEST_F(Program, CheckRandom) {
  expect_right("check --suite random --backend cpu --cases 60 --seed 5 --json " + file("check.json"),
               {" 0 wrong, 0 refused"});
  const auto cases = [&](const std::string& options) {
    return run("check --suite random --list" + options).out;
  };
  const std::string list = cases(" --cases 60 --seed 5");
  EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), 60);
  EXPECT_EQ(cases(" --cases 70 --seed 5").rfind(list, 0), 0U);
  EXPECT_NE(cases(" --cases 60 --seed 6"), list);
}

TEST_F(Program, BenchSuitesAreThePublishedTables) {
  for (auto [suite, rows, name] : {std::tuple{"flashmla", 32, "b128 s_q2 h64 s_k8192 normal\n"},
                                   {"etap", 16, "b32 s_q1 h16 s_k65536 uniform fp16\n"}}) {
    const Outcome list = run(std::string("bench dense --list --suite ") + suite);
    EXPECT_EQ(list.code, 0) << list.err;
    EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), rows) << list.out;
    EXPECT_NE(list.out.find(name), std::string::npos) << list.out;
  }
  expect_refused("bench dense --suite etap --filter b64", {"--filter", "b64"});
}

TEST_F(Program, BenchNamesAreUniqueInASuite) {
  for (const char* suite :
       {"dense --suite peers", "dense --suite flashmla", "dense --suite etap", "dense --suite fp8",
        "dense --suite between", "dense --suite pages", "dense --suite cpu", "dense --suite small",
        "sparse --suite peers", "sparse --suite plain", "sparse --suite cpu", "sparse --suite small",
        "paged --suite peers", "paged --suite page16", "paged --suite packed", "paged --suite prefix",
        "paged --suite prefill", "paged --suite cpu", "paged --suite small"}) {
    const Outcome list = run(std::string("bench ") + suite + " --list");
    ASSERT_EQ(list.code, 0) << list.err;
    std::istringstream lines(list.out);
    std::set<std::string> names;
    for (std::string name; std::getline(lines, name);)
      EXPECT_TRUE(names.insert(name).second) << suite << ": " << name;
  }
  EXPECT_EQ(run("bench paged --list --dtype fp16 --batch 2").out, "b2 h32-8 d128 s_k4096 uniform fp16\n");
}

TEST_F(Program, BenchComparesWithFloat64AndPricesBatchInvariance) {
  expect_right(
      "bench dense --suite small --repeats 3 --rmse --batch-invariant --explain --json " + file("bench.json"),
      {"rmse", "x variant", "cpu_dense: picked"});
  const auto bench = json("bench.json");
  EXPECT_EQ(bench.at("results").size(), 3U);
  // A case a line.
  std::ifstream written(file("bench.json"));
  int cases = 0;
  for (std::string line; std::getline(written, line);) cases += line.starts_with("  {\"name\":");
  EXPECT_EQ(cases, 3);
  for (const auto& row : bench.at("results")) {
    EXPECT_EQ(row.at("batch_invariant"), true);
    EXPECT_DOUBLE_EQ(row.at("batch_invariant_cost").get<double>(),
                     row.at("ms").get<double>() / row.at("ms_without_batch_invariant").get<double>());
    EXPECT_GT(row.at("rmse"), 0);
    EXPECT_LT(row.at("rmse"), 1e-3);
    EXPECT_GT(row.at("rows_compared"), 0);
    EXPECT_FLOAT_EQ(row.at("deviation"), 0.1F);
  }
  // The suite asks for it by itself; errors grow with the inputs.
  expect_right("bench dense --suite etap --filter 'b16 s_q1 h16 s_k512 ' --repeats 3 --json " +
               file("etap.json"));
  // A page table that reaches further than its lengths.
  expect_right("bench dense --batch 2 --heads 4 --tokens 70 --reach 1000 --rmse --repeats 1 --json " +
               file("reach.json"));
  EXPECT_EQ(json("reach.json").at("results").at(0).at("reach"), 1000);
  EXPECT_LT(json("reach.json").at("results").at(0).at("worst_ratio"), 1.0);
  expect_right(
      "bench dense --batch 2 --heads 4 --tokens 70 --reach 1000 --typical-tokens 64 --rmse --repeats 1 " +
      ("--json " + file("typical.json")));
  EXPECT_EQ(json("typical.json").at("results").at(0).at("typical_tokens"), 64);
  EXPECT_LT(json("typical.json").at("results").at(0).at("worst_ratio"), 1.0);
  const auto etap = json("etap.json").at("results").at(0);
  EXPECT_EQ(etap.at("dtype"), "fp16");
  EXPECT_EQ(etap.at("deviation"), 1.0);
  EXPECT_EQ(etap.at("rows_compared"), 32);
  EXPECT_GT(etap.at("rmse"), 1e-6);
  EXPECT_FALSE(etap.contains("batch_invariant_cost"));
}

TEST_F(Program, ReplaysAGqaModel) {
  expect_right("replay --synthetic --requests 2 --model gqa:6:2:40 --verify --verify-every 50",
               {"gqa:6:2:40", "6 heads", "verified"});
  expect_refused("replay --synthetic --model gqa:6:2", {"--model", "gqa:6:2"});
  expect_refused("replay --synthetic --model gqa:6:4:64", {"h_q is 6", "h_kv 4"});
  expect_refused("replay --synthetic --model gqa:6:2:64 --kv fp8_656", {"--kv is fp8_656"});
}

TEST_F(Program, BenchTimesUnroundedScales) {
  const std::string shape =
      "bench dense --batch 1 --tokens 70 --heads 4 --repeats 1 --with-unrounded-scales ";
  expect_right(shape + "--kv fp8_656 --json " + file("unrounded.json"), {"x unrounded"});
  EXPECT_GT(json("unrounded.json").at("results")[0].at("ms_unrounded_scales"), 0);
  expect_right(shape + "--json " + file("plain.json"), {"x unrounded"});
  EXPECT_FALSE(json("plain.json").at("results")[0].contains("ms_unrounded_scales"));
}

TEST_F(Program, BenchPaged) {
  expect_right(
      "bench paged --suite small --repeats 3 --rmse --with-cold --with-zeros --json " + file("paged.json"),
      {"floor ms", "cold ms", "x zeros"});
  const auto rows = json("paged.json").at("results");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[3].at("shared_tokens"), 192);
  EXPECT_EQ(rows[3].at("prefix_sharing"), "auto");
  EXPECT_EQ(rows[2].at("name"), "b1 h8-2 d128 s_k300 uniform s_q2 e4m3 packed page16");
  EXPECT_EQ(rows[2].at("layout"), "packed");
  EXPECT_EQ(rows[2].at("kv"), "e4m3");
  // Keys and values once, queries and outputs once.
  const double bytes = 300 * 2 * 2 * 128 + 2 * 8 * 128 * 4;
  EXPECT_NEAR(rows[2].at("gbps").get<double>() * rows[2].at("ms").get<double>() * 1e6, bytes, 1);
  for (const auto& row : rows) {
    EXPECT_GT(row.at("rmse"), 0);
    EXPECT_LT(row.at("rmse"), 2e-3);
    EXPECT_NEAR(row.at("roof_pct").get<double>(),
                100 * row.at("floor_ms").get<double>() / row.at("ms").get<double>(), 1e-6);
    EXPECT_EQ(row.at("cold"), false);
    EXPECT_GT(row.at("ms_cold_min"), 0);
    EXPECT_LE(row.at("ms_cold_min"), row.at("ms_cold"));
    EXPECT_LE(row.at("ms_cold"), row.at("ms_cold_max"));
    EXPECT_GT(row.at("ms_zeros"), 0);
  }
  expect_refused("bench paged --suite small --backend cpu --with-read", {"--with-read", "--backend cuda"});
  expect_refused("bench paged --cold --with-cold", {"--cold", "--with-cold"});
  expect_refused("bench paged --layout packed --dim 84", {"qk_dim is 84", "multiple of 8"});
  const Outcome list = run("bench paged --list --suite peers");
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 10) << list.out;
}

TEST_F(Program, MakesPagedCases) {
  expect_right(
      "make-case " + file("p") +
      " --layout packed --kv e4m3 --scales 2 --heads 6 --kv-heads 2 --dims 64/32 --page-size 8 --alibi "
      "--window 40 --soft-cap 20 --query-tokens 2 --causal");
  expect_right("decode " + file("p"), {"packed decode", "cap=20 alibi window=40", " rows right"});
  expect_refused("make-case " + file("p") + " --layout separate --kv e4m3 --scales 3 --heads 4 --kv-heads 2",
                 {"--scales is 3", "2"});
  expect_refused("make-case " + file("p") + " --layout separate --scales 1", {"--scales is 1", "e4m3"});
  expect_refused("make-case " + file("p") + " --layout separate --window -1",
                 {"--window", "0 to 2147483647"});
  expect_refused("make-case " + file("p") + " --topk 5 --window 5", {"window of sparse decode is 5"});
}

TEST_F(Program, BenchSparseAndFp8) {
  expect_right("bench sparse --suite small --repeats 3 --rmse --json " + file("sparse.json"));
  const auto sparse = json("sparse.json").at("results");
  ASSERT_EQ(sparse.size(), 3U);
  EXPECT_EQ(sparse[0].at("name"), "b3 s_q2 h8 topk100");
  EXPECT_EQ(sparse[0].at("topk"), 100);
  EXPECT_EQ(sparse[0].at("kv"), "fp8_656");
  const double bytes = 3 * 2 * 100 * 656;  // each query token's tokens, once
  EXPECT_NEAR(sparse[0].at("gbps").get<double>() * sparse[0].at("ms").get<double>() * 1e6, bytes, 1);
  for (const auto& row : sparse) {
    EXPECT_GT(row.at("rmse"), 0);
    EXPECT_LT(row.at("rmse"), 1e-3);
  }
  expect_right(
      "bench sparse --kv plain --dtype fp16 --batch 2 --heads 4 --topk 50 --tokens 50 --repeats 3 --rmse");
  expect_refused("bench sparse --batch 2 --heads 4 --topk 70 --tokens 50",
                 {"--topk is 70", "--tokens is 50"});
  expect_right("bench dense --kv fp8_656 --suite small --repeats 3 --rmse --json " + file("dense.json"));
  const nlohmann::json dense = json("dense.json");
  for (const auto& row : dense.at("results")) EXPECT_EQ(row.at("kv"), "fp8_656");
  expect_right("bench dense --kv e4m3 --suite small --repeats 3 --rmse --e4m3-queries --json " +
               file("e4m3.json"));
  for (const auto& row : json("e4m3.json").at("results")) EXPECT_EQ(row.at("products"), "fp8");
  expect_right("bench dense --kv fp8_656 --suite cpu --list", {"b16 s_q1 h1 s_k16384"});
  expect_refused("bench dense --kv fp8_656 --suite etap", {"--kv is fp8_656", "etap"});
  expect_refused("bench dense --kv fp8_656 --kv-heads 2 --heads 4", {"h_kv", "2"});
}

TEST_F(Program, BenchCache) {
  expect_right("bench cache --tokens 1000 --page-size 61 --repeats 3 --json " + file("cache.json"),
               {"quantise", "append", "gather", "copy_pages", "append_kv", "gather_kv", "convert_kv"});
  const auto cache = json("cache.json");
  EXPECT_GT(cache.at("roof").at("copy_tbps"), 0);
  EXPECT_EQ(cache.at("results")[0].at("name"), "copy");
  EXPECT_EQ(cache.at("results")[0].at("tokens"), 17 * 61);
  for (const auto& row : cache.at("results")) EXPECT_GT(row.at("gbps"), 0);
  expect_refused("bench cache --tokens 0", {"--tokens", "0"});
}

TEST_F(Program, BenchNumericsTellsCacheFromKernel) {
  expect_right("bench numerics --batch 1 --heads 2 --tokens 300 --json " + file("numerics.json"),
               {"outliers"});
  const auto results = json("numerics.json").at("results");
  EXPECT_EQ(results.size(), 8U);
  for (const auto& row : results) {
    // e4m3 has 3 bits of mantissa: the RMS of a relative rounding error is about 2^-4 * 0.42.
    EXPECT_NEAR(row.at("element_error"), 0.027, 0.005);
    EXPECT_GT(row.at("cache_error"), row.at("kernel_error"));
    EXPECT_GE(row.at("total_error"), 0.9 * row.at("cache_error").get<double>());
    EXPECT_LT(row.at("kernel_error"), 5e-3);
    EXPECT_LE(row.at("worst_ratio"), 1);
  }
}

TEST_F(Program, PlanSaysWhyItsKernel) {
  expect_right(
      "plan --kernel cpu_dense --length-list 500,0,64 --workers 4 --brief --json " + file("plan.json"),
      {"cpu_dense: picked", "reference: declines", "partition: line\n", "imbalance"});
  EXPECT_EQ(json("plan.json").at("kernel"), "cpu_dense");
  EXPECT_EQ(json("plan.json").at("partition"), "line");
  expect_right("plan --kernel cpu_dense --batch 3 --batch-invariant --brief", {"partition: fixed splits\n"});
  expect_refused("plan --kernel fast", {"--kernel", "'fast'", "cpu_dense"});
  expect_right("plan --backend cpu --batch 3 --brief", {"cpu_dense: picked"});
  expect_refused("plan --backend cpu --kernel mla_16", {"'mla_16'", "cpu_dense", "--backend cpu"});
  expect_refused("plan --heads 3 --kv-heads 2", {"h_q is 3"});
}

// Kernels are picked for requests as long as lengths may reach; the call's estimate is for the lengths given.
TEST_F(Program, PlanEstimatesTheLengthsGiven) {
  const std::string json_file = " --json " + file("plan.json");
  expect_right(
      "plan --backend cuda --batch 64 --tokens 4.096e3 --lengths uniform --heads 16 --brief" + json_file,
      {"Picked for 64 requests of 4096 tokens each, ", "A call of these lengths, 262144 tokens in all",
       "Costs of a part: in nanoseconds, of an H200 with 132 multiprocessors.\n"});
  EXPECT_EQ(json("plan.json").at("lengths_estimate_ms"), json("plan.json").at("estimate_ms"));
  for (const char* kernel : {"mla_16", "mla_64_pingpong", "mla_64_roles", "mla_16_team4"}) {
    // A fourth of the tokens, nearly all of one request.
    expect_right(std::string("plan --length-list 131072,512,512,512 --heads 16 --brief --kernel ") + kernel +
                     json_file,
                 {"A call of these lengths, 132608 tokens in all"});
    const double given = json("plan.json").at("lengths_estimate_ms"),
                 longest = json("plan.json").at("estimate_ms");
    EXPECT_LT(given, 0.6 * longest) << kernel;
    EXPECT_GT(given, 0.1 * longest) << kernel;
  }
  expect_right("plan --gpu H100 --kernel mla_16 --batch 3 --heads 8 --brief", {", of H100 with 132 multi"});
}

TEST_F(Program, PlanOfTheCpuIsForThisMachinesThreads) {
  ::setenv("OMP_NUM_THREADS", "3", 1);
  expect_right("plan --backend cpu --batch 3 --brief --json " + file("plan.json"),
               {"Costs of a part: in units of cpu_dense, for 3 threads.\n"});
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(json("plan.json").at("workers").at("count"), 3);
  EXPECT_TRUE(json("plan.json").at("estimate_ms").is_null());
  EXPECT_TRUE(json("plan.json").at("lengths_estimate_ms").is_null());
}

TEST_F(Program, WholeNumbersMayHaveAnExponent) {
  expect_right("plan --batch 1e1 --tokens 1.5e3 --lengths uniform --heads 16 --brief",
               {"Picked for 10 requests of 1536 tokens each"});
  expect_right("plan --length-list 1e3,2E+3 --heads 16 --brief", {"3000 tokens in all"});
  for (const char* number : {"1.5", "1e", "e3", "1.25e1", "1e-3", "x", "1e3x", "1e99"}) {
    expect_refused(std::string("plan --tokens ") + number,
                   {"--tokens", std::string("'") + number + "' is no whole number"});
  }
  expect_refused("plan --tokens 1e12", {"--tokens", "1000000000000 not in range"});
  expect_refused("plan --length-list 1e3,2.5", {"item 2 is '2.5'"});
}

TEST_F(Program, ABenchmarkOfIndicesHasDifferentOnes) {
  expect_refused("bench sparse --topk 4096 --tokens 100", {"--topk is 4096 and --tokens is 100"});
}

TEST_F(Program, CheckPrintsErrorsOfDtypesThatItHad) {
  const Outcome outcome = run("check --suite small --filter 'shard fp8'");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("; largest relative error bf16 "), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("fp16"), std::string::npos) << outcome.out;
}

// --after goes on behind one case, whose name no other case has.
TEST_F(Program, CasesHaveNamesOfTheirOwn) {
  for (const std::string suite : {"small", "quick", "full", "index_topk"}) {
    std::istringstream lines(run("check --list --suite " + suite).out);
    std::set<std::string> names;
    for (std::string name; std::getline(lines, name);) EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_GT(names.size(), 10U);
  }
}

TEST_F(Program, ShardsAreTwoNumbers) {
  for (const char* shard :
       {"1", "0/2", "3/2", "'1/ 2'", "' 1/2'", "1/2x", "-4294967295/2", "4294967297/4294967298"}) {
    expect_refused(std::string("check --list --shard=") + shard, {"--shard is '"});
  }
}

// What is drawn besides the problem: how a case is run.
TEST_F(Program, RandomCasesAreRunInManyWays) {
  expect_right("check --suite random --cases 60 --list",
               {" at other lengths/", " in a graph/", " by kernel ", "drafts"});
  expect_right("check --suite random --cases 60 --filter 'at other lengths' --shard 1/4 --backend cpu",
               {" 0 wrong, 0 refused"});
}

// What GPU kernels take, and how they cut a call, every build knows.
TEST_F(Program, PlanShowsKernelsOfTheGpuInEveryBuild) {
  for (const char* backend : {"", " --backend cuda"}) {
    expect_right(
        std::string("plan --batch 3 --brief") + backend,
        {"mla_16_transposed: declines: s_q * h_q / h_kv is 128", "mla_64_pingpong: picked, estimated at ",
         "mla_64_roles: not picked, estimated at ", "66 parts x 2 lanes"});
  }
  const std::string varied = "plan --backend cuda --batch 128 --heads 64 --brief --calls-per-plan ";
  expect_right(varied + "1 --json " + file("one.json"), {"packing: never; it takes a plan "});
  expect_right(varied + "61 --json " + file("many.json"), {"packing: where lengths ask for it; "});
  EXPECT_FALSE(json("one.json").at("packing").at("packs"));
  EXPECT_EQ(json("one.json").at("packing").at("ms"), json("many.json").at("packing").at("ms"));
  EXPECT_GT(json("one.json").at("slots"), json("many.json").at("slots"));
  EXPECT_EQ(json("one.json").at("kernel"), json("many.json").at("kernel"));
  const std::string far =
      "plan --batch 1 --tokens 1024 --lengths uniform --heads 64 --brief --reach 131072 --json ";
  expect_right(far + file("far.json"), {"mla_64_pingpong: picked"});
  expect_right(far + file("near.json") + " --typical-tokens 1000",
               {"mla_16_team16: picked", "chosen for requests of 1024 tokens; up to 131072 are taken\n"});
  EXPECT_EQ(json("far.json").at("chosen_for"), 131072);
  EXPECT_EQ(json("near.json").at("chosen_for"), 1024);
  EXPECT_EQ(json("near.json").at("reach"), 131072);
  expect_refused(far + file("near.json") + " --typical-tokens -1", {"--typical-tokens"});
  expect_right("plan --length-list 131072,512,512,512 --heads 16 --workers 132 --json " + file("plan.json"),
               {"mla_16: picked"});
  const auto plan = json("plan.json");
  EXPECT_EQ(plan.at("parts").size(), 132U);
  EXPECT_EQ(plan.at("block_tokens"), 64);
  EXPECT_EQ(plan.at("costs").at("per_block"), plan.at("cost_per_block"));
  for (const auto& candidate : plan.at("candidates")) {
    if (candidate.at("kernel") == "mla_16") {
      EXPECT_EQ(candidate.at("estimate_ms"), plan.at("estimate_ms"));
    }
    EXPECT_NE(candidate.contains("estimate_ms"), candidate.contains("declines"));
  }
  expect_right("plan --batch 64 --tokens 8192 --workers 78 --brief --kernel mla_64_roles",
               {"mla_64_roles: picked"});
  expect_refused("plan --batch 64 --tokens 8192 --kernel trio",
                 {"'trio', which is called mla_64_roles now; "});
  expect_right(
      "plan --backend cuda --batch 64 --tokens 8704 --lengths uniform --heads 32 --kv-heads 8 "
      "--dim 128 --shared-tokens 8192 --brief",
      {"gqa_16: picked, estimated at ", ", shares prefixes\n", "shared prefix: 64 requests (0-63)"});
  expect_right("plan --batch 64 --kv fp8_656 --topk 2048 --heads 16 --dtype bf16 --brief",
               {"fp8_32: picked"});
  expect_right("plan --batch 64 --heads 32 --kv-heads 8 --dim 128 --layout packed --kv e4m3 --brief",
               {"gqa_16: picked"});
  expect_right("plan --kv e4m3 --batch 64 --brief",
               {"mla_64_e4m3: declines: products is auto", "fp8_64: picked"});
  const std::string two_lists = "plan --kv fp8_584 --batch 8 --topk 128 --extra-topk 512 --heads 64 ";
  expect_right(two_lists + "--brief", {"mla_64_team: picked", "8 parts x 2 lanes x teams of 5"});
  expect_right(two_lists + "--kernel mla_64_pingpong --json " + file("plan.json"),
               {"partition: even shares\n", "splits: 80 partial results, merged into 8\n"});
  EXPECT_EQ(json("plan.json").at("partition"), "even shares");
  expect_refused("plan --extra-topk 512", {"--extra-topk", "--topk"});
  expect_refused("plan --topk 2048 --shared-tokens 64", {"--topk", "--shared-tokens"});
  expect_refused("plan --kernel fp8_32 --batch 3",
                 {"fp8_32: the cache is of bf16; fp8_656 and e4m3 are accepted"});
}

TEST_F(Program, PlanShowsSharedPrefixes) {
  const std::string shape =
      "plan --kernel cpu_dense --batch 64 --tokens 8704 --lengths uniform --heads 32 --kv-heads 8 --dim 128 "
      "--brief --shared-tokens 8192";
  expect_right(shape + " --json " + file("plan.json"),
               {"cpu_dense: picked, shares prefixes", "shared prefix: 64 requests (0-63), 8192 tokens"});
  const auto group = json("plan.json").at("groups").at(0);
  EXPECT_EQ(group.at("tokens"), 8192);
  EXPECT_EQ(group.at("requests").size(), 64U);
  const Outcome off = run(shape + " --prefix-sharing off");
  EXPECT_EQ(off.out.find("shared prefix"), std::string::npos) << off.out;
  const Outcome invariant = run(shape + " --batch-invariant");
  EXPECT_NE(invariant.out.find("shares no prefixes: batch_invariant is set"), std::string::npos)
      << invariant.out;
}

TEST_F(Program, DecodeIsRightOnMadeCases) {
  const char* const cases[] = {
      "",
      "--dtype fp16 --dims 320/256 --lengths 2,129 --batch 5 --query-tokens 3 --causal --sink --heads 8 "
      "--kv-heads 2 --page-size 16 --invalid-pages",
      "--ragged 1,3,0,2 --causal --heads 4 --page-size 1",
      "--lengths 0,0 --heads 5 --dims 512/512",
      "--logit-scale 200 --heads 32 --lengths 700",
      "--no-reference --heads 4 --lengths 65",
      "--kv fp8_656 --heads 12 --query-tokens 2 --causal --page-size 61 --invalid-pages",
      "--kv fp8_656 --heads 12 --query-tokens 2 --page-size 61 --topk 96 --skipped-indices 0.3 --sink "
      "--topk-lengths 96,0,5,70",
      "--topk 65 --dtype fp16 --kv-heads 2 --dims 320/256",
      "--kv e4m3 --scales 1 --heads 12 --query-tokens 2 --causal --page-size 61 --products fp8",
      "--kv e4m3 --scales 1 --heads 12 --topk 96 --e4m3-queries --query-scales 12",
      "--prefill rows --topk 77 --heads 9 --skipped-indices 0.3 --sink --topk-lengths 77,0,5,70",
      "--prefill pages --kv e4m3 --scales 1 --topk 65 --page-size 3",
      "--kv e4m3 --ragged 0,0 --lengths 5,6 --heads 3",
      "--prefill pages --kv fp8_584 --topk 65 --page-size 3 --extra-lengths 60 --extra-topk 33",
      "--kv fp8_584 --topk 70 --heads 8 --q-norm 1e-6 --q-rotate 64 --out-rotate 64 --out-fp8 128 "
      "--fp8-groups 4",
      "--split-query --heads 4 --q-rotate 64 --ragged 2,0 --lengths 70,9 --int64-positions",
      "--prefill rows --topk 70 --heads 4 --q-rotate 128 --out-rotate 32 --pairs neox --table-layout "
      "interleaved "
      "--bf16-table --out-fp8 32",
      "--layout packed --heads 8 --kv-heads 2 --dims 128/128 --q-norm 0.5 --out-rotate 16",
  };
  for (const char* options : cases) {
    SCOPED_TRACE(options);
    const std::string path = file("case.safetensors");
    expect_right("make-case " + path + " --seed 3 " + options, {path});
    expect_right("decode " + path + " --json " + file("decode.json") + " -o " + file("result.safetensors"),
                 {" rows right"});
    const auto decoded = json("decode.json");
    EXPECT_EQ(decoded.at("ok"), true);
    EXPECT_EQ(decoded.at("reference"),
              std::string(options).starts_with("--no-reference") ? "oracle" : "file");
    const auto inputs = SafetensorsFile::read(path),
               result = SafetensorsFile::read(file("result.safetensors"));
    ASSERT_TRUE(inputs.ok() && result.ok());
    const Dtype q = inputs->tensor("q").dtype;
    EXPECT_EQ(result->tensor("out").dtype, q == Dtype::kU8 ? Dtype::kBF16 : q);  // of e4m3 bf16
    EXPECT_EQ(result->tensor("lse").dtype, Dtype::kF32);
    if (inputs->tensor("out_ref").present()) {
      EXPECT_EQ(result->tensor("out").shape, inputs->tensor("out_ref").shape);
      EXPECT_EQ(result->tensor("lse").shape, inputs->tensor("lse_ref").shape);
      EXPECT_EQ(result->tensor("max_logits").shape, inputs->tensor("max_logits_ref").shape);
    }
  }
}

TEST_F(Program, OptionsOfARotationNeedOne) {
  for (const std::string option :
       {"--pairs neox", "--table-layout interleaved", "--bf16-table", "--int64-positions"}) {
    expect_refused("make-case " + file("p") + " " + option,
                   {option.substr(0, option.find(' ')) + " is given without --q-rotate or --out-rotate"});
    expect_right("make-case " + file("p") + " --no-reference --out-rotate 64 " + option);
  }
}

TEST_F(Program, CasesWithAnFp8Output) {
  for (const char* options : {"--topk 70 --kv fp8_584", "--prefill rows --topk 70"}) {
    const std::string path = file("case.safetensors");
    expect_right(
        "make-case " + path + " --heads 8 --out-rotate 64 --out-fp8 32 --fp8-groups 2 --no-out " + options,
        {"out_edge"});
    expect_right("decode " + path + " -o " + file("result.safetensors"), {" rows right"});
    const auto result = SafetensorsFile::read(file("result.safetensors"));
    ASSERT_TRUE(result.ok());
    EXPECT_FALSE(result->tensor("out").present());
    const ConstTensorView codes = result->tensor("out_fp8.codes"), scales = result->tensor("out_fp8.scales");
    EXPECT_EQ(to_string(codes.dtype), std::string("uint8"));
    EXPECT_EQ((std::vector{codes.shape[0], codes.shape[1], codes.shape[2]}),
              (std::vector<std::int64_t>{4, 2, 2048}));
    EXPECT_EQ(to_string(scales.dtype), std::string("int32"));
    EXPECT_EQ((std::vector{scales.shape[0], scales.shape[1], scales.shape[2]}),
              (std::vector<std::int64_t>{2, 16, 4}));
    const Outcome wrong = run("decode " + change(path, "out_ref", 2 * 8 * 512 + 3 * 512 + 7, 100));
    EXPECT_EQ(wrong.code, 1);
    EXPECT_NE(wrong.out.find("request 2, query token 0, query head 3, column "), std::string::npos)
        << wrong.out;
  }
  const std::string make = "make-case " + file("case.safetensors");
  expect_refused(make + " --q-norm 1 --split-query", {"--q-norm is 1 and --split-query", "rotated alone"});
  expect_refused(make + " --q-norm 1e-40", {"--q-norm is 9.99995e-41; a finite epsilon of 0 (no norm), or"});
  expect_refused(make + " --q-rotate 24", {"--q-rotate is 24; a multiple of 16 up to 576"});
  expect_refused(make + " --out-rotate 528", {"--out-rotate is 528; a multiple of 16 up to 512"});
  expect_refused(make + " --out-fp8 128 --fp8-groups 3", {"--fp8-groups is 3 and --heads 16"});
  expect_refused(make + " --dims 100/96 --out-fp8 32", {"--out-fp8 is given and d_v is 96"});
  expect_refused(make + " --out-fp8 64", {"--out-fp8"});
  expect_refused(make + " --no-out", {"--no-out requires --out-fp8"});
}

TEST_F(Program, DecodeFindsAWrongReference) {
  const std::string path = file("case.safetensors");
  expect_right("make-case " + path + " --lengths 70,80 --heads 4");
  // out_ref is (2, 1, 4, 512), lse_ref (2, 4, 1).
  const Outcome out = run("decode " + change(path, "out_ref", (1 * 4 + 2) * 512 + 7, 100));
  EXPECT_EQ(out.code, 1);
  EXPECT_NE(out.out.find("request 1, query token 0, query head 2, column 7: out is "), std::string::npos)
      << out.out;
  EXPECT_NE(out.out.find("expected 100;"), std::string::npos) << out.out;
  const Outcome lse = run("decode " + change(path, "lse_ref", 3, -50) + " --json " + file("wrong.json"));
  EXPECT_EQ(lse.code, 1);
  EXPECT_NE(lse.out.find("request 0, query token 0, query head 3: lse is "), std::string::npos) << lse.out;
  EXPECT_EQ(json("wrong.json").at("wrong_rows"), 1);
}

TEST_F(Program, DecodeFindsAWrongLargestScore) {
  const std::string path = file("case.safetensors");
  expect_right("make-case " + path + " --prefill rows --topk 9 --lengths 70,80 --heads 4",
               {"sparse prefill as sparse decode"});
  const Outcome wrong =
      run("decode " + change(path, "max_logits_ref", 5, -50) + " --backend cpu --json " + file("wrong.json"));
  EXPECT_EQ(wrong.code, 1);
  EXPECT_NE(wrong.out.find("request 1, query token 0, query head 1: max_logits is "), std::string::npos)
      << wrong.out;
  EXPECT_EQ(json("wrong.json").at("wrong_rows"), 1);
  expect_refused("make-case " + path + " --prefill rows --topk 9 --kv fp8_656",
                 {"--prefill is rows", "pages"});
}

TEST_F(Program, SparsePrefillOfE4m3Queries) {
  const std::string path = file("case.safetensors");
  for (const char* queries :
       {"--e4m3-queries --query-scales 1", "--e4m3-queries --split-query", "--products fp8"}) {
    expect_right("make-case " + path +
                 " --prefill pages --kv e4m3 --scales 1 --topk 9 --lengths 70,0,80 --heads 4 " + queries);
    expect_right("decode " + path + " --backend cpu");
  }
  expect_refused("make-case " + path + " --prefill rows --topk 9 --e4m3-queries", {"q is e4m3"});
}

TEST_F(Program, DecodeRefusesBadFiles) {
  expect_refused("decode " + file("absent.safetensors"), {"absent.safetensors", "No such file"});
  expect_refused("decode " + directory_.path(), {directory_.path()});
  expect_refused("decode " + write("empty.safetensors", ""), {"empty.safetensors"});
  const std::string path = file("case.safetensors");
  expect_right("make-case " + path + " --lengths 70 --heads 4");
  const std::string bytes = read_bytes(path);
  for (std::size_t size : {bytes.size() - 1, bytes.size() / 2, std::size_t{100}, std::size_t{5}}) {
    expect_refused("decode " + write("cut.safetensors", bytes.substr(0, size)), {"cut.safetensors"});
  }
  expect_refused("decode " + write("text.safetensors", "hello, this is no tensor file at all"),
                 {"text.safetensors"});
  expect_refused("decode " + path + " -o " + file("no/such/folder"), {"no/such/folder"});
}

TEST_F(Program, DecodeIsRightOnGoldenCases) {
  for (const char* name :
       {"golden/dense_bf16_page16.safetensors", "golden/sparse_h8.safetensors",
        "golden/paged_gqa_d80_p8.safetensors", "golden/v4_h16_window.safetensors",
        "golden/v41_h16_csa_fp4.safetensors", "golden/v41_h64_page_scales.safetensors",
        "golden/nope528_h8.safetensors", "golden/prefill_h9_512_len_sink_empty.safetensors"}) {
    const std::string path = shared_file(name);
    if (path.empty()) GTEST_SKIP() << "no golden case beside the project";
    expect_right("decode " + path, {"against the file's reference", " rows right"});
    const Outcome wrong = run("decode " + change(path, "out_ref", 5, 100));
    EXPECT_EQ(wrong.code, 1) << wrong.out << wrong.err;
  }
}

TEST_F(Program, ReplaysATraceThatItMadeUp) {
  const std::string trace = file("trace.jsonl");
  expect_right(
      "replay --synthetic --requests 3 --heads 2 --verify --verify-every 50 --seed 1 --write-trace " + trace +
          " --json " + file("first.json"),
      {"tokens/s", "median", "p99", "pool", "prefix hit rate", "preemptions", "evictions", "verified"});
  const auto first = json("first.json");
  EXPECT_EQ(first.at("report").at("requests"), 3);
  EXPECT_EQ(first.at("report").at("mismatch"), "");
  EXPECT_GT(first.at("report").at("verified_rows"), 0);
  EXPECT_EQ(first.at("options").at("trace"), "synthetic");
  for (const char* key : {"machine", "source_tree", "command"}) EXPECT_TRUE(first.contains(key)) << key;
  // The same requests from the file.
  expect_right("replay " + trace + " --heads 2 --requests 2 --kv fp16 --page-size 16 --json " +
               file("second.json"));
  // Written through append_latent, verified against a cache quantised afresh.
  expect_right("replay " + trace + " --heads 2 --requests 2 --kv fp8_656 --page-size 61 --verify --json " +
               file("fp8.json"));
  EXPECT_GT(json("fp8.json").at("report").at("verified_rows"), 0);
  const auto second = json("second.json");
  EXPECT_EQ(second.at("report").at("requests"), 2);
  EXPECT_EQ(second.at("report").at("verified_rows"), 0);
}

TEST_F(Program, ReplayLosesNoRequestInASmallPool) {
  const std::string trace = write("trace.jsonl", [] {
    std::string lines;
    for (int i = 0; i < 8; ++i) {
      const std::string id = std::to_string(i % 3);
      lines += R"({"timestamp": 0, "input_length": 520, "output_length": 120, "hash_ids": [)" + id + ", " +
               std::to_string(10 + i) + "]}\n";
    }
    return lines;
  }());
  expect_right("replay " + trace + " --heads 2 --requests 2 --kv e4m3 --page-size 61 --verify");
  expect_right("replay " + trace + " --heads 2 --pool-tokens 1216 --page-size 16 --verify --json " +
               file("small.json"));
  const auto report = json("small.json").at("report");
  EXPECT_EQ(report.at("requests"), 8);
  EXPECT_EQ(report.at("tokens"), 8 * 120);
  EXPECT_EQ(report.at("mismatch"), "");
  EXPECT_GT(report.at("preemptions"), 0);
  EXPECT_GT(report.at("evictions"), 0);
  EXPECT_GT(report.at("prefix_hits"), 0);
  expect_refused("replay " + trace + " --pool-tokens 600", {"request 0", "520 + 120", "at least 640"});
  // The advice holds, for the largest of several that do not fit, and in whole pages.
  const std::string several =
      write("several.jsonl", R"({"timestamp": 0, "input_length": 90, "output_length": 1}
{"timestamp": 0, "input_length": 200, "output_length": 3}
{"timestamp": 0, "input_length": 9000, "output_length": 0}
{"timestamp": 0, "input_length": 150, "output_length": 2})");
  expect_refused("replay " + several + " --heads 1 --pool-tokens 64 --page-size 48",
                 {"request 1 ", "200 + 3", "at least 240"});
  expect_right("replay " + several + " --heads 1 --pool-tokens 240 --page-size 48", {"4 requests"});
}

TEST_F(Program, ReplayRefusesBadInput) {
  expect_refused("replay", {"TRACE", "--synthetic"});
  expect_refused("replay trace --synthetic", {"TRACE", "--synthetic"});
  expect_refused("replay " + file("absent.jsonl"), {"absent.jsonl", "No such file"});
  expect_refused("replay " + directory_.path(), {directory_.path()});
  expect_refused("replay " + write("empty.jsonl", ""), {"empty.jsonl", "empty"});
  expect_refused("replay " + write("cut.jsonl", R"({"timestamp": 0, "input_len)"), {"cut.jsonl", "line 1"});
  expect_refused("replay --synthetic --kv int4", {"--kv", "int4"});
  expect_refused("replay --synthetic --layers 1000 --pool-tokens 1000000000", {"memory", "fewer layers"});
  expect_refused("replay --synthetic --write-trace " + file("no/such/folder"), {"no/such/folder"});
}

TEST_F(Program, IndexCases) {
  const std::string path = file("index.safetensors");
  expect_right(
      "make-index-case " + path + " --lengths 100,0,300 --query-tokens 2 --causal --topk 50 --best-blocks 7",
      {"index_topk of 6 query tokens, 64 heads, topk 50, fp8_132"});
  expect_right("decode " + path + " -o " + file("out.safetensors") + " --json " + file("out.json"),
               {"against the file's reference: 6 query tokens right"});
  EXPECT_EQ(json("out.json")["wrong_rows"], 0);
  EXPECT_TRUE(SafetensorsFile::read(file("out.safetensors"))->tensor("best_blocks").present());
  // A wrong reference is noticed.
  const Outcome wrong = run("decode " + change(path, "scores_ref", 0, 1e6F));
  EXPECT_EQ(wrong.code, 1) << wrong.out;
  expect_right("make-index-case " + path +
               " --format mxfp4_68 --fp4-queries --slot-page-size 2 --ragged 3,0,1,2");
  expect_right("decode " + path, {"mxfp4_68", "right"});
  expect_refused("make-index-case " + path + " --ragged 3",
                 {"--ragged has 1 numbers, but there are 4 requests"});
  for (const char* name : {"golden/index_fp8.safetensors", "golden/index_fp4_slots.safetensors"}) {
    const std::string golden = shared_file(name);
    if (golden.empty()) GTEST_SKIP() << "no golden case beside the project";
    expect_right("decode " + golden, {"against the file's reference", "right"});
  }
}

TEST_F(Program, ChecksTheIndexer) {
  expect_right("check --suite index_topk --filter 's_k300 topk64 page64 normal causal'",
               {" 0 wrong, 0 refused"});
  expect_right("check --suite random_index_topk --cases 3", {"3 right, 0 wrong"});
  expect_right("check --suite index_topk --list --filter candidates300", {"candidates300x8"});
  const std::string refuses = "check --suite index_topk --filter 'topk1 ' --kernel cpu_dense";
  EXPECT_NE(run(refuses).out.find("2 of 2 cases were refused, and 0 may be"), std::string::npos);
  expect_right(refuses + " --max-refused 2", {"0 right, 0 wrong, 2 refused"});
  expect_refused("check --suite index_topk --typical-tokens 5", {"--typical-tokens is 5, but the suite is"});
  expect_refused("check --suite index_topk --filter nothing",
                 {"--filter 'nothing' matches no case of suite index_topk"});
  expect_right("bench indexer --suite small --filter 'b2 ' --repeats 1",
               {"b2 s_q2 h64 s_k3072 topk2048 fp8_132"});
}

}  // namespace
}  // namespace flashlatent::io
