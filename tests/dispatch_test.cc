// Which kernel a problem gets, and what the program says about it. No device is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <numeric>

#include "choose/cutters.h"
#include "core/message.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/fp8/takes.h"
#include "dispatch/select.h"
#include "kernel/former_names.h"
#include "plan/geometries.h"
#include "plan/plan_memory.h"

namespace flashlatent {
namespace {

DecodeProblem problem_of(int batch, int heads, int tokens) {
  DecodeProblem problem;
  problem.query.batch = batch;
  problem.query.heads = heads;
  problem.cache.max_pages = (tokens + 63) / 64;
  problem.options.softmax_scale = 1;
  return problem;
}

std::string picked(const DecodeProblem& problem, const Executor& executor, int workers) {
  Result<std::vector<Candidate>> list = candidates(problem, executor, workers);
  if (!list.ok()) return list.status().message();
  const Candidate* best = cheapest(*list);
  return best == nullptr ? none_takes(problem, *list).message() : best->kernel->name;
}

bool contains(const std::string& text, const std::string& piece) {
  return text.find(piece) != std::string::npos;
}

/// A device whose GPCs have so many multiprocessors.
schedule::Workers in_gpcs(std::initializer_list<int> gpcs) {
  schedule::Workers workers = std::accumulate(gpcs.begin(), gpcs.end(), 0);
  std::array<std::int16_t, schedule::ClusterRoom::kMostCtas> counts = {};
  for (int ctas = 1; ctas <= schedule::ClusterRoom::kMostCtas; ++ctas) {
    for (int gpc : gpcs) counts[ctas - 1] = static_cast<std::int16_t>(counts[ctas - 1] + gpc / ctas);
  }
  workers.room = schedule::ClusterRoom(counts);
  return workers;
}

constexpr DecodeKernel named(const char* name) {
  return {.name = name,
          .architecture = Architecture::kHost,
          .takes = "",
          .declines = nullptr,
          .workspace_bytes = nullptr,
          .launch = nullptr};
}
constexpr DecodeKernel kA = named("a"), kB = named("b");

// A launch never fails for want of room: where no GPC holds a team, smaller ones and other kernels stand in.
TEST(Dispatch, TeamsGiveWayWhereNoClusterFits) {
  const schedule::Workers whole = in_gpcs({18, 18, 16, 16, 16, 16, 16, 16});
  EXPECT_EQ(whole.room.most_ctas(), 16);
  EXPECT_EQ(whole.room.clusters_of(8), 16);
  EXPECT_EQ(schedule::Workers(132).room.most_ctas(), 16);  // nobody was asked
  const Executor gpu{.backend = Backend::kCuda};
  DecodeProblem v4 = problem_of(2, 64, 64);
  v4.query.tokens = 2;
  v4.cache.format = KvFormat::kFp8_584;
  v4.cache.qk_dim = v4.cache.v_dim = 512;
  v4.cache.max_pages = 0;
  v4.sparse = {true, 128};
  v4.cache.extra = {.enabled = true, .indexed = true, .topk = 512};
  const auto best_of = [&](const DecodeProblem& problem, const schedule::Workers& workers) {
    Result<std::vector<Candidate>> list = candidates(problem, gpu, workers);
    EXPECT_TRUE(list.ok()) << list.status().message();
    for (const Candidate& candidate : *list) {
      EXPECT_TRUE(!candidate.reason.empty() || workers.room.fits(candidate.geometry.team))
          << candidate.kernel->name << " by teams of " << candidate.geometry.team;
    }
    return *cheapest(*list);
  };
  EXPECT_STREQ(best_of(problem_of(6, 16, 2048), whole).kernel->name, "mla_16_team16");
  EXPECT_EQ(best_of(v4, whole).geometry.team, 10);

  for (const schedule::Workers& small : {in_gpcs({9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}),
                                         in_gpcs({7, 7, 7, 7, 7, 7, 7, 7}), in_gpcs({2, 2}), in_gpcs({1})}) {
    const int most = small.room.most_ctas();
    for (const DecodeProblem& problem : {problem_of(6, 16, 2048), problem_of(1, 16, 1024),
                                         problem_of(8, 64, 1024), problem_of(1, 128, 131072), v4}) {
      EXPECT_LE(best_of(problem, small).geometry.team, most) << to_string(problem);
    }
    Executor by_name = gpu;
    by_name.kernel = "mla_16_team16";
    Result<std::vector<Candidate>> list = candidates(problem_of(6, 16, 2048), by_name, small);
    ASSERT_TRUE(list.ok());
    const Status none = none_takes(problem_of(6, 16, 2048), *list);
    EXPECT_EQ(cheapest(*list), nullptr);
    EXPECT_TRUE(contains(none.message(),
                         "mla_16_team16: a team has 16 thread blocks, which must run at once; up "
                         "to " +
                             std::to_string(most)))
        << none.message();
  }
  EXPECT_STREQ(best_of(v4, in_gpcs({9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9})).kernel->name, "mla_64_team");
}

// Rows of mla_64_roles may depend on other rows' scores in their last digits.
TEST(Dispatch, BatchInvariantNeverGetsRolesOrTeams) {
  for (int batch : {1, 8, 128}) {
    for (int heads : {16, 64, 128}) {
      for (int tokens : {1024, 8192, 131072}) {
        DecodeProblem problem = problem_of(batch, heads, tokens);
        problem.options.batch_invariant = true;
        const std::string kernel = picked(problem, {.backend = Backend::kCuda}, 132);
        EXPECT_NE(kernel, "mla_64_roles") << to_string(problem);
        EXPECT_FALSE(contains(kernel, "team")) << to_string(problem);
      }
    }
  }
  DecodeProblem problem = problem_of(8, 128, 8192);
  problem.options.batch_invariant = true;
  EXPECT_TRUE(contains(picked(problem, {.backend = Backend::kCuda, .kernel = "mla_64_roles"}, 132),
                       "batch_invariant is true; false is accepted"));
}

TEST(Dispatch, TheCheapestIsPickedAndOfEqualsTheFirst) {
  std::vector<Candidate> list = {{.kernel = &kA, .times = {3000, 3000}},
                                 {.kernel = &kB, .times = {2500, 2500}}};
  EXPECT_EQ(cheapest(list), &list[1]);
  EXPECT_EQ(explain(list), "a: not picked, estimated at 3 us\nb: picked, estimated at 2.5 us\n");
  list[0].times = {2500, 2500};
  EXPECT_EQ(cheapest(list), &list[0]);
  list[0].reason = "heads is 3";
  EXPECT_EQ(cheapest(list), &list[1]);
  EXPECT_EQ(explain(list), "a: declines: heads is 3\nb: picked\n");
  list[1].reason = "heads is odd";
  EXPECT_EQ(cheapest(list), nullptr);
  const Status none = none_takes(problem_of(1, 3, 64), list);
  EXPECT_EQ(none.code(), StatusCode::kUnsupported);
  EXPECT_TRUE(contains(none.message(), "a: heads is 3; b: heads is odd")) << none.message();
}

// Who asks for a kernel by the name that 0.1 had for it is told the present one.
TEST(Dispatch, FormerNamesAreRefusedByThePresentOnes) {
  for (const choose::Cutter* cutter : choose::cutters()) {
    const DecodeKernel& kernel = cutter->kernel;
    EXPECT_EQ(renamed(kernel.name), "") << "is the former name of another";
    const auto has_former = [&](const FormerName& row) { return row.now == kernel.name; };
    EXPECT_LE(std::count_if(std::begin(kFormerNames), std::end(kFormerNames), has_former),
              kernel.backend() == Backend::kCuda ? 1 : 0)
        << kernel.name;
  }
  for (const FormerName& row : kFormerNames) {
    Executor executor;
    executor.backend = Backend::kCuda;
    executor.kernel = row.former;
    const auto list = candidates(problem_of(4, 16, 1000), executor, 132);
    ASSERT_FALSE(list.ok()) << row.former;
    const std::string now =
        message("kernel is '", row.former, "', which is called ", row.now, " now; cuda has ");
    EXPECT_EQ(list.status().message().find(now), 0U) << list.status().message();
  }
}

// Nobody needs to be told that the others were not asked for.
TEST(Dispatch, AKernelByNameSaysItsOwnReason) {
  Executor executor;
  executor.backend = Backend::kCpu;
  executor.kernel = "cpu_dense";
  DecodeProblem problem = problem_of(2, 16, 100);
  problem.cache.layout = KvLayout::kSeparate;
  problem.options.prefix_sharing = PrefixSharing::kAlways;
  problem.options.batch_invariant = true;
  const std::string message = picked(problem, executor, 4);
  EXPECT_TRUE(contains(message, "; cpu_dense: ") && contains(message, "batch_invariant")) << message;
  EXPECT_FALSE(contains(message, "reference")) << message;
}

// Kernels that read another layout say nothing that helps: they stand last, by name only.
TEST(Dispatch, ARefusalBeginsWithKernelsThatCouldHaveTakenTheProblem) {
  Executor executor;
  executor.backend = Backend::kCuda;
  DecodeProblem problem = problem_of(2, 16, 100);
  problem.cache.layout = KvLayout::kSeparate;
  problem.cache.qk_dim = problem.cache.v_dim = 1000;
  const std::string refusal = picked(problem, executor, 132);
  EXPECT_TRUE(contains(refusal, "; gqa_16: ") && contains(refusal, "; gqa_128: ")) << refusal;
  EXPECT_FALSE(contains(refusal, "the cache is separate")) << refusal;
  const std::size_t others = refusal.find("; of another layout: mla_");
  ASSERT_NE(others, std::string::npos) << refusal;
  EXPECT_EQ(refusal.find(": ", others + 20), std::string::npos) << refusal;
  const auto list = candidates(problem, executor, 132);
  ASSERT_TRUE(list.ok());
  const std::string lines = explain(*list);
  EXPECT_TRUE(lines.starts_with("gqa_16: declines: ")) << lines;
  EXPECT_TRUE(contains(lines, "\nof another layout: mla_")) << lines;
}

TEST(Dispatch, TheOracleRunsOnlyByName) {
  const DecodeProblem problem = problem_of(2, 16, 100);
  EXPECT_EQ(picked(problem, {}, 4), "cpu_dense");
  Executor executor;
  executor.kernel = "reference";
  EXPECT_EQ(picked(problem, executor, 4), "reference");
  Result<std::string> why = explain(problem, Executor{});
  ASSERT_TRUE(why.ok());
  EXPECT_EQ(*why, "cpu_dense: picked\nreference: declines: runs only when asked for by name\n");
}

TEST(Dispatch, EstimateFollowsTheWork) {
  schedule::Geometry g = {
      .requests = 264,
      .parts = 132,
      .max_tokens = 6400,
      .cost = {.per_block = 2000, .per_split = 9000, .per_call = 5000, .per_merge = 7000}};
  const std::int64_t item = 100 * 2000 + 9000;
  EXPECT_EQ(schedule::estimate(g), 5000 + 2 * item);  // two whole requests a part
  // Cut: equal parts, the block and the split that a cut may add, and the combine step.
  g.requests = 66;
  EXPECT_EQ(schedule::estimate(g), 5000 + item / 2 + 2000 + 9000 + 7000);
  g.requests = 130;
  EXPECT_EQ(schedule::estimate(g), 5000 + item);
  g.requests = 0;
  EXPECT_EQ(schedule::estimate(g), 5000);
  // Batch-mates and the page table's width must not change what a request gets.
  schedule::fix_splits(g, 32);
  g.rounds = 3;
  const std::int64_t fixed = schedule::estimate(g);
  EXPECT_EQ(fixed, 3 * (32 * 2000 + 9000));
  g.requests = 1000;
  g.max_tokens = 64;
  EXPECT_EQ(schedule::estimate(g), fixed);
}

TEST(Dispatch, RowsDecide) {
  Executor executor;
  executor.backend = Backend::kCuda;
  auto expect = [&](int batch, bool batch_invariant) {
    for (int tokens : {64, 4096, 131072}) {
      for (int heads : {1, 8, 16, 32, 33, 64, 128}) {
        DecodeProblem problem = problem_of(batch, heads, tokens);
        problem.options.batch_invariant = batch_invariant;
        // Two row tiles of many blocks each are bound by products; of one, mla_64_roles is faster from some
        // 150 blocks a CTA on. Two tiles of one block go in turn.
        const bool in_turn = batch == 128 && tokens == 64;
        const bool large = ((heads > 64 && !in_turn) || (heads > 16 && tokens > 100000)) && !batch_invariant;
        EXPECT_EQ(picked(problem, executor, 132), large        ? "mla_64_roles"
                                                  : heads > 16 ? "mla_64_pingpong"
                                                  : heads > 8  ? "mla_16"
                                                               : "mla_16_transposed")
            << to_string(problem);
      }
    }
  };
  expect(128, false);
  // With batch_invariant the batch must not matter.
  for (int batch : {1, 16, 128}) expect(batch, true);
  DecodeProblem problem = problem_of(4, 16, 1000);
  executor.kernel = "mla_64_pingpong";
  EXPECT_EQ(picked(problem, executor, 132), "mla_64_pingpong");
  problem.cache.qk_dim = problem.cache.v_dim = 100;
  executor.kernel.clear();
  EXPECT_TRUE(contains(picked(problem, executor, 132), "mla_64_pingpong: qk_dim/v_dim is 100/100"));
}

TEST(Dispatch, RowsOfAnFp8CacheDecide) {
  Executor executor;
  executor.backend = Backend::kCuda;
  auto pick = [&](int batch, int heads, int tokens) {
    DecodeProblem problem = problem_of(batch, heads, tokens);
    problem.cache.format = KvFormat::kFp8_656;
    return picked(problem, executor, 132);
  };
  for (int heads : {1, 16, 17, 32, 33, 128}) {
    EXPECT_EQ(pick(128, heads, 4096), heads <= 32 ? "fp8_32" : "fp8_64");
  }
  // More rows of a few blocks a CTA: mla_64_pingpong's clusters and shares begin and end sooner (times are in
  // docs/log/fp8.md).
  EXPECT_EQ(pick(8, 128, 4096), "mla_64_pingpong");
  // So few tiles of 16 rows that each gets a team.
  for (auto [batch, heads, tokens] : {std::array{1, 64, 8192}, {2, 32, 4096}, {1, 128, 1024}}) {
    EXPECT_EQ(pick(batch, heads, tokens), "fp8_16_team8")
        << batch << " of " << tokens << ", " << heads << " heads";
  }
  for (auto [batch, heads, tokens] : {std::array{1, 64, 16384},
                                      {2, 64, 4096},
                                      {2, 64, 8192},
                                      {4, 64, 2048},
                                      {8, 64, 1024},
                                      {16, 64, 512},
                                      {8, 64, 4096},
                                      {16, 64, 4096},
                                      {1, 64, 65536},
                                      {4, 128, 16384},
                                      {16, 128, 4096},
                                      {64, 128, 4096},
                                      {1, 128, 131072},
                                      {128, 128, 512}}) {
    EXPECT_EQ(pick(batch, heads, tokens), "fp8_64") << batch << " of " << tokens << ", " << heads << " heads";
  }
  auto pick_sparse = [&](int batch, int heads) {
    DecodeProblem problem = problem_of(batch, heads, 0);
    problem.cache.format = KvFormat::kFp8_656;
    problem.sparse = {.enabled = true, .topk = 2048};
    return picked(problem, executor, 132);
  };
  for (int batch : {1, 2, 3}) EXPECT_EQ(pick_sparse(batch, 64), "fp8_16_team8") << batch;
  for (int batch : {4, 8, 128}) EXPECT_EQ(pick_sparse(batch, 64), "fp8_64") << batch;
  for (int batch : {8, 16}) EXPECT_EQ(pick_sparse(batch, 128), "mla_64_pingpong") << batch;
  for (int batch : {32, 64}) EXPECT_EQ(pick_sparse(batch, 128), "fp8_64") << batch;
  // With batch_invariant the batch must not matter.
  for (int heads : {16, 32, 33, 64, 128}) {
    for (int tokens : {64, 4096, 131072}) {
      auto invariant = [&](int batch) {
        DecodeProblem problem = problem_of(batch, heads, tokens);
        problem.cache.format = KvFormat::kFp8_656;
        problem.options.batch_invariant = true;
        return picked(problem, executor, 132);
      };
      for (int batch : {2, 16, 128}) EXPECT_EQ(invariant(batch), invariant(1)) << heads << ", " << tokens;
    }
  }
  EXPECT_EQ(pick(1, 32, 131072), "fp8_32");
  // Few requests by teams, unless these have many blocks of several requests.
  for (int tokens : {1024, 4096, 131072}) EXPECT_EQ(pick(1, 16, tokens), "fp8_16_team8");
  EXPECT_EQ(pick(4, 16, 4096), "fp8_16_team8");
  EXPECT_EQ(pick(12, 16, 4096), "fp8_32");  // 18.8 us, by fp8_16_team8 18.4
  for (int tokens : {8192, 16384, 131072}) EXPECT_EQ(pick(4, 16, tokens), "fp8_32") << tokens;
  for (int batch : {2, 4, 12}) EXPECT_EQ(pick(batch, 8, 4096), "fp8_32") << batch;
  EXPECT_EQ(pick(8, 16, 4096), "fp8_32");
  EXPECT_EQ(pick(16, 8, 1024), "fp8_32");
  EXPECT_EQ(pick(16, 16, 512), "fp8_32");  // 11.9 us, by mla_16_transposed 12.3
}

TEST(Dispatch, RowsAndProductsOfE4m3LatentsDecide) {
  Executor executor;
  executor.backend = Backend::kCuda;
  for (const Products products : {Products::kAuto, Products::kFp8}) {
    auto pick = [&](int batch, int heads, int tokens, bool invariant = false) {
      DecodeProblem problem = problem_of(batch, heads, tokens);
      problem.cache.format = KvFormat::kE4m3;
      problem.options.products = products;
      problem.options.batch_invariant = invariant;
      return picked(problem, executor, 132);
    };
    const std::string of_more = products == Products::kFp8 ? "mla_64_e4m3" : "fp8_64";
    for (int heads : {1, 16, 17, 32, 33, 128}) {
      EXPECT_EQ(pick(128, heads, 4096), heads <= 32 ? "fp8_32" : of_more) << heads;
    }
    for (int tokens : {1024, 8192}) EXPECT_EQ(pick(1, 16, tokens), "fp8_16_team8") << tokens;
    EXPECT_EQ(pick(8, 16, 16384), "fp8_32");
    EXPECT_EQ(pick(1, 32, 131072), "fp8_32");
    // With batch_invariant the batch must not matter.
    for (int heads : {16, 32, 33, 64, 128}) {
      for (int tokens : {64, 4096, 131072}) {
        for (int batch : {2, 16, 128}) {
          EXPECT_EQ(pick(batch, heads, tokens, true), pick(1, heads, tokens, true))
              << heads << ", " << tokens;
        }
      }
    }
  }
}

// Every kernel says which it takes, and what fewer take has another kernel.
TEST(Dispatch, DimensionsDecide) {
  Executor executor;
  executor.backend = Backend::kCuda;
  auto pick = [&](const char* kernel, int qk_dim, int v_dim, int batch, bool batch_invariant) {
    executor.kernel = kernel;
    DecodeProblem problem = problem_of(batch, 16, 1024);
    problem.cache.qk_dim = qk_dim;
    problem.cache.v_dim = v_dim;
    problem.options.batch_invariant = batch_invariant;
    return picked(problem, executor, 132);
  };
  for (auto [qk_dim, v_dim] : {std::array{512, 512}, {320, 256}}) {
    for (const char* kernel : {"mla_16_transposed", "mla_16_team16", "mla_64_roles"}) {
      const std::string message = pick(kernel, qk_dim, v_dim, 2, false);
      EXPECT_TRUE(contains(message, kernel) && contains(message, "; 576/512 is accepted")) << message;
    }
    EXPECT_EQ(pick("", qk_dim, v_dim, 2, false), "mla_16_team8");
    EXPECT_EQ(pick("", qk_dim, v_dim, 128, false), "mla_16");
    EXPECT_EQ(pick("", qk_dim, v_dim, 128, true), "mla_16");
  }
  EXPECT_EQ(pick("", 576, 512, 128, true), "mla_16");
  const std::string message = pick("mla_16", 500, 400, 2, false);
  EXPECT_TRUE(contains(message, "500/400; 576/512, 512/512 and 320/256 are accepted")) << message;
}

TEST(Dispatch, TeamsTakeSmallBatches) {
  Executor executor;
  executor.backend = Backend::kCuda;
  for (auto [batch, heads, tokens] :
       {std::array{1, 16, 1024}, {1, 16, 131072}, {4, 16, 4096}, {6, 16, 4096}, {1, 128, 1024}}) {
    const DecodeProblem problem = problem_of(batch, heads, tokens);
    EXPECT_TRUE(contains(picked(problem, executor, 132), "mla_16_team")) << to_string(problem);
  }
  // More requests than there are teams of 8.
  for (auto [batch, tokens] : {std::array{16, 1024}, {24, 1024}}) {
    EXPECT_EQ(picked(problem_of(batch, 16, tokens), executor, 132), "mla_16_team4")
        << batch << ", " << tokens;
  }
  // Each request but one has a team of 16 alone: 18.8 us, by teams of 8 20.9. But if lengths vary, 14.7 and
  // 13.2 (4 heads, 3,813 tokens on average).
  EXPECT_EQ(picked(problem_of(6, 16, 8192), executor, 132), "mla_16_team8");
  EXPECT_EQ(picked(problem_of(6, 16, 2048), executor, 132), "mla_16_team16");
  EXPECT_EQ(picked(problem_of(4, 16, 8192), executor, 132), "mla_16_team8");
  EXPECT_EQ(picked(problem_of(4, 64, 4096), executor, 132),
            "mla_64_pingpong");  // 0.0201 ms; by teams of 4 0.0272
  // Not where a team would do several requests one after another, or memory is what binds.
  for (auto [batch, heads, tokens] :
       {std::array{4, 16, 131072}, {8, 16, 4096}, {32, 16, 1024}, {32, 16, 131072}}) {
    const DecodeProblem problem = problem_of(batch, heads, tokens);
    EXPECT_EQ(picked(problem, executor, 132), "mla_16") << to_string(problem);
  }
  // Nor on a slice of a device, which may not hold a team.
  EXPECT_EQ(picked(problem_of(1, 16, 1024), executor, 12), "mla_16");
  // What the caller allocates does for any kernel, and nothing is needed where nothing can be merged.
  auto geometry_of = [&](const char* kernel, const DecodeProblem& problem) {
    executor.kernel = kernel;
    Result<std::vector<Candidate>> list = candidates(problem, executor, 132);
    EXPECT_TRUE(list.ok());
    return cheapest(*list)->geometry;
  };
  for (const char* kernel : {"mla_16_team4", "mla_16_team8", "mla_16_team16"}) {
    const schedule::Geometry small = geometry_of(kernel, problem_of(2, 16, 64));
    EXPECT_EQ(small.parts, 2);
    EXPECT_EQ(schedule::max_partials(small), 0);
    const schedule::Geometry large = geometry_of(kernel, problem_of(2, 16, 131072));
    EXPECT_EQ(large.parts * large.lanes * large.team, large.team == 16 ? 112 : 120);  // that run at once
    EXPECT_GT(schedule::max_partials(large), 0);
    EXPECT_EQ(schedule::max_merges(large), 0);  // in the kernel
  }
  DecodeProblem invariant = problem_of(1, 16, 1024);
  invariant.options.batch_invariant = true;
  EXPECT_TRUE(contains(picked(invariant, executor, 132), "batch_invariant is true"));
}

TEST(Dispatch, RolesTakesTwoRowTilesOfManyBlocks) {
  Executor executor;
  executor.backend = Backend::kCuda;
  // From some 15 blocks of 64 tokens a CTA on; of up to 32 requests from some 9; of whole requests from 9,
  // too.
  for (auto [batch, tokens] : {std::array{1, 32768},
                               {4, 12288},
                               {8, 6144},
                               {16, 3072},
                               {32, 1536},
                               {1, 65536},
                               {1, 262144},
                               {2, 65536},
                               {5, 16384},
                               {8, 12288},
                               {24, 8192},
                               {64, 1024},
                               {100, 2048},
                               {128, 512},
                               {128, 256},
                               {128, 4096}}) {
    DecodeProblem problem = problem_of(batch, 128, tokens);
    EXPECT_EQ(picked(problem, executor, 132), "mla_64_roles") << batch << ", " << tokens;
    problem.cache.dtype = Dtype::kF16;
    EXPECT_EQ(picked(problem, executor, 132), "mla_64_roles") << "fp16, " << batch << ", " << tokens;
  }
  for (auto [batch, tokens] :
       {std::array{1, 16384}, {4, 4096}, {8, 2048}, {16, 1024}, {64, 512}, {32, 512}}) {
    EXPECT_EQ(picked(problem_of(batch, 128, tokens), executor, 132), "mla_64_pingpong")
        << batch << ", " << tokens;
  }
  // With one row tile memory binds.
  EXPECT_EQ(picked(problem_of(128, 64, 1024), executor, 132), "mla_64_pingpong");
  EXPECT_EQ(picked(problem_of(64, 64, 1024), executor, 132), "mla_64_pingpong");
  EXPECT_EQ(picked(problem_of(4, 256, 32768), executor, 132), "mla_64_roles");
}

// Where none has boxes mla_64_roles is faster with one row tile, too: of requests that stay whole.
TEST(Dispatch, RolesTakesManyBlocksTokenByToken) {
  Executor executor;
  executor.backend = Backend::kCuda;
  auto pick = [&](int page_size, int batch, int heads, int tokens) {
    DecodeProblem problem = problem_of(batch, heads, tokens);
    problem.cache.page_size = page_size;
    problem.cache.max_pages = (tokens + page_size - 1) / page_size;
    return picked(problem, executor, 132);
  };
  for (int page_size : {1, 5}) {
    EXPECT_EQ(pick(page_size, 128, 128, 1024), "mla_64_roles")
        << page_size;  // 0.0709 ms, by mla_64_pingpong 0.0796
    EXPECT_EQ(pick(page_size, 8, 128, 16384), "mla_64_roles") << page_size;  // 0.0646, 0.0774
    EXPECT_EQ(pick(page_size, 16, 128, 1024), "mla_64_roles") << page_size;  // 0.0188, 0.0197
    EXPECT_EQ(pick(page_size, 8, 128, 1024), "mla_64_pingpong")
        << page_size;                                                        // 0.0138, by mla_64_roles 0.0141
    EXPECT_EQ(pick(page_size, 128, 64, 4096), "mla_64_roles") << page_size;  // 0.1562, 0.1598
    EXPECT_EQ(pick(page_size, 64, 64, 4096), "mla_64_pingpong") << page_size;   // 0.0915, 0.0927
    EXPECT_EQ(pick(page_size, 100, 64, 2048), "mla_64_pingpong") << page_size;  // 0.0758, 0.0889
  }
  EXPECT_EQ(pick(16, 64, 64, 4096), "mla_64_pingpong");
  DecodeProblem sparse = problem_of(128, 128, 0);
  sparse.sparse = {.enabled = true, .topk = 2048};
  EXPECT_EQ(picked(sparse, executor, 132), "mla_64_roles");  // 0.1293, 0.1485
}

TEST(Dispatch, RolesSharesOutFewRequests) {
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.kernel = "mla_64_roles";
  auto way_of = [&](const DecodeProblem& problem) {
    Result<std::vector<Candidate>> list = candidates(problem, executor, 132);
    EXPECT_TRUE(list.ok());
    return cheapest(*list)->geometry.partition;
  };
  for (int tokens : {16384, 131072}) {
    DecodeProblem problem = problem_of(1, 128, tokens);
    EXPECT_EQ(way_of(problem), schedule::Partition::kEvenShares) << tokens;
    problem.cache.dtype = Dtype::kF16;
    EXPECT_EQ(way_of(problem), schedule::Partition::kEvenShares) << "fp16, " << tokens;
  }
  for (auto [batch, tokens] : {std::array{4, 16384}, {8, 131072}, {16, 8192}, {32, 4096}}) {
    EXPECT_EQ(way_of(problem_of(batch, 128, tokens)), schedule::Partition::kSharesByLength)
        << batch << ", " << tokens;
  }
  DecodeProblem by_tokens = problem_of(4, 128, 4096);
  by_tokens.cache.page_size = 1;
  by_tokens.cache.max_pages = 4096;
  EXPECT_EQ(way_of(by_tokens), schedule::Partition::kSharesByLength);
  by_tokens = problem_of(4, 128, 0);
  by_tokens.sparse = {.enabled = true, .topk = 4096};
  EXPECT_EQ(way_of(by_tokens), schedule::Partition::kSharesByLength);
  // More than 8 requests with more than 32 blocks a CTA, any of which might be short.
  for (auto [batch, tokens] : {std::array{9, 131072}, {16, 16384}, {24, 8192}}) {
    EXPECT_EQ(way_of(problem_of(batch, 128, tokens)), schedule::Partition::kLine) << batch << ", " << tokens;
  }
  // Up to eight row tiles are shared out, too, where that leaves few CTAs without a share.
  EXPECT_EQ(way_of(problem_of(1, 512, 131072)), schedule::Partition::kEvenShares);
  for (auto [batch, heads] : {std::array{8, 192}, {16, 256}, {3, 384}, {8, 512}}) {
    EXPECT_EQ(way_of(problem_of(batch, heads, 4096)), schedule::Partition::kSharesByLength)
        << batch << ", " << heads;
  }
  EXPECT_EQ(way_of(problem_of(12, 256, 4096)), schedule::Partition::kLine);
  EXPECT_EQ(way_of(problem_of(6, 512, 4096)), schedule::Partition::kLine);
  // With one row tile, or ten; more requests than there are half as many parts.
  EXPECT_EQ(way_of(problem_of(1, 64, 131072)), schedule::Partition::kLine);
  EXPECT_EQ(way_of(problem_of(1, 640, 131072)), schedule::Partition::kLine);
  EXPECT_EQ(way_of(problem_of(40, 128, 16384)), schedule::Partition::kLine);
}

TEST(Dispatch, PingpongSharesOutSmallBatches) {
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.kernel = "mla_64_pingpong";
  auto way_of = [&](const DecodeProblem& problem, int workers) -> std::string {
    Result<std::vector<Candidate>> list = candidates(problem, executor, workers);
    if (!list.ok()) return list.status().message();
    const schedule::Geometry& g = cheapest(*list)->geometry;
    if (g.team > 1) {
      EXPECT_LE(g.parts * g.lanes * g.team, 120);  // that run at once
      EXPECT_EQ(schedule::max_partials(g), 0);     // nothing is left to combine
      return "teams of " + std::to_string(g.team);
    }
    EXPECT_LE(g.parts * g.lanes, workers);
    return g.partition == schedule::Partition::kEvenShares       ? "even"
           : g.partition == schedule::Partition::kSharesByLength ? "by length"
                                                                 : "a line";
  };
  // Few blocks a CTA: by teams; a request in even shares if it is alone, or these are of one or two blocks;
  // else by length.
  EXPECT_EQ(way_of(problem_of(8, 64, 1024), 132), "teams of 8");
  EXPECT_EQ(way_of(problem_of(12, 128, 1024), 132), "teams of 4");
  EXPECT_EQ(way_of(problem_of(24, 128, 1024), 132), "teams of 2");
  EXPECT_EQ(way_of(problem_of(1, 64, 131072), 132), "even");
  EXPECT_EQ(way_of(problem_of(1, 128, 65536), 132), "even");
  EXPECT_EQ(way_of(problem_of(2, 128, 4096), 132), "even");
  EXPECT_EQ(way_of(problem_of(8, 128, 4096), 132), "by length");
  EXPECT_EQ(way_of(problem_of(4, 64, 131072), 132), "by length");
  EXPECT_EQ(way_of(problem_of(10, 64, 16384), 132), "by length");
  // On a line where two row tiles have many blocks, or a warp has no lane for each request; and by the batch
  // with batch_invariant.
  EXPECT_EQ(way_of(problem_of(8, 128, 16384), 132), "a line");
  EXPECT_EQ(way_of(problem_of(128, 64, 4096), 132), "a line");
  EXPECT_EQ(way_of(problem_of(40, 64, 16384), 132), "a line");
  DecodeProblem invariant = problem_of(8, 64, 1024);
  invariant.options.batch_invariant = true;
  EXPECT_EQ(way_of(invariant, 132), "a line");
  // From an fp8_656 cache by clusters of two, which have two row tiles.
  auto fp8 = [](DecodeProblem problem) {
    problem.cache.format = KvFormat::kFp8_656;
    return problem;
  };
  EXPECT_EQ(way_of(fp8(problem_of(1, 128, 16384)), 132), "even");
  EXPECT_EQ(way_of(fp8(problem_of(8, 128, 4096)), 132), "by length");
  EXPECT_EQ(way_of(fp8(problem_of(8, 128, 16384)), 132), "a line");
  EXPECT_EQ(way_of(fp8(problem_of(1, 64, 16384)), 132), "a line");
  DecodeProblem sparse = fp8(problem_of(4, 128, 0));
  sparse.sparse = {.enabled = true, .topk = 2048};
  EXPECT_EQ(way_of(sparse, 132), "even");
  // Token by token, too, but not by teams.
  auto by_tokens = [](DecodeProblem problem) {
    problem.cache.max_pages *= problem.cache.page_size;
    problem.cache.page_size = 1;
    return problem;
  };
  EXPECT_EQ(way_of(by_tokens(problem_of(8, 64, 1024)), 132), "even");
  EXPECT_EQ(way_of(by_tokens(problem_of(8, 128, 4096)), 132), "by length");
  EXPECT_EQ(way_of(by_tokens(problem_of(128, 64, 4096)), 132), "a line");
  sparse.cache.format = KvFormat::kPlain;
  EXPECT_EQ(way_of(sparse, 132), "even");
}

// By two lists of tokens, by either kernel: evenly where indices name the tokens or shares are short; else by
// length, where each request has one query token.
TEST(Dispatch, ListsAreSharedOutInSmallBatches) {
  Executor executor;
  executor.backend = Backend::kCuda;
  auto way_of = [&](const DecodeProblem& problem) {
    Result<std::vector<Candidate>> list = candidates(problem, executor, 132);
    if (!list.ok()) return list.status().message();
    const schedule::Geometry& g = cheapest(*list)->geometry;
    EXPECT_LE(g.parts * g.lanes, 132);
    return std::string(schedule::name_of(g.partition));
  };
  auto v4 = [](int batch, int tokens, int heads, int extra_topk, int extra_tokens = 0) {
    DecodeProblem problem = problem_of(batch, heads, 0);
    problem.query.tokens = tokens;
    auto& cache = problem.cache;
    cache.format = KvFormat::kFp8_584;
    cache.qk_dim = cache.v_dim = 512;
    cache.max_pages = 0;
    problem.sparse = {.enabled = true, .topk = 128};
    if (extra_topk > 0) cache.extra = {.enabled = true, .indexed = true, .topk = extra_topk};
    if (extra_tokens > 0) cache.extra = {.enabled = true, .max_pages = extra_tokens / cache.extra.page_size};
    return problem;
  };
  for (int heads : {8, 16, 64, 128}) {
    EXPECT_EQ(way_of(v4(8, 1, heads, 512)), "whole") << heads;  // by teams
    EXPECT_EQ(way_of(v4(2, 2, heads, 1024)), "whole") << heads;
    EXPECT_EQ(way_of(v4(1, 1, heads, 0, 8192)), "even shares") << heads;
    EXPECT_EQ(way_of(v4(128, 1, heads, 512)), "turns") << heads;
    EXPECT_EQ(way_of(v4(4, 2, heads, 0, 8192)), "line") << heads;
    DecodeProblem invariant = v4(8, 1, heads, 512);
    invariant.options.batch_invariant = true;
    EXPECT_EQ(way_of(invariant), "fixed splits") << heads;
  }
  EXPECT_EQ(way_of(v4(8, 1, 16, 0, 8192)), "shares by length");
  EXPECT_EQ(way_of(v4(8, 1, 64, 0, 8192)), "shares by length");
  EXPECT_EQ(way_of(v4(40, 1, 64, 0, 8192)), "line");  // more than a warp has lanes
  // Other caches.
  DecodeProblem plain = v4(8, 1, 64, 512);
  plain.cache.format = KvFormat::kPlain;
  EXPECT_EQ(way_of(plain), "even shares");
  plain.cache.dtype = Dtype::kF16;
  EXPECT_EQ(way_of(plain), "even shares");
  for (int heads : {16, 64}) {
    DecodeProblem fp8_656 = v4(8, 1, heads, 512);
    fp8_656.cache.format = KvFormat::kFp8_656;
    EXPECT_EQ(way_of(fp8_656), "even shares") << heads;
  }
  DecodeProblem with_rope = v4(8, 1, 16, 512);
  with_rope.cache.format = KvFormat::kFp8_656;
  with_rope.cache.qk_dim = 576;
  EXPECT_EQ(way_of(with_rope), "even shares");
  // Rows of a tile must attend to the same tokens.
  DecodeProblem dense = v4(16, 1, 64, 0);
  dense.sparse = {};
  dense.cache.max_pages = 64;
  EXPECT_EQ(way_of(dense), "shares by length");
  dense.query.tokens = 2;
  EXPECT_EQ(way_of(dense), "line");
}

// Where memory binds fewer whole requests than parts share it, however tokens of a plain cache come.
// A kernel without the combine step has instances of its own for shares, the merging ones have none.
TEST(Dispatch, SharesAreMergedBehindTheKernel) {
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.kernel = "fp8_32";
  int merged_in_pairs = 0;
  for (int heads : {8, 16, 32}) {
    for (int batch = 1; batch <= 132; ++batch) {
      DecodeProblem problem = problem_of(batch, heads, 0);
      auto& cache = problem.cache;
      cache.format = KvFormat::kFp8_584;
      cache.qk_dim = cache.v_dim = 512;
      cache.max_pages = 0;
      problem.sparse = {.enabled = true, .topk = 128};
      cache.extra = {.enabled = true, .indexed = true, .topk = 1024};
      Result<std::vector<Candidate>> list = candidates(problem, executor, 132);
      ASSERT_TRUE(list.ok()) << list.status().message();
      const schedule::Geometry& g = cheapest(*list)->geometry;
      const cuda::InstanceKey key = fp8::key_of(problem, g, /*has_pages=*/true);
      const auto& keys = fp8::kAlone584Keys;
      const bool alone = std::find(keys.begin(), keys.end(), key) != keys.end();
      EXPECT_FALSE(alone && cuda::merges_in_kernel(problem, g))
          << batch << " requests of " << heads << " heads";
      merged_in_pairs += schedule::combines_shares(g.partition) && g.parts <= 2 * g.requests;
    }
  }
  EXPECT_GT(merged_in_pairs, 0);  // 66 requests: where a merging kernel was looked for
}

TEST(Dispatch, PagesOfAnySizeAreReckonedAlike) {
  Executor executor;
  executor.backend = Backend::kCuda;
  auto blocks_alone = [&](const char* kernel, const DecodeProblem& problem) {
    executor.kernel = kernel;
    Result<std::vector<Candidate>> list = candidates(problem, executor, 132);
    EXPECT_TRUE(list.ok());
    return cheapest(*list)->geometry.cost.per_block_alone;
  };
  for (const char* kernel : {"mla_64_pingpong", "mla_16", "mla_16_transposed"}) {
    DecodeProblem problem = problem_of(96, kernel == std::string("mla_64_pingpong") ? 64 : 8, 4096);
    const int of_blocks = blocks_alone(kernel, problem);
    EXPECT_GT(of_blocks, 0) << kernel;
    for (int page_size : {1, 16, 61}) {
      problem.cache.page_size = page_size;
      problem.cache.max_pages = (4096 + page_size - 1) / page_size;
      EXPECT_EQ(blocks_alone(kernel, problem), of_blocks) << kernel << ", " << page_size;
    }
  }
  DecodeProblem fp8 = problem_of(96, 16, 4096);
  fp8.cache.format = KvFormat::kFp8_656;
  EXPECT_EQ(blocks_alone("mla_16_transposed", fp8), 0);
}

// A build without CUDA chooses among its kernels, and has none to run.
TEST(Dispatch, KernelsOfCudaCanBeChosenInEveryBuild) {
  int of_cuda = 0;
  for (const choose::Cutter* cutter : choose::cutters()) {
    const DecodeKernel& kernel = cutter->kernel;
    const bool runs = kernel.backend() == Backend::kCpu || FLASHLATENT_WITH_CUDA;
    EXPECT_EQ(kernel.launch != nullptr, runs) << kernel.name;
    const std::vector<KernelInfo> list = kernels();
    EXPECT_EQ(std::count_if(list.begin(), list.end(), [&](const auto& k) { return k.name == kernel.name; }),
              runs ? 1 : 0)
        << kernel.name;
    of_cuda += kernel.backend() == Backend::kCuda ? 1 : 0;
  }
  EXPECT_EQ(of_cuda, 15);
  if (FLASHLATENT_WITH_CUDA) return;
  Executor executor;
  executor.backend = Backend::kCuda;
  EXPECT_TRUE(contains(available(Backend::kCuda).message(), "not in this build"));
  const Status refused = select(problem_of(3, 16, 1024), executor).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(contains(refused.message(), "not in this build")) << refused.message();
  executor.kernel = "mla_16";
  EXPECT_EQ(select(problem_of(3, 16, 1024), executor).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace flashlatent
