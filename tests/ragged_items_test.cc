// Plans of ragged requests whose query tokens are items: what a kernel walks, by the arithmetic that it has,
// beside what each query token sees by the definition. No device is asked.
#include "plan/ragged_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "plan/describe.h"
#include "plan/geometries.h"
#include "plan/host_plan.h"
#include "plan/walker.h"

namespace flashlatent::schedule {
namespace {

/// A batch with a window over a latent cache, or an extra cache as well.
struct Batch {
  DecodeProblem problem;
  std::vector<std::int32_t> counts, begins, lengths, extra;

  explicit Batch(std::vector<std::int32_t> query_tokens) : counts(std::move(query_tokens)) {
    begins.assign(counts.size() + 1, 0);
    std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
    problem.query = {.batch = static_cast<int>(counts.size()), .tokens = 1, .heads = 8, .ragged = true};
    problem.query.tokens = std::max(1, *std::max_element(counts.begin(), counts.end()));
    problem.cache.page_size = 10;
    problem.cache.max_pages = 400;
  }

  ConstTensorView view(const std::vector<std::int32_t>& values) const {
    return {values.data(), Dtype::kI32, {static_cast<std::int64_t>(values.size())}};
  }
  UnionLengths lists() const {
    return union_lengths({view(lengths), problem.cache.extra.enabled ? view(extra) : ConstTensorView()});
  }
  RaggedLengths ragged() const { return {lists(), begins.data()}; }

  Geometry geometry(int parts) const {
    Geometry g;
    g.parts = parts;
    g.cost = {.per_block = 600, .per_split = 1900};
    set_lists(g, problem);
    return g;
  }

  /// Tokens of the cache that a request's query token sees, by the definition.
  TokenSpan seen(int request, int token) const {
    const int all = std::clamp(lengths[request], 0, problem.cache.max_pages * problem.cache.page_size);
    const int end = std::max(problem.options.causal ? all - counts[request] + token + 1 : all, 0);
    return {problem.options.window > 0 ? std::max(end - problem.options.window, 0) : 0, end};
  }
};

Batch random_batch(std::mt19937& engine, int requests, int most) {
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); };
  std::vector<std::int32_t> counts;
  for (int i = 0; i < requests; ++i) counts.push_back(draw(0, 3) == 0 ? draw(0, most) : std::min(most, 1));
  Batch batch(counts);
  batch.problem.options.causal = draw(0, 2) > 0;
  batch.problem.options.window = draw(0, 1) == 0 ? draw(1, 70) : draw(65, 900);
  if (draw(0, 2) == 0) {
    batch.problem.cache.extra = {.enabled = true, .page_size = 2, .max_pages = 200};
    if (draw(0, 1) == 0) batch.problem.options.window = 0;
  }
  for (int i = 0; i < requests; ++i) {
    batch.lengths.push_back(draw(0, 4) == 0 ? draw(-2, most + 1) : draw(0, 4200));
    batch.extra.push_back(draw(0, 3) == 0 ? 0 : draw(0, 420));
  }
  return batch;
}

/// The blocks of each item, and the places of its partial results, as the parts of a plan have them.
struct Walked {
  std::vector<std::int32_t> next_block;
  std::map<std::int32_t, std::vector<std::int32_t>> places;
};

/// As kernels walk: without cu_seqlens_q, but for items without rows, which they leave out.
Walked walk(const Batch& batch, const Geometry& g, const PlanView& plan) {
  Walked walked{std::vector<std::int32_t>(g.requests), {}};
  const UnionLengths lists = batch.lists();
  for (int part = 0; part < g.parts; ++part) {
    Walker<Walks::kLines, true, UnionLengths> walker(g, plan.cuts[part], plan.cuts[part + 1], plan.successors,
                                                     lists);
    for (Segment s; walker.next(s);) {
      if (!has_query_token(g, batch.ragged(), s.request)) continue;
      EXPECT_EQ(s.block_begin, walked.next_block[s.request]);
      walked.next_block[s.request] = s.block_end;
      if (s.partial >= 0) walked.places[s.request].push_back(s.partial);
    }
  }
  return walked;
}

/// Every query token's tokens are walked once, and what is partial is merged.
void expect_right(const Batch& batch, const Geometry& g, const std::vector<std::uint64_t>& memory) {
  const PlanView plan = plan_view(g, const_cast<std::uint64_t*>(memory.data()));
  const Walked walked = walk(batch, g, plan);
  const UnionLengths lists = batch.lists();
  const int most = batch.problem.query.tokens;
  std::vector<int> items(batch.counts.size());
  for (int item = 0; item < g.requests; ++item) {
    const int request = item / most, token = ragged_token(most, batch.counts[request], item % most);
    ASSERT_EQ(token >= 0, has_query_token(g, batch.ragged(), item));
    if (token < 0) continue;
    EXPECT_EQ(token, items[request]++);
    const TokenSpan span = span_of(g, lists, 0, item), expected = batch.seen(request, token);
    EXPECT_EQ(span.begin, expected.begin);
    EXPECT_EQ(span.end, expected.end);
    EXPECT_EQ(walked.next_block[item],
              list_blocks(g, span.count()) + list_blocks(g, span_of(g, lists, 1, item).count()));
  }
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(items[i], batch.counts[i]);
  std::map<std::int32_t, Merge> merges;
  for (int i = 0; i < plan.header->merges; ++i) merges[plan.merges[i].request] = plan.merges[i];
  for (const auto& [item, places] : walked.places) {
    ASSERT_TRUE(merges.contains(item));
    std::vector<std::int32_t> merged(merges[item].partial_end - merges[item].partial_begin);
    std::iota(merged.begin(), merged.end(), merges[item].partial_begin);
    EXPECT_EQ(places, merged);
  }
}

template <class Lengths>
std::vector<std::uint64_t> build(const Geometry& g, const Lengths& lengths) {
  EXPECT_TRUE(validate(g).ok());
  std::vector<std::uint64_t> memory(plan_bytes(g) / 8 + 1);
  build_on_host(g, lengths, memory.data());
  return memory;
}

TEST(RaggedItems, AreWalkedOnceWhateverThePlanKnows) {
  std::mt19937 engine(3);
  for (int i = 0; i < 200; ++i) {
    const int requests = 1 + static_cast<int>(engine() % 40), most = 1 + static_cast<int>(engine() % 9);
    Batch batch = random_batch(engine, requests, most);
    for (int parts : {1, 7, 66, 132}) {
      const Geometry g = batch.geometry(parts);
      expect_right(batch, g, build(g, batch.lists()));
      expect_right(batch, g, build(g, batch.ragged()));
      // A plan of other query tokens, and other lengths.
      std::vector<std::int32_t> begins(batch.begins.size()), lengths = batch.lengths;
      for (int r = 0; r < requests; ++r)
        begins[r + 1] = begins[r] + static_cast<std::int32_t>(engine() % (most + 1));
      std::reverse(lengths.begin(), lengths.end());
      std::swap(lengths, batch.lengths);
      const auto other = build(g, RaggedLengths{batch.lists(), begins.data()});
      std::swap(lengths, batch.lengths);
      expect_right(batch, g, other);
      Geometry fixed = g;
      fix_splits(fixed, 2);
      expect_right(batch, fixed, build(fixed, batch.lists()));
      if (HasFailure()) FAIL() << "batch " << i << ", " << parts << " parts";
    }
  }
}

// One prompt among many requests of one token: without cu_seqlens_q one part has all of it.
TEST(RaggedItems, ThatRequestsLackTakeNothingOfAPart) {
  std::vector<std::int32_t> counts(100, 1);
  counts[37] = 500;
  Batch batch(counts);
  batch.problem.options.causal = true;
  batch.problem.options.window = 128;
  batch.lengths.assign(100, 2000);
  const Geometry g = batch.geometry(132);
  std::vector<std::uint64_t> memory = build(g, batch.ragged());
  const auto plan = describe_plan(g, batch.ragged(), {memory.data(), memory.size() * 8}, "a kernel");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::size_t segments = 0;
  for (const PlanPart& part : plan->parts) segments += part.segments.size();
  EXPECT_LT(segments, 599U + 132U);
  EXPECT_LE(plan->largest(), 2 * (1900 + 3 * 600) + static_cast<std::int64_t>(plan->ideal()));
}

}  // namespace
}  // namespace flashlatent::schedule
