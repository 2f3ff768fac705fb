// The page pool, rule by rule.
#include "flashlatent/page_pool.h"

#include <gtest/gtest.h>

#include <limits>

namespace flashlatent {
namespace {

using Ids = std::vector<PagePool::ContentId>;
using Pages = std::vector<std::int32_t>;

class PagePoolSizes : public testing::TestWithParam<int> {
 protected:
  static PagePool pool_of(int pages) { return *PagePool::create_pool(pages, GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(PageSize, PagePoolSizes, testing::Values(1, 16, 64));

Pages pages_of(const PagePool& pool, PagePool::Sequence sequence) {
  const auto pages = pool.pages(sequence);
  EXPECT_TRUE(pages.ok());
  return pages.ok() ? Pages(pages->begin(), pages->end()) : Pages();
}

/// A sequence of these full pages, registered.
PagePool::Sequence committed(PagePool& pool, const Ids& contents) {
  const auto created = pool.create(contents, static_cast<int>(contents.size()) * pool.page_size());
  EXPECT_TRUE(created.ok());
  EXPECT_EQ(*pool.commit(created->sequence, contents), static_cast<int>(contents.size()));
  return created->sequence;
}

void expect_counts(const PagePool& pool, int used, int cached, int free) {
  const PagePool::Stats stats = pool.stats();
  EXPECT_EQ(stats.used, used);
  EXPECT_EQ(stats.cached, cached);
  EXPECT_EQ(stats.free, free);
  EXPECT_EQ(stats.pages, used + cached + free);
  const Status status = pool.check_invariants();
  EXPECT_TRUE(status.ok()) << status.message();
}

/// `result` failed with `code` and a message that has `words`.
template <class R>
void expect_error(const R& result, StatusCode code, const std::string& words) {
  ASSERT_FALSE(result.ok());
  Status status;
  if constexpr (std::is_same_v<R, Status>) {
    status = result;
  } else {
    status = result.status();
  }
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

TEST_P(PagePoolSizes, LengthsTakeTheirPages) {
  PagePool pool = pool_of(10);
  const int size = GetParam();
  const auto none = pool.create({}, 0);
  expect_counts(pool, 0, 0, 10);
  EXPECT_EQ(*pool.length(none->sequence), 0);
  const auto some = pool.create({}, 3 * size + 1);
  EXPECT_EQ(some->cached_pages, 0);
  EXPECT_EQ(pages_of(pool, some->sequence).size(), 4U);
  EXPECT_EQ(pool.append(some->sequence, size - 1)->tokens, 0);
  expect_counts(pool, 4, 0, 6);
  EXPECT_EQ(pool.append(some->sequence, 0)->tokens, 0);
  EXPECT_TRUE(pool.append(some->sequence, 1).ok());
  EXPECT_EQ(*pool.length(some->sequence), 4 * size + 1);
  expect_counts(pool, 5, 0, 5);
  EXPECT_TRUE(pool.append(none->sequence, 5 * size).ok());
  expect_counts(pool, 10, 0, 0);
  EXPECT_TRUE(pool.release(some->sequence).ok());
  EXPECT_TRUE(pool.release(none->sequence).ok());
  expect_counts(pool, 0, 0, 10);
}

TEST_P(PagePoolSizes, LongestRegisteredPrefixIsShared) {
  PagePool pool = pool_of(20);
  const int size = GetParam();
  const PagePool::Sequence first = committed(pool, {1, 2, 3});
  const auto second = pool.create(Ids{1, 2, 4}, 4 * size);
  EXPECT_EQ(second->cached_pages, 2);
  const Pages a = pages_of(pool, first), b = pages_of(pool, second->sequence);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
  // Equal contents behind another prefix are other tokens.
  EXPECT_EQ(pool.create(Ids{2, 3}, 2 * size)->cached_pages, 0);
  EXPECT_EQ(pool.create(Ids{1, 3}, 2 * size)->cached_pages, 1);
  const PagePool::Stats stats = pool.stats();
  EXPECT_EQ(stats.lookups, 3 + 3 + 2 + 2);
  EXPECT_EQ(stats.hits, 2 + 1);
  expect_counts(pool, 3 + 2 + 2 + 1, 0, 12);
}

TEST_P(PagePoolSizes, ReleasedPrefixStaysUntilNeeded) {
  PagePool pool = pool_of(4);
  const int size = GetParam();
  const PagePool::Sequence first = committed(pool, {1, 2, 3});
  const Pages pages = pages_of(pool, first);
  ASSERT_TRUE(pool.release(first).ok());
  expect_counts(pool, 0, 3, 1);
  const auto again = pool.create(Ids{1, 2}, 2 * size);
  EXPECT_EQ(again->cached_pages, 2);
  EXPECT_EQ(pages_of(pool, again->sequence), Pages(pages.begin(), pages.begin() + 2));
  expect_counts(pool, 2, 1, 1);
  // The free page goes first, then the cached one.
  EXPECT_TRUE(pool.append(again->sequence, 1).ok());
  EXPECT_EQ(pool.stats().evictions, 0);
  EXPECT_TRUE(pool.append(again->sequence, size).ok());
  EXPECT_EQ(pool.stats().evictions, 1);
  EXPECT_EQ(pages_of(pool, again->sequence).back(), pages[2]);
  expect_counts(pool, 4, 0, 0);
}

TEST_P(PagePoolSizes, EvictsLeastRecentlyUsedAndLeavesFirst) {
  PagePool pool = pool_of(6);
  const int size = GetParam();
  const PagePool::Sequence a = committed(pool, {1, 2, 3});
  const PagePool::Sequence b = committed(pool, {1, 2, 4});  // shares two
  const PagePool::Sequence c = committed(pool, {7, 8});
  const Pages pa = pages_of(pool, a), pb = pages_of(pool, b), pc = pages_of(pool, c);
  ASSERT_TRUE(pool.release(a).ok());  // cached: a3
  ASSERT_TRUE(pool.release(c).ok());  // a3 c8 c7
  ASSERT_TRUE(pool.release(b).ok());  // a3 c8 c7 b4 2 1
  expect_counts(pool, 0, 6, 0);
  ASSERT_TRUE(pool.release(pool.create(Ids{7}, size)->sequence).ok());  // used again: a3 c8 b4 2 1 c7
  const auto all = pool.create({}, 6 * size);
  EXPECT_EQ(pages_of(pool, all->sequence), (Pages{pa[2], pc[1], pb[2], pa[1], pa[0], pc[0]}));
  EXPECT_EQ(pool.stats().evictions, 6);
  expect_counts(pool, 6, 0, 0);
  ASSERT_TRUE(pool.release(all->sequence).ok());
  EXPECT_EQ(pool.create(Ids{1}, size)->cached_pages, 0);  // forgotten
}

TEST_P(PagePoolSizes, CommitReplacesTwins) {
  PagePool pool = pool_of(10);
  const int size = GetParam();
  // Both were made before either was registered.
  const auto a = pool.create(Ids{1, 2}, 2 * size), b = pool.create(Ids{1, 2}, 2 * size + 1);
  EXPECT_EQ(b->cached_pages, 0);
  EXPECT_EQ(*pool.commit(a->sequence, Ids{1, 2}), 2);
  expect_counts(pool, 5, 0, 5);
  EXPECT_EQ(*pool.commit(b->sequence, Ids{1, 2}), 2);
  expect_counts(pool, 3, 0, 7);
  const Pages pa = pages_of(pool, a->sequence), pb = pages_of(pool, b->sequence);
  EXPECT_EQ(pa, Pages(pb.begin(), pb.begin() + 2));
  EXPECT_EQ(*pool.commit(b->sequence, {}), 2);  // nothing new
}

TEST_P(PagePoolSizes, ForkedTwinsStayTheirOwn) {
  PagePool pool = pool_of(10);
  const int size = GetParam();
  const auto a = pool.create(Ids{1, 2}, 2 * size);
  const PagePool::Sequence fork = *pool.fork(a->sequence);
  const PagePool::Sequence twin = committed(pool, {1, 2});
  const Pages before = pages_of(pool, a->sequence);
  EXPECT_EQ(*pool.commit(a->sequence, Ids{1, 2}), 0);
  EXPECT_EQ(pages_of(pool, a->sequence), before);
  ASSERT_TRUE(pool.release(fork).ok());
  EXPECT_EQ(*pool.commit(a->sequence, Ids{1, 2}), 2);
  EXPECT_EQ(pages_of(pool, a->sequence), pages_of(pool, twin));
  expect_counts(pool, 2, 0, 8);
}

TEST_P(PagePoolSizes, ForkedLastPageIsCopiedOnWrite) {
  PagePool pool = pool_of(10);
  const int size = GetParam();
  const auto a = pool.create({}, size + (size > 1 ? size / 2 : 0));
  const PagePool::Sequence b = *pool.fork(a->sequence);
  const Pages shared = pages_of(pool, a->sequence);
  EXPECT_EQ(pages_of(pool, b), shared);
  const int used = static_cast<int>(shared.size());
  expect_counts(pool, used, 0, 10 - used);
  EXPECT_EQ(pool.append(b, 0)->tokens, 0);  // writes nothing, copies nothing
  expect_counts(pool, used, 0, 10 - used);

  const auto copy = pool.append(b, 1);
  if (size == 1) {  // no page is ever partly filled
    EXPECT_EQ(copy->tokens, 0);
  } else {
    EXPECT_EQ(copy->from, shared[1]);
    EXPECT_EQ(copy->to, pages_of(pool, b)[1]);
    EXPECT_EQ(copy->tokens, size / 2);
  }
  EXPECT_EQ(pages_of(pool, b)[0], shared[0]);
  EXPECT_EQ(pages_of(pool, a->sequence), shared);
  EXPECT_EQ(pool.append(a->sequence, 1)->tokens, 0);  // now its own
  EXPECT_EQ(pages_of(pool, a->sequence)[0], shared[0]);
  ASSERT_TRUE(pool.release(a->sequence).ok());
  ASSERT_TRUE(pool.release(b).ok());
  expect_counts(pool, 0, 0, 10);
}

TEST_P(PagePoolSizes, FullPoolRefusesAndChangesNothing) {
  PagePool pool = pool_of(4);
  const int size = GetParam();
  ASSERT_TRUE(pool.release(committed(pool, {1, 2})).ok());
  const auto a = pool.create({}, size);
  expect_counts(pool, 1, 2, 1);
  // Two pages would be shared and so cannot be evicted for the other two.
  const auto refused = pool.create(Ids{1, 2}, 4 * size);
  expect_error(refused, StatusCode::kExhausted, "needs 2 fresh pages");
  expect_error(refused, StatusCode::kExhausted, "pool's 4 only 1");
  expect_error(pool.create({}, 3 * size + 1), StatusCode::kExhausted, "needs 4 fresh pages");
  expect_error(pool.append(a->sequence, 3 * size + 1), StatusCode::kExhausted, "needs 4 fresh pages");
  expect_error(pool.create({}, size, 3), StatusCode::kExhausted, "needs 4 fresh pages");
  expect_error(pool.create(Ids{1, 2}, 2 * size, 2), StatusCode::kExhausted, "needs 2 fresh pages");
  expect_counts(pool, 1, 2, 1);
  EXPECT_EQ(*pool.length(a->sequence), size);
  EXPECT_EQ(pool.stats().evictions, 0);
  EXPECT_EQ(pool.stats().lookups, 2);
  EXPECT_EQ(pool.stats().sequences, 1);
  ASSERT_TRUE(pool.release(pool.create(Ids{1, 2}, 2 * size, 1)->sequence).ok());
  EXPECT_EQ(pool.create(Ids{1, 2}, 3 * size)->cached_pages, 2);  // both are still there
}

TEST_P(PagePoolSizes, FullPoolRefusesACopyOnWrite) {
  if (GetParam() == 1) GTEST_SKIP() << "pages of one token are never partly filled";
  PagePool pool = pool_of(1);
  const auto a = pool.create({}, 1);
  const PagePool::Sequence b = *pool.fork(a->sequence);
  expect_error(pool.append(b, 1), StatusCode::kExhausted, "needs 1 fresh pages");
  expect_counts(pool, 1, 0, 0);
  ASSERT_TRUE(pool.release(a->sequence).ok());
  EXPECT_EQ(pool.append(b, 1)->tokens, 0);
}

TEST_P(PagePoolSizes, PageTables) {
  PagePool pool = pool_of(10);
  const int size = GetParam();
  const auto a = pool.create({}, size + 1), b = pool.create({}, 3 * size), c = pool.create({}, 0);
  const std::vector<PagePool::Sequence> batch = {b->sequence, c->sequence, a->sequence};
  std::vector<std::int32_t> table(5 * 4, 99), lengths(5, 99);
  ASSERT_TRUE(pool.write_page_table(batch, 4, table, lengths).ok());
  const Pages pa = pages_of(pool, a->sequence), pb = pages_of(pool, b->sequence);
  EXPECT_EQ(table, (Pages{pb[0], pb[1], pb[2], -1, -1, -1, -1, -1, pa[0], pa[1],
                          -1,    -1,    -1,    -1, -1, -1, -1, -1, -1,    -1}));
  EXPECT_EQ(lengths, (Pages{3 * size, 0, size + 1, 0, 0}));

  const Pages before = table;
  std::vector<std::int32_t> narrow(5 * 2);
  expect_error(pool.write_page_table(batch, 2, narrow, lengths), StatusCode::kInvalidArgument,
               "max_pages is 2, but row 0 of the batch has 3 pages");
  expect_error(pool.write_page_table(batch, 3, table, lengths), StatusCode::kInvalidArgument, "5 x 3");
  expect_error(pool.write_page_table(batch, -1, table, lengths), StatusCode::kInvalidArgument,
               "max_pages is -1");
  expect_error(pool.write_page_table(batch, 4, std::span(table).first(20), std::span(table).subspan(15)),
               StatusCode::kInvalidArgument, "overlaps block_table");
  expect_error(pool.write_page_table(batch, 4, table, std::span(lengths).first(2)),
               StatusCode::kInvalidArgument, "2 rows");
  ASSERT_TRUE(pool.release(a->sequence).ok());
  expect_error(pool.write_page_table(batch, 4, table, lengths), StatusCode::kInvalidArgument, "not live");
  EXPECT_EQ(table, before);
}

TEST(PagePool, BadArguments) {
  constexpr auto kBad = StatusCode::kInvalidArgument;
  expect_error(PagePool::create_pool(0, 64), kBad, "pages is 0");
  expect_error(PagePool::create_pool(std::numeric_limits<int>::max(), 64), kBad, "pages is 2147483647");
  expect_error(PagePool::create_pool(1, 0), kBad, "page_size is 0");

  PagePool pool = *PagePool::create_pool(8, 16);
  expect_error(pool.create({}, -1), kBad, "length is -1");
  expect_error(pool.create({}, 1, -1), kBad, "spare is -1");
  expect_error(pool.create(Ids{1, 2}, 31), kBad, "contents has 2 entries");
  const auto a = pool.create({}, 32);
  expect_error(pool.append(a->sequence, -1), kBad, "tokens is -1");
  expect_error(pool.append(a->sequence, std::numeric_limits<int>::max()), kBad, "tokens is 2147483647");
  expect_error(pool.commit(a->sequence, Ids{1, 2, 3}), kBad, "fills only 2 pages");
  ASSERT_TRUE(pool.commit(a->sequence, Ids{1}).ok());
  expect_error(pool.commit(a->sequence, Ids{5, 2}), kBad, "was registered with 1");
  expect_error(pool.create({}, std::numeric_limits<int>::max()), StatusCode::kExhausted, "needs 134217728");
  expect_counts(pool, 2, 0, 6);
}

TEST(PagePool, Grow) {
  PagePool pool = *PagePool::create_pool(3, 16);
  const PagePool::Sequence first = pool.create({}, 40)->sequence;
  ASSERT_TRUE(pool.commit(first, Ids{1, 2}).ok());
  const PagePool::Sequence forked = *pool.fork(first);
  expect_error(pool.append(forked, 1), StatusCode::kExhausted, "needs 1 fresh pages");
  const auto pages = *pool.pages(first);
  const std::vector<std::int32_t> before(pages.begin(), pages.end());
  for (const int wrong : {2, -1, PagePool::kMaxPages + 1}) {
    expect_error(pool.grow(wrong), StatusCode::kInvalidArgument,
                 "pages is " + std::to_string(wrong) + ", must be 3");
  }
  ASSERT_TRUE(pool.grow(3).ok());
  ASSERT_TRUE(pool.grow(9).ok());
  expect_counts(pool, 3, 0, 6);
  const auto after = *pool.pages(first);
  EXPECT_EQ(std::vector<std::int32_t>(after.begin(), after.end()), before);
  EXPECT_EQ(pool.append(forked, 1)->from, before[2]);  // shared still
  EXPECT_EQ(pool.find(Ids{1, 2, 3}), 2);
  EXPECT_EQ(pool.create(Ids{1, 2}, 33)->cached_pages, 2);
  EXPECT_TRUE(pool.check_invariants().ok());
}

TEST(PagePool, StaleHandles) {
  constexpr auto kBad = StatusCode::kInvalidArgument;
  PagePool pool = *PagePool::create_pool(8, 16);
  PagePool other = *PagePool::create_pool(8, 16);
  const PagePool::Sequence old = pool.create({}, 20)->sequence;
  const PagePool::Sequence of_other = other.create({}, 20)->sequence;
  ASSERT_TRUE(pool.release(old).ok());
  const PagePool::Sequence fresh = pool.create({}, 20)->sequence;
  EXPECT_EQ(fresh.slot, old.slot);  // the slot is used again, the handle is not
  for (PagePool::Sequence wrong : {old, of_other, PagePool::Sequence{}, PagePool::Sequence{7, 0}}) {
    expect_error(pool.append(wrong, 1), kBad, "not live");
    expect_error(pool.fork(wrong), kBad, "not live");
    expect_error(pool.commit(wrong, Ids{1}), kBad, "not live");
    expect_error(pool.release(wrong), kBad, "not live");
    expect_error(pool.length(wrong), kBad, "not live");
    expect_error(pool.pages(wrong), kBad, "not live");
  }
  expect_counts(pool, 2, 0, 6);
}

}  // namespace
}  // namespace flashlatent
