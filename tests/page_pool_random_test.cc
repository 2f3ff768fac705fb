// A million random operations on the page pool, each checked against a model made of maps and against what
// the pages would hold.
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <random>
#include <set>

#include "flashlatent/page_pool.h"

namespace flashlatent {
namespace {

using Ids = std::vector<PagePool::ContentId>;
using Pages = std::vector<std::int32_t>;

struct Setting {
  int page_size, pages, max_pages;
  int operations;
  int grown = 0;  ///< How many pages there are in the end; 0: as many as in the beginning.
};

/// Tokens of a sequence, and the same as the cache must hold them: a cached value depends on all tokens so
/// far.
struct Text {
  std::vector<std::uint64_t> tokens, cached;

  void push(std::uint64_t token) {
    tokens.push_back(token);
    cached.push_back(((cached.empty() ? 1 : cached.back()) * 0x9E3779B97F4A7C15U) ^ (token + 1));
  }
};

/// One pool, the memory that it manages, and the model.
class Trial {
 public:
  explicit Trial(Setting setting)
      : setting_(setting),
        pool_(*PagePool::create_pool(setting.pages, setting.page_size)),
        memory_(static_cast<std::size_t>(setting.pages) * setting.page_size) {
    for (int page = 0; page < setting.pages; ++page) free_.insert(page);
  }

  void run() {
    for (int i = 0; i < setting_.operations && !testing::Test::HasFatalFailure(); ++i) {
      step();
      if (i % 10'007 == 10'006 && setting_.pages < setting_.grown) grow();
      if (i % 97 == 0) check_all();
    }
    while (!live_.empty() && !testing::Test::HasFatalFailure()) release(0);
    check_all();
    EXPECT_EQ(held_.size(), 0U);
    EXPECT_GE(setting_.pages, setting_.grown);
    EXPECT_EQ(free_.size() + cached_.size(), static_cast<std::size_t>(setting_.pages));
    const PagePool::Stats stats = pool_.stats();
    // The trial reached what it is about.
    EXPECT_GT(stats.hits, 0);
    EXPECT_GT(stats.evictions, 0);
    EXPECT_GT(refused_, 0);
    EXPECT_GT(twins_, 0);
    EXPECT_EQ(copies_ > 0, setting_.page_size > 1);
  }

 private:
  struct Live {
    PagePool::Sequence sequence;
    Text text;
    Pages pages;
  };
  using Chain = std::pair<std::int32_t, PagePool::ContentId>;

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  void step() {
    const int dice = below(100);
    const int count = static_cast<int>(live_.size());
    if (count == 0 || dice < 20) return create();
    if (dice < 60) return append(below(count));
    if (dice < 68) return fork(below(count));
    if (dice < 84) return commit(below(count));
    release(below(count));
  }

  std::uint64_t next_token(std::size_t position) {
    // Pages of equal tokens, so that prefixes meet; now and then one that differs within the page.
    if (position % setting_.page_size == 0) page_token_ = below(2);
    return below(40) == 0 ? below(4) : page_token_;
  }

  /// One id for each content of a full page.
  Ids contents_of(const Text& text, std::size_t pages) {
    Ids ids;
    for (std::size_t i = 0; i < pages; ++i) {
      const auto begin = text.tokens.begin() + static_cast<std::ptrdiff_t>(i * setting_.page_size);
      ids.push_back(
          content_ids_.try_emplace({begin, begin + setting_.page_size}, content_ids_.size()).first->second);
    }
    return ids;
  }

  /// What a request for `n` pages must be given: free ones in any order, then the least recently used.
  void take(std::span<const std::int32_t> given) {
    for (std::int32_t page : given) {
      if (!free_.empty()) {
        ASSERT_EQ(free_.erase(page), 1U) << "page " << page << " was not free";
      } else {
        ASSERT_FALSE(cached_.empty());
        ASSERT_EQ(page, cached_.front());
        cached_.pop_front();
        forget(page);
      }
      ASSERT_EQ(held_.count(page), 0U) << "page " << page << " was held";
      held_.insert(page);
    }
  }

  void forget(std::int32_t page) {
    for (const auto& [chain, other] : registered_) ASSERT_NE(chain.first, page) << "evicted before a child";
    registered_.erase(chain_of_.at(page));
    chain_of_.erase(page);
  }

  void hold(std::int32_t page) {
    if (held_.count(page) == 0) cached_.remove(page);
    held_.insert(page);
  }

  void give_back(std::int32_t page) {
    held_.erase(held_.find(page));
    if (held_.count(page) > 0) return;
    if (chain_of_.count(page) > 0) {
      cached_.push_back(page);
    } else {
      free_.insert(page);
    }
  }

  int pages_for(std::size_t tokens) const {
    return static_cast<int>((tokens + setting_.page_size - 1) / setting_.page_size);
  }

  Pages pages_now(PagePool::Sequence sequence) const {
    const auto pages = pool_.pages(sequence);
    EXPECT_TRUE(pages.ok());
    return pages.ok() ? Pages(pages->begin(), pages->end()) : Pages();
  }

  void write(const Live& live, std::size_t from) {
    for (std::size_t t = from; t < live.text.cached.size(); ++t) {
      memory_[static_cast<std::size_t>(live.pages[t / setting_.page_size]) * setting_.page_size +
              t % setting_.page_size] = live.text.cached[t];
    }
  }

  /// By one page, or to twice as many.
  void grow() {
    const int before = setting_.pages;
    setting_.pages = below(2) == 0 ? before + 1 : std::min(2 * before, setting_.grown);
    ASSERT_TRUE(pool_.grow(setting_.pages).ok());
    memory_.resize(static_cast<std::size_t>(setting_.pages) * setting_.page_size);
    for (int page = before; page < setting_.pages; ++page) free_.insert(page);
    check_all();
  }

  void create() {
    Live live;
    const int length = below(setting_.max_pages * setting_.page_size + 1);
    for (int t = 0; t < length; ++t) live.text.push(next_token(t));
    const Ids contents = contents_of(live.text, length / setting_.page_size);
    Pages shared;
    for (PagePool::ContentId content : contents) {
      const auto found = registered_.find({shared.empty() ? -1 : shared.back(), content});
      if (found == registered_.end()) break;
      shared.push_back(found->second);
    }
    ASSERT_EQ(pool_.find(contents), static_cast<int>(shared.size()));
    std::size_t available = free_.size() + cached_.size();
    for (std::int32_t page : shared) available -= held_.count(page) == 0 ? 1 : 0;
    const std::size_t needed = pages_for(length) - shared.size();

    const auto created = pool_.create(contents, length);
    ASSERT_EQ(created.ok(), needed <= available);
    if (!created.ok()) return refused(created.status());
    live.sequence = created->sequence;
    live.pages = pages_now(live.sequence);
    ASSERT_EQ(created->cached_pages, static_cast<int>(shared.size()));
    ASSERT_EQ(live.pages.size(), shared.size() + needed);
    ASSERT_TRUE(std::equal(shared.begin(), shared.end(), live.pages.begin()));
    for (std::int32_t page : shared) hold(page);
    take(std::span(live.pages).subspan(shared.size()));
    write(live, shared.size() * setting_.page_size);
    live_.push_back(std::move(live));
  }

  void append(int index) {
    Live& live = live_[index];
    const std::size_t length = live.text.tokens.size();
    const int tokens = below(4) == 0 ? below(2 * setting_.page_size + 1) : below(2);
    const std::size_t filled = length % setting_.page_size;
    const bool copies = tokens > 0 && filled > 0 && held_.count(live.pages.back()) > 1;
    const std::size_t fresh = pages_for(length + tokens) - live.pages.size();
    const auto copy = pool_.append(live.sequence, tokens);
    ASSERT_EQ(copy.ok(), fresh + copies <= free_.size() + cached_.size());
    if (!copy.ok()) return refused(copy.status());

    Pages expected = live.pages;
    const Pages now = pages_now(live.sequence);
    ASSERT_EQ(now.size(), expected.size() + fresh);
    ASSERT_EQ(copy->tokens, copies ? static_cast<int>(filled) : 0);
    if (copies) {
      ASSERT_EQ(copy->from, expected.back());
      take(std::span(&copy->to, 1));
      give_back(copy->from);
      expected.back() = copy->to;
      std::copy_n(memory_.begin() + std::ptrdiff_t{copy->from} * setting_.page_size, filled,
                  memory_.begin() + std::ptrdiff_t{copy->to} * setting_.page_size);
      ++copies_;
    }
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), now.begin()));
    take(std::span(now).subspan(expected.size()));
    live.pages = now;
    for (int t = 0; t < tokens; ++t) live.text.push(next_token(length + t));
    write(live, length);
  }

  void fork(int index) {
    const auto forked = pool_.fork(live_[index].sequence);
    ASSERT_TRUE(forked.ok());
    for (std::int32_t page : live_[index].pages) hold(page);
    Live copy = live_[index];
    copy.sequence = *forked;
    ASSERT_EQ(pages_now(*forked), copy.pages);
    live_.push_back(std::move(copy));
  }

  void commit(int index) {
    Live& live = live_[index];
    const std::size_t full = live.text.tokens.size() / setting_.page_size;
    const Ids contents = contents_of(live.text, full == 0 ? 0 : below(static_cast<int>(full) + 1));
    std::size_t known = 0;
    while (known < live.pages.size() && chain_of_.count(live.pages[known]) > 0) ++known;
    for (; known < contents.size(); ++known) {
      std::int32_t& page = live.pages[known];
      const Chain chain{known == 0 ? -1 : live.pages[known - 1], contents[known]};
      if (const auto twin = registered_.find(chain); twin != registered_.end()) {
        if (held_.count(page) > 1) break;
        hold(twin->second);
        give_back(page);
        page = twin->second;
        ++twins_;
      } else {
        registered_[chain] = page;
        chain_of_[page] = chain;
      }
    }
    const auto committed = pool_.commit(live.sequence, contents);
    ASSERT_TRUE(committed.ok()) << committed.status().message();
    ASSERT_EQ(*committed, static_cast<int>(known));
    ASSERT_EQ(pages_now(live.sequence), live.pages);
  }

  void release(int index) {
    ASSERT_TRUE(pool_.release(live_[index].sequence).ok());
    ASSERT_FALSE(pool_.length(live_[index].sequence).ok());
    for (auto page = live_[index].pages.rbegin(); page != live_[index].pages.rend(); ++page) give_back(*page);
    std::swap(live_[index], live_.back());
    live_.pop_back();
  }

  void refused(const Status& status) {
    ASSERT_EQ(status.code(), StatusCode::kExhausted) << status.message();
    ++refused_;
    check_stats();
    // Make room, or most of what follows would be refused as well.
    if (!live_.empty()) release(below(static_cast<int>(live_.size())));
  }

  void check_stats() const {
    const PagePool::Stats stats = pool_.stats();
    ASSERT_EQ(stats.free, static_cast<int>(free_.size()));
    ASSERT_EQ(stats.cached, static_cast<int>(cached_.size()));
    ASSERT_EQ(stats.used, setting_.pages - stats.free - stats.cached);
    ASSERT_EQ(stats.sequences, static_cast<int>(live_.size()));
  }

  /// Every sequence reads its own tokens through the page table, and the pool agrees with itself.
  void check_all() const {
    check_stats();
    const Status status = pool_.check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<PagePool::Sequence> batch;
    std::size_t width = 1;
    for (const Live& live : live_) {
      batch.push_back(live.sequence);
      width = std::max(width, live.pages.size());
    }
    std::vector<std::int32_t> table(live_.size() * width), lengths(live_.size());
    ASSERT_TRUE(pool_.write_page_table(batch, static_cast<int>(width), table, lengths).ok());
    for (std::size_t i = 0; i < live_.size(); ++i) {
      const std::vector<std::uint64_t>& cached = live_[i].text.cached;
      ASSERT_EQ(lengths[i], static_cast<int>(cached.size()));
      for (std::size_t t = 0; t < cached.size(); ++t) {
        const std::int32_t page = table[i * width + t / setting_.page_size];
        ASSERT_EQ(memory_[static_cast<std::size_t>(page) * setting_.page_size + t % setting_.page_size],
                  cached[t])
            << "sequence " << i << ", token " << t << ", page " << page;
      }
    }
  }

  Setting setting_;
  PagePool pool_;
  std::vector<std::uint64_t> memory_;
  std::mt19937_64 random_{12345};
  std::uint64_t page_token_ = 0;
  std::map<std::vector<std::uint64_t>, PagePool::ContentId> content_ids_;

  std::vector<Live> live_;
  std::multiset<std::int32_t> held_;
  std::set<std::int32_t> free_;
  std::list<std::int32_t> cached_;  // least recently used first
  std::map<Chain, std::int32_t> registered_;
  std::map<std::int32_t, Chain> chain_of_;
  std::int64_t refused_ = 0, copies_ = 0, twins_ = 0;
};

TEST(PagePoolRandom, PagesOf16) {
  Trial({16, 40, 10, 1'000'000}).run();
}
TEST(PagePoolRandom, PagesOf1) {
  Trial({1, 60, 16, 200'000}).run();
}
TEST(PagePoolRandom, PagesOf16ThatBecomeMore) {
  Trial({16, 5, 10, 300'000, 48}).run();
}
TEST(PagePoolRandom, PagesOf64) {
  Trial({64, 24, 6, 100'000}).run();
}

}  // namespace
}  // namespace flashlatent
