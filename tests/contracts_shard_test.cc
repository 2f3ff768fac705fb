// Contexts that ranks share: lengths of whole contexts, masks by a token's place there.
#include <algorithm>

#include "contracts.h"
#include "flashlatent/check_inputs.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using ContractsShard = Contracts;
INSTANTIATE_TEST_SUITE_P(Backends, ContractsShard, kBackends, backend_name);

/// Drafts of up to four query tokens, with a rank that has no token of some request.
std::vector<CaseSpec> drafts(ContextShard shard) {
  const std::vector<int> lengths = {0, 1, 2, 63, 64, 65, 130};
  std::vector<CaseSpec> specs;
  for (int heads : {4, 20}) {
    specs.push_back({.name = "plain", .query_tokens = 4, .heads = heads, .lengths = lengths, .causal = true});
    specs.push_back(specs.back());
    specs.back().name = "fp8_656";
    specs.back().format = KvFormat::kFp8_656;
    specs.push_back(specs.back());
    specs.back().name = "fp8_584";
    specs.back().format = KvFormat::kFp8_584;
    specs.back().qk_dim = specs.back().v_dim = 512;
    specs.push_back(specs.front());
    specs.back().name = "keys and values";
    specs.back().heads = heads;
    specs.back().layout = KvLayout::kSeparate;
    specs.back().qk_dim = specs.back().v_dim = 128;
    specs.push_back(specs.front());
    specs.back().name = "ragged";
    specs.back().ragged_tokens = {1, 4, 0, 2, 3, 4, 1};
  }
  for (CaseSpec& spec : specs) spec.shard = shard;
  return specs;
}

TEST_P(ContractsShard, DraftsSeeWhatComesBeforeThemInTheContext) {
  for (const ContextShard& shard : {ContextShard{0, 2, 1}, ContextShard{1, 2, 1}, ContextShard{2, 4, 1},
                                    ContextShard{1, 3, 2}, ContextShard{0, 2, 64}}) {
    for (const CaseSpec& spec : drafts(shard)) {
      if (taken(spec)) expect_right(spec);
    }
  }
}

TEST_P(ContractsShard, PlansOfOtherLengthsStayRight) {
  for (CaseSpec spec : drafts({1, 2, 1})) {
    if (!taken(spec) || !spec.ragged_tokens.empty()) continue;
    CaseSpec planned = spec;
    std::reverse(planned.lengths.begin(), planned.lengths.end());
    const runtime::RandomCase used = runtime::make_case(spec, 3);
    runtime::RandomCase other = runtime::make_case(planned, 4);
    if (used.problem != other.problem) continue;
    expect_right_with_plan_of(other, used, spec.name);
  }
}

TEST_P(ContractsShard, AnInvariantBatchOfAShardIsInvariant) {
  const CaseSpec spec = {.name = "invariant",
                         .query_tokens = 2,
                         .heads = 16,
                         .lengths = {2200, 3, 500},
                         .causal = true,
                         .shard = {1, 4, 1},
                         .batch_invariant = true};
  if (taken(spec)) expect_batch_invariant(spec);
}

TEST_P(ContractsShard, ALengthMayBeAsLongAsTheRanksTokensFit) {
  if (on_gpu()) GTEST_SKIP() << "the arithmetic is the host's";
  const CaseSpec spec = {.name = "reach", .lengths = {100}, .shard = {1, 2, 64}};
  runtime::RandomCase c = runtime::make_case(spec, 1);
  const int columns = c.problem.cache.max_pages, reach = columns * c.problem.cache.page_size;
  auto* length = static_cast<std::int32_t*>(const_cast<void*>(c.inputs.cache_seqlens.data));
  auto* table = static_cast<std::int32_t*>(const_cast<void*>(c.inputs.block_table.data));
  std::fill_n(table, columns, 0);
  // Runs of 64 in turns: the rank's token number `reach` is the first that has no place.
  *length = 2 * reach + 64;
  EXPECT_TRUE(check_inputs(c.problem, c.inputs, Executor{}).ok());
  *length = 2 * reach + 65;
  const Status refused = check_inputs(c.problem, c.inputs, Executor{});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("cache_seqlens[0] is " + std::to_string(*length)), std::string::npos)
      << refused.message();
}

}  // namespace
}  // namespace flashlatent
