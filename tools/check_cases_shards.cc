// Contexts that ranks share (DecodeProblem::Options::shard).
#include <algorithm>

#include "tools/check_cases.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

/// Two to four query tokens, so that the causal mask goes by positions in the context. One rank has no tokens
/// of some request; one has the boundaries of all blocks.
CaseSpec drafts(ContextShard shard, CaseSpec spec) {
  spec.shard = shard;
  spec.query_tokens = std::max(spec.query_tokens, 2);
  spec.causal = true;
  if (spec.lengths.size() == 1) spec.lengths = {0, 1, 63, 64, 65, 130, 700};
  return spec;
}

CaseSpec separate(CaseSpec spec) {
  spec.layout = KvLayout::kSeparate;
  spec.kv_heads = 2;
  spec.qk_dim = spec.v_dim = 128;
  return spec;
}

}  // namespace

void add_small_shard_cases(std::vector<CaseSpec>& cases) {
  for (CaseSpec& spec : std::vector<CaseSpec>{
           drafts({1, 2, 1}, {.name = "shard", .query_tokens = 3, .heads = 4}),
           drafts({0, 4, 1}, {.name = "shard", .query_tokens = 4, .heads = 40}),
           drafts({2, 3, 64}, {.name = "shard", .heads = 128}),
           drafts({0, 2, 1}, fp8({.name = "shard fp8", .query_tokens = 4, .heads = 8})),
           drafts({1, 2, 1}, fp8({.name = "shard fp8", .heads = 64})),
           drafts({1, 2, 16}, v4({.name = "shard v4", .heads = 12})),
           drafts({1, 4, 1}, v4({.name = "shard v4 window", .heads = 12, .window = 130})),
           drafts({1, 2, 1}, separate({.name = "shard gqa", .heads = 8, .window = 90})),
           drafts({0, 2, 16},
                  separate({.name = "shard gqa", .query_tokens = 4, .heads = 32, .soft_cap = 30})),
       }) {
    cases.push_back(std::move(spec));
  }
}

void add_quick_shard_cases(std::vector<CaseSpec>& cases) {
  for (int rank : {0, 1, 3}) {
    for (int heads : {2, 8, 16, 40, 64, 128}) {
      for (int run : {1, 64}) {
        const ContextShard shard{rank, 4, run};
        cases.push_back(drafts(shard, {.name = "shard", .query_tokens = 4, .heads = heads}));
        cases.push_back(drafts(shard, fp8({.name = "shard fp8", .query_tokens = 4, .heads = heads})));
        cases.push_back(drafts(shard, separate({.name = "shard gqa", .query_tokens = 3, .heads = heads})));
      }
      cases.push_back(drafts({rank, 4, 1}, v4({.name = "shard v4", .query_tokens = 3, .heads = heads})));
    }
    CaseSpec ragged = {.name = "shard ragged",
                       .heads = 16,
                       .lengths = {10, 100, 64, 300, 1},
                       .ragged_tokens = {1, 3, 0, 4, 2},
                       .causal = true,
                       .shard = {rank, 4, 1}};
    cases.push_back(ragged);
    cases.push_back(fp8(ragged));
    cases.push_back(separate(ragged));
    for (CaseSpec window : {v4(ragged), fp8(ragged)}) {
      window.name = "shard ragged window";
      window.window = 70;
      cases.push_back(std::move(window));
    }
    ragged.ragged_tokens.clear();
    ragged.query_tokens = 2;
    ragged.lengths = {2200, 3};
    ragged.name = "shard invariant";
    ragged.batch_invariant = true;
    cases.push_back(ragged);
    CaseSpec prefix = drafts({rank, 4, 1}, separate({.name = "shard prefix", .heads = 16}));
    prefix.lengths = {500, 510, 520, 470, 90, 0};
    prefix.prefix_sharing = PrefixSharing::kAlways;
    prefix.sharers = 4;
    prefix.shared_tokens = 300;
    cases.push_back(std::move(prefix));
  }
}

}  // namespace flashlatent::tools
