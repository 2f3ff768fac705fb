// Plans of items with two lists of tokens, against lists laid out block by block.
#include "plan/token_lists.h"

#include <gtest/gtest.h>

#include <vector>

#include "flashlatent/decode.h"
#include "plan/geometries.h"
#include "plan/held_tokens.h"
#include "plan/host_plan.h"
#include "plan/walker.h"

namespace flashlatent::schedule {
namespace {

DecodeProblem problem(int tokens, int window, bool causal) {
  DecodeProblem p;
  p.query = {.batch = 3, .tokens = tokens, .heads = 8, .ragged = false};
  p.cache.page_size = 10;
  p.cache.max_pages = 30;
  p.cache.extra = {.enabled = true, .indexed = false, .page_size = 2, .topk = 0, .max_pages = 400};
  p.options.window = window;
  p.options.causal = causal;
  return p;
}

struct Item {
  TokenSpan first, extra;
};

/// By the definition.
Item item_of(const DecodeProblem& p, const std::vector<int>& first, const std::vector<int>& extra, int item) {
  const int s_q = p.query.tokens, request = item / s_q, token = item % s_q;
  int end = std::min(std::max(first[request], 0), p.cache.max_pages * p.cache.page_size);
  if (p.options.causal) end = std::max(end - s_q + token + 1, 0);
  const int begin = p.options.window > 0 ? std::max(end - p.options.window, 0) : 0;
  const int more = extra.size() > 3 ? extra[item] : extra[request];
  return {{begin, end}, {0, std::min(std::max(more, 0), 800)}};
}

TEST(TokenLists, BlocksOfAPlanAreThoseOfBothLists) {
  for (int tokens : {1, 2}) {
    for (int window : {0, 70}) {
      for (bool causal : {false, true}) {
        for (bool by_token : {false, true}) {
          const DecodeProblem p = problem(tokens, window, causal);
          const std::vector<int> first = {299, -4, 1000};
          std::vector<int> extra = {0, 129, 5000};
          if (by_token) {
            extra.clear();
            for (int i = 0; i < 3 * tokens; ++i) extra.push_back(40 * i);
          }
          UnionLengths lengths =
              union_lengths({ConstTensorView(first.data(), Dtype::kI32, {3}),
                             by_token ? ConstTensorView(extra.data(), Dtype::kI32, {3, tokens})
                                      : ConstTensorView(extra.data(), Dtype::kI32, {3})});
          if (by_token && tokens == 1) extra.resize(3);
          std::vector<Geometry> ways;
          for (int parts : {1, 3, 17}) {
            Geometry g;
            g.parts = parts;
            set_lists(g, p);
            ASSERT_EQ(g.requests, 3 * tokens);
            ways.push_back(g);
            if (const auto even = even_items(g)) ways.push_back(*even);
            if (const auto by_length = items_by_length(g)) ways.push_back(*by_length);
          }
          EXPECT_EQ(ways.size(), tokens == 1 ? 5U : 4U);  // by length goes one query token a request
          for (const Geometry& g : ways) {
            ASSERT_TRUE(validate(g).ok());
            std::vector<std::uint64_t> memory(plan_bytes(g) / 8 + 1);
            build_on_host(g, lengths, memory.data());
            const PlanView plan = plan_view(g, memory.data());
            std::vector<int> done(g.requests);
            for (int part = 0; part < g.parts; ++part) {
              Walker<Walks::kAll, true, UnionLengths> walker(g, plan.cuts[part], plan.cuts[part + 1],
                                                             plan.successors, lengths);
              for (Segment s; walker.next(s);) {
                EXPECT_EQ(s.block_begin, done[s.request]);
                done[s.request] = s.block_end;
                if (is_shares(g.partition)) {
                  const Merge& merge = plan.merges[s.request];
                  EXPECT_EQ(merge.request, s.request);
                  EXPECT_TRUE(merge.partial_begin <= s.partial && s.partial < merge.partial_end);
                }
              }
            }
            for (int item = 0; item < g.requests; ++item) {
              const Item expected = item_of(p, first, extra, item);
              const TokenSpan a = span_of(g, lengths, 0, item), b = span_of(g, lengths, 1, item);
              EXPECT_EQ(a.begin, expected.first.begin);
              EXPECT_EQ(a.end, expected.first.end);
              EXPECT_EQ(b.count(), expected.extra.end);
              const int blocks = (a.count() + 63) / 64;
              EXPECT_EQ(done[item], blocks + (b.count() + 63) / 64);
              EXPECT_LE(length_of(g, lengths, item), g.max_tokens);
              for (int block = 0; block < done[item]; ++block) {
                const ListBlock at = list_block(g, a.count(), block);
                EXPECT_EQ(at.list, block >= blocks);
                EXPECT_EQ(at.begin, 64 * (block < blocks ? block : block - blocks));
              }
            }
          }
        }
      }
    }
  }
}

// Items that are whole requests find what is held of a context by all of its query tokens' spans.
TEST(TokenLists, HeldSpansAreARequestsApart) {
  const HeldShape shape = {.shard = TokenShard(1, 2, 1), .requests = 3, .query_tokens = 4};
  const std::vector<int> contexts = {0, 9, 100};
  std::vector<std::uint64_t> memory(held_bytes(shape) / 8);
  hold_tokens(shape, contexts.data(), 1, memory.data());
  const HeldTokens held = held_tokens(shape, memory.data());
  // A tile of 192 rows may ask for 191 spans in front.
  EXPECT_GE(
      reinterpret_cast<const std::byte*>(held.spans) - reinterpret_cast<const std::byte*>(memory.data()),
      191 * sizeof(TokenSpan));
  const UnionLengths lengths = union_lengths({ConstTensorView(contexts.data(), Dtype::kI32, {3}), {}}, held);
  Geometry g;
  g.length_sharers = 1;
  g.list[0] = {.reach = 1000};
  for (int request = 0; request < 3; ++request) {
    EXPECT_EQ(span_of(g, lengths, 0, request).end, contexts[request] / 2) << request;
    EXPECT_EQ(held.lengths[request], contexts[request] / 2) << request;
  }
}

}  // namespace
}  // namespace flashlatent::schedule
