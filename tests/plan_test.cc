// What a plan promises, for random batches.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "plan/block_cost.h"
#include "plan/describe.h"
#include "plan/even_shares.h"
#include "plan/geometries.h"
#include "plan/host_plan.h"
#include "plan/packing.h"
#include "plan/shares_by_length.h"
#include "plan/team_shares.h"
#include "plan/walker.h"
#include "plan/whole.h"
#include "plan_cases.h"

namespace flashlatent::schedule {
namespace {

class BuiltPlan {
 public:
  explicit BuiltPlan(const Batch& batch, const Building& building = {})
      : batch_(batch), memory_(plan_bytes(batch.geometry) / 8 + 1, 0xAAAAAAAAAAAAAAAAULL) {
    build_on_host(batch.geometry, batch.lengths.data(), memory_.data(), building);
  }

  PlanView view() { return plan_view(batch_.geometry, memory_.data()); }

  std::vector<std::vector<Segment>> parts(const std::vector<std::int32_t>& lengths) {
    std::vector<std::vector<Segment>> parts(batch_.geometry.parts);
    for (int p = 0; p < batch_.geometry.parts; ++p) {
      PartWalker walker(batch_.geometry, view().cuts[p], view().cuts[p + 1], view().successors,
                        lengths.data());
      for (Segment segment; walker.next(segment);) parts[p].push_back(segment);
    }
    return parts;
  }

 private:
  const Batch& batch_;
  std::vector<std::uint64_t> memory_;
};

/// Every block of every item exactly once and in order; partial results in their own places, which the merges
/// cover in order.
void expect_complete(const Batch& batch, BuiltPlan& plan, const std::vector<std::int32_t>& lengths) {
  const Geometry& g = batch.geometry;
  const PlanView view = plan.view();
  ASSERT_LE(view.header->partials, max_partials(g));
  ASSERT_LE(view.header->merges, max_merges(g));
  std::vector<int> done(std::size_t(g.requests) * g.rounds, 0);  // blocks
  std::vector<int> seen(std::size_t(g.requests) * g.rounds, 0);  // segments
  std::vector<std::int64_t> partial_item(view.header->partials, -1);
  for (const auto& part : plan.parts(lengths)) {
    for (const Segment& s : part) {
      const std::int64_t item = std::int64_t{s.round} * g.requests + s.request;
      ASSERT_LT(item, static_cast<std::int64_t>(done.size()));
      ASSERT_EQ(s.block_begin, done[item]) << "request " << s.request;
      ASSERT_LE(s.block_begin, s.block_end);
      done[item] = s.block_end;
      ++seen[item];
      if (s.partial < 0) continue;
      ASSERT_LT(s.partial, view.header->partials);
      ASSERT_EQ(partial_item[s.partial], -1) << "place " << s.partial << " twice";
      partial_item[s.partial] = item;
    }
  }
  for (int round = 0; round < g.rounds; ++round) {
    for (int r = 0; r < g.requests; ++r) {
      const std::size_t item = std::size_t(round) * g.requests + r;
      ASSERT_EQ(done[item], blocks_of(g, lengths[r])) << "request " << r;
      ASSERT_GE(seen[item], 1) << "request " << r << " would never be written";
    }
  }
  std::int32_t place = 0;
  for (int m = 0; m < view.header->merges; ++m) {
    const Merge& merge = view.merges[m];
    ASSERT_EQ(merge.partial_begin, place);
    ASSERT_GT(merge.partial_end, merge.partial_begin + (g.partition == Partition::kSharesByLength ? 0 : 1));
    for (; place < merge.partial_end; ++place) {
      ASSERT_EQ(partial_item[place], std::int64_t{merge.round} * g.requests + merge.request)
          << "place " << place;
    }
  }
  ASSERT_EQ(place, view.header->partials);
}

TEST(Plan, EveryBlockOnce) {
  std::mt19937_64 engine(1);
  for (int i = 0; i < 4000; ++i) {
    const Batch batch = random_batch(engine, i % 3 == 0);
    BuiltPlan plan(batch);
    expect_complete(batch, plan, batch.lengths);
    if (HasFatalFailure()) FAIL() << "batch " << i;
  }
}

TEST(Plan, LargestPartIsWithinASplitAndABlockOrMergeOfTheIdeal) {
  std::mt19937_64 engine(2);
  for (int i = 0; i < 4000; ++i) {
    Batch batch = random_batch(engine, false);
    batch.geometry.cost.per_block_alone = 0;
    const Geometry& g = batch.geometry;
    BuiltPlan plan(batch);
    const std::int64_t ideal = (plan.view().header->total_cost + g.parts - 1) / g.parts;
    for (const auto& part : plan.parts(batch.lengths)) {
      std::int64_t cost = 0;
      for (const Segment& s : part) {
        cost += g.cost.per_split + std::int64_t{s.block_end - s.block_begin} * g.cost.per_block;
      }
      ASSERT_LE(cost, ideal + g.cost.per_split + std::max(g.cost.per_block, g.cost.per_merge))
          << "batch " << i;
    }
  }
}

TEST(Plan, NothingIsSplitWhereWholeRequestsTakeNoLonger) {
  auto merges = [](int requests, int parts, int length) {
    const Batch batch{{.requests = requests,
                       .parts = parts,
                       .max_tokens = 10000,
                       .cost = {.per_block = 10, .per_split = 40, .per_merge = 40}},
                      std::vector<std::int32_t>(requests, length)};
    return BuiltPlan(batch).view().header->merges;
  };
  EXPECT_EQ(merges(128, 132, 4096), 0);
  EXPECT_EQ(merges(128, 66, 4096), 0);
  EXPECT_EQ(merges(40, 132, 64), 0);
  EXPECT_GT(merges(100, 132, 8192), 0);
  EXPECT_EQ(merges(1, 132, 10000), 1);
}

// 132 parts that read at once wait for memory; of 96 whole requests each reads faster, 48 would no longer
// wait.
TEST(Plan, FewerWholeRequestsThanPartsShareMemory) {
  Batch batch{{.parts = 132,
               .max_tokens = 10000,
               .cost = {.per_block = 2200, .per_split = 7000, .per_merge = 11300, .per_block_alone = 1550}},
              {}};
  auto merges = [&](int requests, int length) {
    batch.geometry.requests = requests;
    batch.lengths.assign(requests, length);
    return BuiltPlan(batch).view().header->merges;
  };
  EXPECT_GT(merges(48, 4096), 0);
  EXPECT_GT(merges(96, 9600), 0);  // a merge is little beside so many blocks
  EXPECT_EQ(merges(96, 4096), 0);
  batch.lengths[17] = 9600;  // much longer than the others
  EXPECT_GT(BuiltPlan(batch).view().header->merges, 0);

  // 96 of 132 are 60 / 132 of the way from a block alone to a block among all.
  batch.geometry.max_tokens = 4096;
  const std::int64_t whole = estimate(batch.geometry);
  EXPECT_EQ(whole, 7000 + 64 * (1550 + 650 * 60 / 132));
  batch.geometry.cost.per_block_alone = 0;
  EXPECT_GT(merges(96, 4096), 0);
  EXPECT_LT(whole, estimate(batch.geometry));
}

// Up to half of the parts share memory alone; from there on neighbours share a way to it, and the slowest
// part decides. The cost neither falls with more parts nor jumps.
TEST(Plan, ABlockAmongFewerPartsCostsLess) {
  Geometry g{.parts = 132, .cost = {.per_block = 2200, .per_block_alone = 1550}};
  EXPECT_EQ(block_cost_among(g, 1), 1550);
  EXPECT_EQ(block_cost_among(g, 66), 1550);
  EXPECT_EQ(block_cost_among(g, 99), (1550 + 2200) / 2);
  EXPECT_EQ(block_cost_among(g, 132), 2200);
  EXPECT_EQ(block_cost_among(g, 1000), 2200);
  // Slower memory binds with fewer parts, but the way to it is no slower.
  g.cost.per_block = 3300;
  g.cost.per_block_near = 2200;
  EXPECT_EQ(block_cost_among(g, 60), 1550);
  EXPECT_EQ(block_cost_among(g, 66), 1650);
  EXPECT_EQ(block_cost_among(g, 99), 2475);
  g.cost = {.per_block = 1855, .per_block_alone = 1370, .per_block_near = 1640};
  EXPECT_EQ(block_cost_among(g, 96), 1370 + 270 * 60 / 132);
  EXPECT_EQ(block_cost_among(g, 128), 1855 * 128 / 132);
  for (const std::int32_t alone : {0, 1, 700, 1650, 1651, 3299, 3300, 4000}) {
    for (const std::int32_t near : {0, 1, 1700, 3300}) {
      g.cost = {.per_block = 3300, .per_block_alone = alone, .per_block_near = near};
      for (int parts = 1; parts <= 140; ++parts) {
        const std::int32_t cost = block_cost_among(g, parts);
        EXPECT_LE(cost, 3300) << alone << ", " << parts;
        EXPECT_LE(cost, block_cost_among(g, parts + 1)) << alone << ", " << parts;
        EXPECT_LE(block_cost_among(g, parts + 1) - cost, 3300 * 2 / 132 + 1) << alone << ", " << parts;
        if (alone > 0 && alone <= 3300) EXPECT_GE(cost, alone) << alone << ", " << parts;
      }
    }
  }
}

// What a kernel that does not walk such a part takes for its only segment.
TEST(Plan, PartsOfOneItemAreToldByTheirCuts) {
  std::mt19937_64 engine(9);
  int found = 0;
  for (int i = 0; i < 3000; ++i) {
    const Batch batch = i % 3 == 0 ? random_whole_batch(engine) : random_batch(engine, i % 7 == 0);
    const Geometry& g = batch.geometry;
    if (std::int64_t{g.requests} * g.rounds > 20000) continue;
    BuiltPlan plan(batch);
    const PlanView view = plan.view();
    const auto parts = plan.parts(batch.lengths);
    for (int p = 0; p < g.parts; ++p) {
      const Cut begin = g.partition == Partition::kWhole ? whole_cut(g, p) : view.cuts[p];
      const Cut end = g.partition == Partition::kWhole ? next_item(g, begin) : view.cuts[p + 1];
      const bool one =
          may_be_one_item(g, begin, end) && same_item(item_after(g, begin, view.successors), end);
      if (!one) continue;
      ++found;
      ASSERT_EQ(parts[p].size(), 1U) << "batch " << i;
      ASSERT_EQ(parts[p][0].round, begin.round);
      ASSERT_EQ(parts[p][0].request, begin.request);
      ASSERT_EQ(parts[p][0].block_begin, 0);
      ASSERT_EQ(parts[p][0].block_end, blocks_of(g, batch.lengths[begin.request]));
      ASSERT_LT(parts[p][0].partial, 0);
    }
  }
  EXPECT_GT(found, 10000);
}

// Short requests fill up what long ones leave, whatever the order they come in.
TEST(Plan, FewRequestsArePacked) {
  const CostModel cost{.per_block = 10, .per_split = 40, .per_merge = 40};
  Batch pairs{{.requests = 10, .parts = 5, .max_tokens = 10000, .cost = cost}, {}};
  for (int blocks = 100; blocks > 0; blocks -= 10) pairs.lengths.push_back(64 * blocks);
  BuiltPlan of_pairs(pairs);
  EXPECT_EQ(of_pairs.view().header->merges, 0);
  for (const auto& part : of_pairs.parts(pairs.lengths)) {
    ASSERT_EQ(part.size(), 2U);
    EXPECT_EQ(part[0].block_end + part[1].block_end, 110);
  }
  // 128 requests of 1 to 128 blocks. Cuts at equal distances would split 99 of them on 132 parts, 64 on 66.
  for (auto [parts, most_merges] : {std::pair{132, 66}, {66, 4}}) {
    Batch batch{{.requests = 128, .parts = parts, .max_tokens = 10000, .cost = cost}, {}};
    for (int i = 0; i < 128; ++i) batch.lengths.push_back(64 * (1 + i * 37 % 128));
    BuiltPlan plan(batch);
    EXPECT_LE(plan.view().header->merges, most_merges);
    expect_complete(batch, plan, batch.lengths);
  }
}

// 40 requests of 6 to 27 blocks on 132 parts: each part has one segment, and the longest of all is as short
// as can be.
TEST(Plan, SingleSharesWhereTheyAreNoLongerThanEqualCuts) {
  Batch batch{{.requests = 40,
               .parts = 132,
               .max_tokens = 10000,
               .cost = {.per_block = 2200, .per_split = 7000, .per_merge = 11300, .per_block_alone = 1550}},
              {}};
  for (int i = 0; i < 40; ++i) batch.lengths.push_back(64 * (6 + i * 13 % 22));
  BuiltPlan plan(batch);
  expect_complete(batch, plan, batch.lengths);
  const auto parts_within = [&](int most) {
    int parts = 0;
    for (std::int32_t length : batch.lengths) parts += (length / 64 + most - 1) / most;
    return parts;
  };
  int longest = 0;
  for (const auto& part : plan.parts(batch.lengths)) {
    ASSERT_LE(part.size(), 1U);
    if (!part.empty()) longest = std::max(longest, part[0].block_end - part[0].block_begin);
  }
  EXPECT_LE(parts_within(longest), 132);
  EXPECT_GT(parts_within(longest - 1), 132);
  // Three shares of 43 blocks each would be longer than parts of equal cuts, were it not that 12 parts less
  // share the memory bandwidth.
  const auto most_segments = [&](std::int32_t per_block_alone) {
    batch.geometry.cost.per_block_alone = per_block_alone;
    batch.lengths.assign(40, 8192);
    std::size_t most = 0;
    for (const auto& part : BuiltPlan(batch).parts(batch.lengths)) most = std::max(most, part.size());
    return most;
  };
  EXPECT_EQ(most_segments(1550), 1U);
  EXPECT_GT(most_segments(0), 1U);
}

// As many parts as `flashlatent plan --workers` takes, whose products need more than 32 bits.
TEST(Plan, SharesOfVeryManyParts) {
  for (const int parts : {20000, 46000, 50000, 65536}) {
    Batch batch{{.requests = 40,
                 .parts = parts,
                 .max_tokens = 40000000,
                 .cost = {.per_block = 2070, .per_split = 6500, .per_merge = 11300, .per_block_alone = 1550}},
                {}};
    std::int64_t blocks = 0;
    for (int i = 0; i < 40; ++i) batch.lengths.push_back(64 * (100000 + i * 7919 % 300000));
    for (const std::int32_t length : batch.lengths) blocks += length / 64;
    BuiltPlan plan(batch);
    expect_complete(batch, plan, batch.lengths);
    std::int64_t longest = 0;
    for (const auto& part : plan.parts(batch.lengths)) {
      std::int64_t of_part = 0;
      for (const Segment& s : part) of_part += s.block_end - s.block_begin;
      longest = std::max(longest, of_part);
    }
    EXPECT_LE(longest, blocks / parts + 8) << parts << " parts";
  }
}

TEST(Plan, PiecesOfPackedRequestsAreNotShort) {
  std::mt19937_64 engine(10);
  int packed = 0;
  for (int i = 0; i < 2000; ++i) {
    const Batch batch = random_batch(engine, false);
    const Geometry& g = batch.geometry;
    BuiltPlan plan(batch);
    bool in_order = true;
    for (int r = 0; r + 1 < g.requests; ++r) in_order = in_order && plan.view().successors[r] == r + 1;
    EXPECT_TRUE(in_order || may_pack(g, plan.view().cost_prefix[g.requests]));
    if (in_order) continue;
    ++packed;
    for (const auto& part : plan.parts(batch.lengths)) {
      for (const Segment& s : part) {
        ASSERT_TRUE(s.partial < 0 || s.block_end - s.block_begin >= kLeastPiece) << "batch " << i;
      }
    }
  }
  EXPECT_GT(packed, 100);
}

// What is not packed keeps its order and is balanced as well; a plan is no other problem's by that.
TEST(Plan, WithoutPackingRequestsStayInOrder) {
  std::mt19937_64 engine(12);
  int otherwise_packed = 0;
  for (int i = 0; i < 2000; ++i) {
    Batch batch = random_batch(engine, i % 5 == 0);
    batch.geometry.cost.per_block_alone = 0;
    const Geometry& g = batch.geometry;
    BuiltPlan plan(batch, {.packs = false}), packed(batch);
    expect_complete(batch, plan, batch.lengths);
    if (HasFatalFailure()) FAIL() << "batch " << i;
    EXPECT_EQ(plan.view().header->fingerprint, packed.view().header->fingerprint);
    EXPECT_EQ(plan.view().header->total_cost, packed.view().header->total_cost);
    if (!has_order(g)) continue;
    const std::int64_t ideal = (plan.view().header->total_cost + g.parts - 1) / g.parts;
    for (const auto& part : plan.parts(batch.lengths)) {
      std::int64_t cost = 0;
      for (const Segment& s : part) cost += item_cost(g, s.block_end - s.block_begin);
      ASSERT_LE(cost, ideal + g.cost.per_split + std::max(g.cost.per_block, g.cost.per_merge));
    }
    bool in_order = true;
    for (int r = 0; r + 1 < g.requests; ++r) {
      ASSERT_EQ(plan.view().successors[r], r + 1);
      in_order = in_order && packed.view().successors[r] == r + 1;
    }
    otherwise_packed += !in_order;
    std::vector<std::int32_t> longer = batch.lengths;  // a plan outlives its lengths
    for (std::int32_t& length : longer) length = std::min(length, g.max_tokens - 100) + 100;
    for (std::int32_t& length : longer) length = std::max(length, 0);
    const auto parts = plan.parts(longer);
    std::vector<std::int64_t> blocks(std::size_t(g.requests) * g.rounds, 0);
    for (const auto& part : parts) {
      for (const Segment& s : part) {
        blocks[std::size_t(s.round) * g.requests + s.request] += s.block_end - s.block_begin;
      }
    }
    for (std::size_t item = 0; item < blocks.size(); ++item) {
      ASSERT_EQ(blocks[item], blocks_of(g, longer[item % g.requests]));
    }
  }
  EXPECT_GT(otherwise_packed, 100);
}

TEST(Plan, TotalCostIsThatOfUnsplitRequests) {
  std::mt19937_64 engine(3);
  const Batch batch = random_batch(engine, false);
  BuiltPlan plan(batch);
  std::int64_t cost = 0;
  for (std::int32_t length : batch.lengths) {
    const std::int64_t blocks = (std::clamp(length, 0, batch.geometry.max_tokens) + 63) / 64;
    cost += batch.geometry.cost.per_split + blocks * batch.geometry.cost.per_block;
  }
  EXPECT_EQ(plan.view().header->total_cost, cost * batch.geometry.rounds);
}

// Lengths that changed after the plan was made lose or double nothing.
TEST(Plan, StaleLengths) {
  std::mt19937_64 engine(4);
  for (int i = 0; i < 2000; ++i) {
    const Batch batch = random_batch(engine, false);
    BuiltPlan plan(batch);
    std::vector<std::int32_t> lengths = batch.lengths;
    for (std::int32_t& length : lengths) {
      if (engine() % 2 == 0) length = static_cast<std::int32_t>(engine() % 5000);
    }
    expect_complete(batch, plan, lengths);
    if (HasFatalFailure()) FAIL() << "batch " << i;
  }
}

// Where shapes make each item a part nothing is merged, and no plan need be read to know the cuts.
TEST(Plan, WholeItems) {
  std::mt19937_64 engine(6);
  for (int i = 0; i < 300; ++i) {
    const Batch batch = random_whole_batch(engine);
    ASSERT_TRUE(validate(batch.geometry).ok());
    EXPECT_EQ(max_merges(batch.geometry), 0);
    EXPECT_EQ(max_partials(batch.geometry), 0);
    BuiltPlan plan(batch);
    expect_complete(batch, plan, batch.lengths);
    for (int k = 0; k <= batch.geometry.parts; ++k) {
      ASSERT_TRUE(plan.view().cuts[k] == whole_cut(batch.geometry, k)) << k;
    }
    for (const auto& part : plan.parts(batch.lengths)) ASSERT_EQ(part.size(), 1U);
    if (HasFatalFailure()) FAIL() << "batch " << i;
  }
}

// Where each part is of one item, all its blocks are shared out among its parts, also with lengths that came
// later, and long items have more parts.
TEST(Plan, SharedItems) {
  std::mt19937_64 engine(8);
  for (int i = 0; i < 300; ++i) {
    const Batch batch = random_shared_batch(engine);
    const Geometry& g = batch.geometry;
    ASSERT_TRUE(validate(g).ok());
    EXPECT_EQ(max_merges(g), 0);
    EXPECT_EQ(max_partials(g), g.parts);
    BuiltPlan plan(batch);
    std::vector<std::int32_t> lengths = batch.lengths;
    if (i % 2 == 0) lengths[engine() % lengths.size()] = static_cast<std::int32_t>(engine() % 5000);
    std::vector<int> done(g.requests, 0), parts(g.requests, 0);
    int k = 0;
    for (const auto& part : plan.parts(lengths)) {
      ASSERT_EQ(part.size(), 1U);
      const Segment& s = part.front();
      const ShareCut cut = share_cut(plan.view().cuts[k]);
      ASSERT_EQ(cut.share, parts[s.request]++) << "part " << k;
      ASSERT_EQ(s.partial, cut.shares > 1 ? k : -1);
      ASSERT_EQ(s.block_begin, done[s.request]);
      ASSERT_LE(s.block_begin, s.block_end);
      done[s.request] = s.block_end;
      ++k;
    }
    k = 0;
    for (int r = 0; r < g.requests; ++r) {
      ASSERT_EQ(done[r], blocks_of(g, lengths[r])) << "request " << r;
      ASSERT_GE(parts[r], 1) << "request " << r << " would never be written";
      ASSERT_EQ(share_cut(plan.view().cuts[k]).shares, parts[r]);
      k += parts[r];
    }
  }
  // Parts by length; a single request has all of them, whatever the plan.
  const Batch skewed{{.requests = 3,
                      .parts = 15,
                      .max_tokens = 100000,
                      .partition = Partition::kTeamShares,
                      .cost = {10, 1}},
                     {64 * 100, 64, 0}};
  BuiltPlan plan(skewed);
  EXPECT_EQ(share_cut(plan.view().cuts[0]).shares, 12);
  EXPECT_EQ(plan.view().cuts[14].request, 2);
  Result<PlanDescription> description =
      describe_plan(skewed.geometry, skewed.lengths.data(),
                    {plan.view().header, static_cast<std::size_t>(plan_bytes(skewed.geometry))}, "teams");
  ASSERT_TRUE(description.ok());
  EXPECT_EQ(description->merges, 2);
  EXPECT_EQ(description->partials, 14);
  const Batch single{
      {.requests = 1, .parts = 7, .max_tokens = 100000, .partition = Partition::kTeamShares, .cost = {10, 1}},
      {0}};
  BuiltPlan of_single(single);
  for (int k = 0; k < 7; ++k) {
    EXPECT_EQ(share_cut(of_single.view().cuts[k]), (ShareCut{7, 0, k, k}));
    EXPECT_EQ(lone_team_cut(single.geometry, k), (ShareCut{7, 0, k, k}));
  }
}

// Even parts do not depend on lengths, and all are merged, also those without blocks.
TEST(Plan, EvenParts) {
  std::mt19937_64 engine(9);
  for (int i = 0; i < 300; ++i) {
    const Batch batch = random_even_batch(engine);
    const Geometry& g = batch.geometry;
    ASSERT_TRUE(validate(g).ok());
    EXPECT_EQ(max_merges(g), g.requests);
    EXPECT_GE(max_partials(g), g.parts);
    BuiltPlan plan(batch);
    std::vector<std::int32_t> lengths = batch.lengths;
    if (i % 2 == 0) lengths[engine() % lengths.size()] = static_cast<std::int32_t>(engine() % 5000);
    expect_complete(batch, plan, lengths);
    for (int k = 0; k <= g.parts; ++k) {
      ASSERT_TRUE(share_cut(plan.view().cuts[k]) == even_cut(g, k)) << k;
    }
    if (HasFatalFailure()) FAIL() << "batch " << i;
  }
  Geometry g{.requests = 4, .parts = 66, .max_tokens = 2048, .cost = {}};
  ASSERT_TRUE(even_items(g).has_value());
  EXPECT_EQ(even_shares(*even_items(g)), 16);
  EXPECT_EQ(even_cut(*even_items(g), 64).shares, 0);  // nothing is left for the last two parts
  g.max_tokens = 64 * 10;
  EXPECT_EQ(even_shares(*even_items(g)), 10);  // of a block each
  g.max_tokens = 64;
  EXPECT_FALSE(even_items(g).has_value());
  g.max_tokens = 2048;
  g.requests = 34;
  EXPECT_FALSE(even_items(g).has_value());  // not two parts each
  g.requests = 4;
  fix_splits(g, 32);
  EXPECT_FALSE(even_items(g).has_value());
  g.fixed_split = 0;
  g.partition = Partition::kEvenShares;
  EXPECT_TRUE(validate(g).ok());
  g.requests = 34;
  EXPECT_FALSE(validate(g).ok());
}

// The longest part is as short as it can be, and each item has a part, also one without blocks.
TEST(Plan, PartsByLength) {
  std::mt19937_64 engine(10);
  for (int i = 0; i < 300; ++i) {
    const Batch batch = random_batch_by_length(engine);
    const Geometry& g = batch.geometry;
    ASSERT_TRUE(validate(g).ok());
    BuiltPlan plan(batch);
    EXPECT_EQ(plan.view().header->merges, g.requests);
    ASSERT_LE(plan.view().header->partials, std::min<std::int64_t>(g.parts, max_partials(g)));
    expect_complete(batch, plan, batch.lengths);
    std::vector<int> shares(g.requests);
    for (int k = 0; k < g.parts; ++k) {
      const ShareCut cut = share_cut(plan.view().cuts[k]);
      if (cut.shares == 0) continue;
      ASSERT_EQ(cut.share, shares[cut.request]++);
      ASSERT_EQ(cut.partial, k);
    }
    auto parts_within = [&](int most) {
      std::int64_t parts = 0;
      for (int length : batch.lengths) parts += std::max(1, (blocks_of(g, length) + most - 1) / most);
      return parts;
    };
    int longest = 1;
    for (int r = 0; r < g.requests; ++r) {
      ASSERT_GE(shares[r], 1) << "request " << r << " would never be written";
      longest = std::max(longest, (blocks_of(g, batch.lengths[r]) + shares[r] - 1) / shares[r]);
    }
    if (longest > 1) {
      EXPECT_GT(parts_within(longest - 1), g.parts);
    }
    if (HasFatalFailure()) FAIL() << "batch " << i;
  }
  Geometry g{.requests = 4, .parts = 66, .max_tokens = 1 << 20, .cost = {}};
  ASSERT_TRUE(items_by_length(g).has_value());
  const Batch small{*items_by_length(g), {64 * 32, 64 * 6, 0, 0}};
  EXPECT_EQ(BuiltPlan(small).view().header->partials, 32 + 6 + 2);  // of a block each
  const Batch skewed{*items_by_length(g), {64 * 600, 64 * 100, 64 * 5, 0}};
  BuiltPlan plan(skewed);
  EXPECT_EQ(share_cut(plan.view().cuts[0]), (ShareCut{50, 0, 0, 0}));  // of 12 blocks or less
  EXPECT_EQ(share_cut(plan.view().cuts[50 + 9 + 1 + 1]), (ShareCut{0, 4, 0, 61}));
  g.requests = 33;
  EXPECT_FALSE(items_by_length(g).has_value());  // more than a warp has lanes
  g.partition = Partition::kSharesByLength;
  EXPECT_FALSE(validate(g).ok());
}

// The merges of 16 requests with 8 parts each run at the same time; those of 100 do not. Cuts do not change.
TEST(Plan, MergesOfSingleSharesAreEstimatedApart) {
  Geometry g{.requests = 16,
             .parts = 132,
             .max_tokens = 8192,
             .cost = {.per_block = 1000, .per_split = 4000, .per_call = -1000, .per_merge = 15000}};
  const Geometry apart = with_shares_merged_in(g, 2500);
  EXPECT_EQ(estimate(apart), estimate(g) - 12500);
  EXPECT_EQ(apart.cost.per_merge, 15000);
  EXPECT_EQ(fingerprint(apart), fingerprint(g));
  EXPECT_EQ(estimate(with_shares_merged_in(g, 17000)), estimate(g) + 2000);
  // Whole items merge nothing.
  g.max_tokens = 64;
  EXPECT_EQ(estimate(with_shares_merged_in(g, 17000)), estimate(g));
  g.max_tokens = 8192;
  for (int requests : {0, 67, 100, 500}) {
    g.requests = requests;
    EXPECT_EQ(estimate(with_shares_merged_in(g, 2500)), estimate(g)) << requests;
  }
}

TEST(Plan, ItemsStayWholeWhereSplitsNeverPay) {
  Geometry g{.requests = 4,
             .parts = 16,
             .rounds = 2,
             .max_tokens = 256,
             .cost = {.per_block = 1000, .per_split = 500, .per_merge = 3000}};
  auto stays_whole = [&] { return never_gains_from_splits(g, whole_items(g).value()); };
  ASSERT_TRUE(whole_items(g).has_value());
  EXPECT_EQ(whole_items(g)->partition, Partition::kWhole);
  EXPECT_EQ(whole_items(g)->parts, 8);
  EXPECT_EQ(estimate(*whole_items(g)), 4500);
  EXPECT_TRUE(stays_whole());  // 4,500 against 4,500 / 16 + 1,000 + 500 + 3,000
  g.max_tokens = 320;
  EXPECT_FALSE(stays_whole());  // 5,500 against 5,500 / 16 + 4,500
  EXPECT_FALSE(never_gains_from_splits(g, whole_items(g).value(), 600));
  EXPECT_TRUE(never_gains_from_splits(g, whole_items(g).value(), 700));
  // A full batch of equal requests would take no longer, but one long request among short ones would.
  g.requests = 8;
  EXPECT_FALSE(stays_whole());
  g.max_tokens = 64;
  g.requests = 9;
  EXPECT_FALSE(whole_items(g).has_value());  // more items than parts
  g.requests = 0;
  EXPECT_FALSE(whole_items(g).has_value());
  g.requests = 4;
  fix_splits(g, 32);
  EXPECT_FALSE(whole_items(g).has_value());
  g.partition = Partition::kWhole;
  EXPECT_FALSE(validate(g).ok());
  g.partition = Partition::kTeamShares;
  g.fixed_split = 0;
  g.parts = 3;
  EXPECT_FALSE(validate(g).ok());  // fewer parts than requests
}

// A team's CTAs take all of a segment's blocks, none twice, and as many each as can be.
TEST(Plan, TeamShares) {
  for (int team : {1, 2, 8, 16}) {
    for (int blocks = 0; blocks < 200; ++blocks) {
      EXPECT_EQ(share_begin(blocks, team, 0), 0);
      EXPECT_EQ(share_begin(blocks, team, team), blocks);
      int with_blocks = 0;
      for (int rank = 0; rank < team; ++rank) {
        const int share = share_begin(blocks, team, rank + 1) - share_begin(blocks, team, rank);
        EXPECT_GE(share, blocks / team);
        EXPECT_LE(share, (blocks + team - 1) / team);
        with_blocks += share > 0;
      }
      EXPECT_EQ(with_blocks, std::min(blocks, team));
    }
    EXPECT_EQ(share_begin(1 << 30, team, team), 1 << 30);
  }
}

// With a fixed split, where a request is cut depends on its own length alone.
TEST(Plan, FixedSplitsIgnoreTheBatch) {
  std::mt19937_64 engine(5);
  for (int i = 0; i < 1000; ++i) {
    const Batch batch = random_batch(engine, true);
    BuiltPlan plan(batch);
    for (const auto& part : plan.parts(batch.lengths)) {
      for (const Segment& s : part) {
        const int blocks = blocks_of(batch.geometry, batch.lengths[s.request]);
        ASSERT_EQ(s.block_begin % batch.geometry.fixed_split, 0);
        ASSERT_EQ(s.block_end, std::min(blocks, s.block_begin + batch.geometry.fixed_split));
        ASSERT_EQ(s.partial >= 0, blocks > batch.geometry.fixed_split);
      }
    }
  }
}

TEST(Plan, WorkersServeAllTilesAndFewAreIdle) {
  for (int workers : {1, 2, 16, 78, 132}) {
    for (int tiles = 1; tiles <= 300; ++tiles) {
      Geometry g;
      set_workers(g, tiles, workers);
      ASSERT_EQ(g.lanes * g.rounds, tiles);
      ASSERT_LE(g.lanes * g.parts, workers);
      ASSERT_GE(10 * g.lanes * g.parts, 9 * workers) << tiles << " tiles on " << workers;
    }
  }
}

TEST(Plan, DescriptionAndPicture) {
  const Batch batch{{.requests = 3, .parts = 4, .max_tokens = 10000, .cost = {10, 40}}, {5000, 0, 64}};
  BuiltPlan plan(batch);
  const Memory memory{plan.view().header, static_cast<std::size_t>(plan_bytes(batch.geometry))};
  Result<PlanDescription> description = describe_plan(batch.geometry, batch.lengths.data(), memory, "test");
  ASSERT_TRUE(description.ok());
  EXPECT_EQ(description->parts.size(), 4U);
  EXPECT_EQ(description->merges, 1);
  EXPECT_EQ(description->total_cost, 3 * 40 + 80 * 10);
  EXPECT_LE(description->largest(), description->ideal() + 50);
  EXPECT_NE(to_string(*description).find("imbalance"), std::string::npos);
  EXPECT_EQ(to_string(*description).find("teams"), std::string::npos);
  const std::string svg = to_svg(*description);
  EXPECT_EQ(svg.find("<svg"), 0U);
  EXPECT_NE(svg.find("request 2, round 0, blocks 0 to 1<"), std::string::npos);
  // The plan of another geometry is recognised.
  Geometry other = batch.geometry;
  other.cost.per_block = 11;
  EXPECT_FALSE(describe_plan(other, batch.lengths.data(), memory, "test").ok());
  other = batch.geometry;
  other.team = 8;
  EXPECT_FALSE(describe_plan(other, batch.lengths.data(), memory, "test").ok());
  build_on_host(other, batch.lengths.data(), memory.data);
  description = describe_plan(other, batch.lengths.data(), memory, "test");
  ASSERT_TRUE(description.ok());
  EXPECT_NE(to_string(*description).find("lanes x teams of 8, 1 rounds"), std::string::npos);
}

TEST(Plan, FixedSplitsAndTheirSizeGoTogether) {
  Geometry g{.requests = 4, .parts = 16, .max_tokens = 4096, .cost = {}};
  EXPECT_TRUE(validate(g).ok());
  g.fixed_split = 32;  // of another partition
  EXPECT_FALSE(validate(g).ok());
  fix_splits(g, 32);
  EXPECT_TRUE(validate(g).ok());
  g.fixed_split = 0;
  EXPECT_FALSE(validate(g).ok());
  for (int none : {-1, 7}) {
    g.partition = static_cast<Partition>(none);
    EXPECT_FALSE(validate(g).ok()) << none;
  }
}

/// A batch of random lengths, cut in this way.
Batch batch_of(Partition partition, std::mt19937_64& engine) {
  switch (partition) {
    case Partition::kWhole:
      return random_whole_batch(engine);
    case Partition::kTeamShares:
      return random_shared_batch(engine);
    case Partition::kEvenShares:
      return random_even_batch(engine);
    case Partition::kSharesByLength:
      return random_batch_by_length(engine);
    case Partition::kFixedSplits:
      return random_batch(engine, true);
    case Partition::kTurns:
      return random_turns_batch(engine);
    case Partition::kLine:
      break;
  }
  return random_batch(engine, false);
}

// Each item once, whole, by the part that its number says.
TEST(Plan, TurnsGoRoundTheParts) {
  std::mt19937_64 engine(13);
  for (int i = 0; i < 200; ++i) {
    const Batch batch = random_turns_batch(engine);
    const Geometry& g = batch.geometry;
    const std::int64_t items = std::int64_t{g.requests} * g.rounds;
    if (items > 20000) continue;
    ASSERT_TRUE(validate(g).ok());
    BuiltPlan plan(batch);
    const auto parts = plan.parts(batch.lengths);
    for (std::int64_t item = 0; item < items; ++item) {
      const auto& part = parts[item % g.parts];
      ASSERT_LT(item / g.parts, static_cast<std::int64_t>(part.size()));
      const Segment& segment = part[item / g.parts];
      ASSERT_EQ(segment.round * std::int64_t{g.requests} + segment.request, item);
      ASSERT_EQ(segment.block_begin, 0);
      ASSERT_EQ(segment.block_end, blocks_of(g, batch.lengths[segment.request]));
      ASSERT_EQ(segment.partial, -1);
    }
    // Device code walks such parts alone, by no plan.
    for (int p = 0; p < g.parts; ++p) {
      Walker<Walks::kTurns> walker(g, whole_cut(g, p), Cut{}, nullptr, batch.lengths.data());
      std::size_t count = 0;
      for (Segment segment; walker.next(segment); ++count) {
        ASSERT_LT(count, parts[p].size());
        ASSERT_EQ(segment.request, parts[p][count].request);
      }
      ASSERT_EQ(count, parts[p].size());
    }
  }
}

// A walk gives a part the segments that the description has, and all that is told of a plan has its
// partition's name.
TEST(Plan, EveryPartitionHasANameAndIsDescribed) {
  std::mt19937_64 engine(12);
  std::set<std::string> names;
  for (Partition partition : kPartitions) {
    const Batch batch = batch_of(partition, engine);
    const Geometry& g = batch.geometry;
    ASSERT_EQ(g.partition, partition);
    ASSERT_TRUE(validate(g).ok());
    ASSERT_NE(name_of(partition), nullptr);
    EXPECT_TRUE(names.insert(name_of(partition)).second) << name_of(partition);
    BuiltPlan plan(batch);
    const Result<PlanDescription> description = describe_plan(
        g, batch.lengths.data(), {plan.view().header, static_cast<std::size_t>(plan_bytes(g))}, "test");
    ASSERT_TRUE(description.ok());
    EXPECT_EQ(description->partition, name_of(partition));
    const std::string text = to_string(*description);
    EXPECT_NE(text.substr(0, text.find('\n')).find(", partition: " + description->partition),
              std::string::npos);
    EXPECT_NE(to_svg(*description).find("parts (" + description->partition + ")"), std::string::npos);
    EXPECT_EQ(max_merges(g) > 0, may_merge(partition) && max_partials(g) > 0);
    if (is_shares(partition)) {
      for (const PlanPart& part : description->parts) EXPECT_LE(part.segments.size(), 1U);
    }
  }
  EXPECT_EQ(name_of(static_cast<Partition>(7)), nullptr);
}

TEST(Plan, OfSomePartsLeavesTheOthersEmpty) {
  std::mt19937_64 engine(9);
  for (int i = 0; i < 200; ++i) {
    const Batch batch = random_batch(engine, false);
    const std::int32_t used = 1 + static_cast<std::int32_t>(engine() % batch.geometry.parts);
    BuiltPlan plan(batch, {.used_parts = used});
    expect_complete(batch, plan, batch.lengths);
    if (::testing::Test::HasFatalFailure()) FAIL() << "batch " << i;
    const auto parts = plan.parts(batch.lengths);
    for (std::size_t p = used; p < parts.size(); ++p) EXPECT_TRUE(parts[p].empty()) << "part " << p;
  }
}

}  // namespace
}  // namespace flashlatent::schedule
