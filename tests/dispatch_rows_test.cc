// Which kernel a latent cache gets, by query rows and cache: the tables of docs/architecture.md. No device is
// asked.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>

#include "dispatch/select.h"

namespace flashlatent {
namespace {

constexpr int kWorkers = 132;

DecodeProblem problem_of(KvFormat format, int dim, int heads, int tokens) {
  DecodeProblem problem;
  problem.query = {.batch = 128, .tokens = tokens, .heads = heads};
  problem.cache.format = format;
  problem.cache.qk_dim = dim;
  problem.cache.max_pages = 64;
  problem.options.softmax_scale = 1;
  return problem;
}

DecodeProblem sparse(DecodeProblem problem) {
  problem.sparse = {.enabled = true, .topk = 2048};
  problem.cache.max_pages = 0;
  return problem;
}

DecodeProblem with_extra(const DecodeProblem& problem) {
  DecodeProblem result = sparse(problem);
  result.cache.extra = {.enabled = true, .indexed = true, .page_size = 64, .topk = 512};
  return result;
}

DecodeProblem with_window(DecodeProblem problem) {
  problem.options.window = 128;
  return problem;
}

Executor on_gpu(const char* kernel = "") {
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.kernel = kernel;
  return executor;
}

/// The picked kernel's name, or "refused".
std::string picked(const DecodeProblem& problem) {
  const Result<std::vector<Candidate>> list = candidates(problem, on_gpu(), kWorkers);
  if (!list.ok()) return list.status().message();
  const Candidate* best = cheapest(*list);
  return best == nullptr ? "refused" : best->kernel->name;
}

std::string reason_of(const DecodeProblem& problem, const char* kernel) {
  const Result<std::vector<Candidate>> list = candidates(problem, on_gpu(kernel), kWorkers);
  if (!list.ok()) return list.status().message();
  for (const Candidate& candidate : *list) {
    if (std::string(candidate.kernel->name) == kernel) return candidate.reason;
  }
  return "no such kernel";
}

TEST(DispatchRows, CachesByListsDecide) {
  for (int heads : {8, 16, 32, 128}) {
    for (int tokens : {1, 4}) {
      const auto of = [&](KvFormat format, int dim) { return problem_of(format, dim, heads, tokens); };
      const std::string by_rows = heads <= 16 ? "mla_16_transposed" : "mla_64_pingpong";
      for (const auto format : {KvFormat::kFp8_584, KvFormat::kE4m3}) {
        for (const DecodeProblem& problem :
             {sparse(of(format, 512)), with_extra(of(format, 512)), with_window(of(format, 512))}) {
          const bool bytes = format == KvFormat::kFp8_584 && problem.sparse.enabled;
          EXPECT_EQ(picked(problem), !bytes        ? by_rows
                                     : heads <= 32 ? "fp8_32"
                                                   : "fp8_64")
              << to_string(problem);
        }
      }
      for (const auto format : {KvFormat::kFp8_656, KvFormat::kE4m3}) {
        EXPECT_EQ(picked(with_extra(of(format, 576))), "mla_16_transposed") << heads;
        EXPECT_EQ(picked(with_window(of(format, 576))), "mla_16_transposed") << heads;
      }
      for (const auto format : {KvFormat::kFp8_656, KvFormat::kPlain}) {
        EXPECT_EQ(picked(with_extra(of(format, 512))), "mla_64_pingpong") << heads;
        EXPECT_EQ(picked(with_window(of(format, 512))), "mla_64_pingpong") << heads;
      }
      EXPECT_EQ(picked(of(KvFormat::kFp8_656, 512)), "mla_64_pingpong") << heads;
      EXPECT_EQ(picked(with_extra(of(KvFormat::kPlain, 576))), "refused") << heads;
      EXPECT_EQ(picked(with_window(of(KvFormat::kPlain, 576))), "refused") << heads;
    }
  }
}

TEST(DispatchRows, ProductsOfAnE4m3CacheDecide) {
  for (int heads : {8, 16, 32, 128}) {
    DecodeProblem problem = problem_of(KvFormat::kE4m3, 576, heads, 1);
    const std::string few = heads <= 32 ? "fp8_32" : "";
    for (const DecodeProblem& each : {problem, sparse(problem)}) {
      EXPECT_EQ(picked(each), few.empty() ? "fp8_64" : few) << to_string(each);
    }
    problem.options.products = Products::kFp8;
    for (const DecodeProblem& each : {problem, sparse(problem)}) {
      EXPECT_EQ(picked(each), few.empty() ? "mla_64_e4m3" : few) << to_string(each);
    }
    for (const DecodeProblem& each : {with_extra(problem), with_window(problem)}) {
      EXPECT_EQ(picked(each), "mla_64_e4m3") << to_string(each);
    }
  }
}

// Bytes of fp8_584 go to the tensor cores only where all rows of a tile attend to the same tokens.
TEST(DispatchRows, Fp8_32TakesFp8_584ByIndices) {
  const DecodeProblem problem = problem_of(KvFormat::kFp8_584, 512, 32, 4);
  EXPECT_EQ(reason_of(sparse(problem), "fp8_32"), "");
  EXPECT_EQ(reason_of(with_extra(problem), "fp8_32"), "");
  for (const DecodeProblem& paged : {problem, with_window(problem)}) {
    EXPECT_EQ(reason_of(paged, "fp8_32"),
              "tokens of the fp8_584 cache come by page table; indices are accepted");
  }
  EXPECT_EQ(
      reason_of(sparse(problem_of(KvFormat::kFp8_584, 512, 33, 1)), "fp8_32").find("h_q / h_kv is 33; "), 0U);
}

// Edges of the layer that a kernel leaves out are launches of their own, whose time counts.
TEST(DispatchRows, EdgesOfTheLayerCount) {
  DecodeProblem problem = with_extra(problem_of(KvFormat::kFp8_584, 512, 64, 1));
  problem.query.batch = 64;
  problem.sparse.topk = 128;
  problem.cache.extra.topk = 512;
  EXPECT_EQ(picked(problem), "mla_64_pingpong");
  problem.options.q_edge = problem.options.out_edge = true;
  EXPECT_EQ(picked(problem), "fp8_64");
}

// Of records, too: whole items, shares of up to 32 rows and teams have them in their own passes.
TEST(DispatchRows, EdgesOfRecordsCount) {
  const auto best = [](int batch, int heads, bool edges) {
    DecodeProblem problem = with_extra(problem_of(KvFormat::kMxfp8_528, 512, heads, 1));
    problem.cache.scales = ScalePlace::kToken;
    problem.cache.extra.format = KvFormat::kNvfp4_288;
    problem.query.batch = batch;
    problem.sparse.topk = 128;
    problem.options.q_edge = problem.options.out_edge = edges;
    const Result<std::vector<Candidate>> list = candidates(problem, on_gpu(), kWorkers);
    EXPECT_TRUE(list.ok()) << list.status().message();
    return list.ok() ? *cheapest(*list) : Candidate{};
  };
  for (const auto& [batch, heads, kernel] : {std::tuple(128, 8, "fp8_32"),
                                             {128, 16, "fp8_32"},
                                             {128, 32, "fp8_32"},
                                             {128, 64, "fp8_64"},
                                             {64, 16, "fp8_32"},
                                             {64, 64, "fp8_32"},
                                             {8, 16, "mla_64_team"},
                                             {8, 64, "mla_64_team"}}) {
    EXPECT_STREQ(best(batch, heads, true).kernel->name, kernel) << batch << " " << heads;
    EXPECT_EQ(best(batch, heads, true).times.equal, best(batch, heads, false).times.equal)
        << batch << " " << heads;
  }
}

// Few requests from fp8_584 by indices: as many teams as are resident together, each CTA with one block or
// two, of tiles of as few rows as there is room for.
TEST(DispatchRows, FewRequestsByIndicesGoToTeams) {
  const auto of = [](int batch, int tokens, int heads, int extra) {
    DecodeProblem problem = with_extra(problem_of(KvFormat::kFp8_584, 512, heads, tokens));
    problem.query.batch = batch;
    problem.sparse.topk = 128;
    problem.cache.extra.topk = extra;
    return problem;
  };
  struct Way {
    int team, rows;
  };
  const auto way_of = [](const DecodeProblem& problem) -> Way {
    const Result<std::vector<Candidate>> list = candidates(problem, on_gpu(), kWorkers);
    if (!list.ok()) return {0, 0};
    const Candidate* best = cheapest(*list);
    EXPECT_STREQ(best->kernel->name, "mla_64_team") << to_string(problem);
    return {best->geometry.team, best->geometry.tile_rows};
  };
  struct Case {
    int batch, tokens, heads, extra;
    Way way;
  };
  for (const auto& [batch, tokens, heads, extra, way] :
       {Case{2, 2, 64, 512, {10, 64}}, Case{2, 2, 128, 1024, {9, 64}}, Case{8, 1, 16, 512, {5, 64}},
        Case{8, 1, 64, 512, {5, 32}}, Case{1, 1, 64, 512, {10, 16}}, Case{1, 2, 64, 1920, {16, 32}}}) {
    const DecodeProblem problem = of(batch, tokens, heads, extra);
    EXPECT_EQ(way_of(problem).team, way.team) << to_string(problem);
    EXPECT_EQ(way_of(problem).rows, way.rows) << to_string(problem);
  }
  EXPECT_NE(picked(of(64, 2, 64, 512)), "mla_64_team");

  const DecodeProblem few = of(2, 2, 64, 512);
  EXPECT_EQ(reason_of(few, "mla_64_team"), "");
  DecodeProblem other = few;
  other.cache.extra = {.enabled = true, .page_size = 64, .max_pages = 8};
  EXPECT_EQ(reason_of(other, "mla_64_team"),
            "tokens of the extra cache come by page table; indices are accepted");
  EXPECT_EQ(reason_of(of(2, 2, 64, 1921), "mla_64_team"),
            "topk and the extra cache's make 33 blocks of 64 tokens; at most 32 are accepted");
  other = few;
  other.options.batch_invariant = true;
  EXPECT_EQ(reason_of(other, "mla_64_team").find("batch_invariant is true; "), 0U);
}

// Where query tokens have tokens of their own, s_q does not make rows, and no reason may say that it does.
TEST(DispatchRows, TooManyRowsAreThoseOfAnItem) {
  const std::string dense = reason_of(problem_of(KvFormat::kPlain, 576, 16, 4), "mla_16_transposed");
  EXPECT_EQ(dense.find("s_q * h_q / h_kv is 64; at most 8 "), 0U) << dense;
  const std::string indexed =
      reason_of(sparse(problem_of(KvFormat::kPlain, 576, 16, 4)), "mla_16_transposed");
  EXPECT_EQ(indexed.find("h_q / h_kv is 16; at most 8 "), 0U) << indexed;
  const std::string windowed =
      reason_of(with_window(problem_of(KvFormat::kFp8_584, 512, 32, 4)), "mla_16_transposed");
  EXPECT_EQ(windowed.find("h_q / h_kv is 32; at most 16 "), 0U) << windowed;
}

}  // namespace
}  // namespace flashlatent
