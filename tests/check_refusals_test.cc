// How many cases `flashlatent check` may see refused: what its table has is what kernels say. No device is
// asked.
#include "tools/check_refusals.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "choose/cutters.h"
#include "dispatch/select.h"
#include "dispatch/sparse_prefill.h"
#include "tools/check_cases.h"

namespace flashlatent::tools {
namespace {

/// Does a kernel do the case? The tensors of some lie as it cannot read them.
bool does(const Candidate& candidate, const runtime::CaseSpec& spec) {
  if (!candidate.reason.empty()) return false;
  if (candidate.kernel->substitute == nullptr) return true;
  // Others' tensors have no gaps, and rows at equal distances; to make them all would take a minute.
  if (!spec.strided && spec.kv_heads == 1) return true;
  const runtime::RandomCase c = runtime::make_case(spec, 0);
  const auto& [query, cache, sparse, options] = c.problem;
  DecodeOutputs outputs;
  outputs.out = query.ragged
                    ? TensorView(nullptr, cache.dtype, {c.inputs.q.shape[0], query.heads, cache.v_dim})
                    : TensorView(nullptr, cache.dtype, {query.batch, query.tokens, query.heads, cache.v_dim});
  return !candidate.kernel->substitute(c.problem, c.inputs, outputs, nullptr);
}

int count_refusals(const std::string& suite, const Executor& executor, int random = 0) {
  int refused = 0;
  for (const runtime::CaseSpec& spec : check_cases(suite, random, 0)) {
    const Purpose purpose = spec.prefill ? purpose_on(executor.backend, false) : Purpose::kDecode;
    Result<std::vector<Candidate>> list = candidates(runtime::problem_of(spec), executor, 132, purpose);
    EXPECT_TRUE(list.ok()) << list.status().message();
    // Where the library picks, another kernel does what one cannot read.
    const bool done = std::any_of(list->begin(), list->end(), [&](const Candidate& candidate) {
      return executor.kernel.empty() ? candidate.reason.empty() : does(candidate, spec);
    });
    refused += !done;
  }
  return refused;
}

TEST(Refusals, AreThoseOfTheTable) {
  constexpr const char* kSuites[] = {"small", "quick", "full", "sparse_prefill"};
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    std::vector<std::string> names = {""};  // the library picks
    for (const choose::Cutter* cutter : choose::cutters()) {
      const DecodeKernel& kernel = cutter->kernel;
      if (kernel.backend() == backend) names.emplace_back(kernel.name);
    }
    for (const std::string& name : names) {
      Executor executor;
      executor.backend = backend;
      executor.kernel = name;
      std::vector<int> known, counted;
      for (const char* suite : kSuites) {
        known.push_back(known_refusals(suite, backend, name));
        counted.push_back(count_refusals(suite, executor));
      }
      EXPECT_EQ(known, counted) << to_string(backend) << ", a row of tools/check_refusals.cc:\n    Row{\""
                                << name << fmt::format("\", {}}},", fmt::join(counted, ", "));
    }
  }
}

// Random cases that no kernel takes are few, and known.
TEST(RandomCases, AreRefusedAsOftenAsKnown) {
  Executor executor;
  executor.backend = Backend::kCpu;
  EXPECT_EQ(count_refusals("random", executor, 300), 0);
  executor.backend = Backend::kCuda;
  EXPECT_EQ(count_refusals("random", executor, 300), 33);
}

TEST(RefusedTooMany, MoreThanKnownFail) {
  EXPECT_EQ(refused_too_many(50, 0, {}, 0), "");
  EXPECT_EQ(refused_too_many(50, 35, {}, 35), "");
  EXPECT_NE(refused_too_many(50, 36, {}, 35).find("36 of 50 cases were refused, and 35 may be"),
            std::string::npos);
  EXPECT_EQ(refused_too_many(50, 36, 36, 35), "");
  EXPECT_NE(refused_too_many(50, 1, 0, 35), "");
  // A run that compares nothing is no run, unless that is what was asked for.
  EXPECT_NE(refused_too_many(2, 2, {}, 35).find("nothing was compared"), std::string::npos);
  EXPECT_EQ(refused_too_many(2, 2, 2, 35), "");
}

// Sparse prefill at random is what CUDA's kernels take all of.
TEST(RandomCases, OfSparsePrefillAreNotRefused) {
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    Executor executor;
    executor.backend = backend;
    EXPECT_EQ(count_refusals("random_sparse_prefill", executor, 300), 0) << to_string(backend);
  }
}

// A list that is a request's says something of each request.
TEST(Cases, ListsAreOfAsManyRequestsOrQueryTokens) {
  for (const char* suite :
       {"small", "quick", "full", "sparse_prefill", "random", "random_separate", "random_sparse_prefill"}) {
    for (const runtime::CaseSpec& spec : check_cases(suite, 100, 0)) {
      const std::size_t requests = spec.lengths.size(), tokens = requests * spec.query_tokens;
      for (const auto* list : {&spec.ragged_tokens, &spec.extra_lengths}) {
        EXPECT_TRUE(list->empty() || list->size() == requests) << spec.name;
      }
      for (const auto* list : {&spec.topk_lengths, &spec.extra_topk_lengths}) {
        EXPECT_TRUE(list->empty() || list->size() == requests || list->size() == tokens) << spec.name;
      }
    }
  }
}

// Speculative decoding from separate keys and values, ragged drafts among them, is what random cases have.
TEST(RandomCases, HaveDraftsOfSeveralQueryTokens) {
  int drafts = 0, ragged = 0, packed = 0;
  for (const runtime::CaseSpec& spec : check_cases("random", 400, 7)) {
    int tokens = spec.query_tokens;
    for (int each : spec.ragged_tokens) tokens = std::max(tokens, each);
    const int rows = tokens * spec.heads / spec.kv_heads;
    if (spec.layout == KvLayout::kLatent || tokens < 2 || tokens > 8 || rows < 17 || rows > 128) continue;
    ++drafts;
    ragged += spec.ragged_tokens.empty() ? 0 : 1;
    packed += spec.layout == KvLayout::kPacked ? 1 : 0;
  }
  EXPECT_GT(drafts, 60);
  EXPECT_GT(ragged, 20);
  EXPECT_GT(packed, 15);
}

}  // namespace
}  // namespace flashlatent::tools
