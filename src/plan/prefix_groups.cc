#include "plan/prefix_groups.h"

#include <algorithm>

#include "plan/scratch.h"

namespace flashlatent::prefix {

namespace {

/// A request's row of the page table up to its first dead page: the pages that it may share.
struct Row {
  std::int32_t request;
  const std::int32_t* pages;
  std::int32_t count;
};

std::int32_t usable_pages(const PageTable& pages, std::int32_t request, std::int32_t query_tokens) {
  const std::int64_t reach = std::int64_t{pages.columns} * pages.page_size;
  const std::int64_t length = std::min<std::int64_t>(pages.lengths[request], reach) - query_tokens;
  if (length <= 0) return 0;
  const auto most = static_cast<std::int32_t>(length / pages.page_size);
  const std::int32_t* row = pages.entries + request * pages.stride;
  return static_cast<std::int32_t>(std::find_if(row, row + most, [](std::int32_t page) { return page < 0; }) -
                                   row);
}

std::int32_t common_pages(const Row& a, const Row& b) {
  const std::int32_t most = std::min(a.count, b.count);
  return static_cast<std::int32_t>(std::mismatch(a.pages, a.pages + most, b.pages).first - a.pages);
}

bool before(const Row& a, const Row& b) {
  const std::int32_t common = common_pages(a, b);
  if (common < a.count && common < b.count) return a.pages[common] < b.pages[common];
  return a.count != b.count ? a.count < b.count : a.request < b.request;
}

std::pmr::vector<Row> sorted_rows(const Shape& shape, const PageTable& pages, std::int32_t query_tokens) {
  std::pmr::vector<Row> rows(scratch());
  rows.reserve(shape.requests);
  for (std::int32_t r = 0; r < shape.requests; ++r) {
    const std::int32_t count = usable_pages(pages, r, query_tokens);
    if (count > 0) rows.push_back({r, pages.entries + r * pages.stride, count});
  }
  std::sort(rows.begin(), rows.end(), before);
  return rows;
}

/// Sorted rows [begin, end) have their first `tokens` tokens in common. `gain`: the most that these requests
/// save, as one group or as the groups chosen among them, [chosen, ...) of the list.
struct Interval {
  std::int32_t begin;
  std::int32_t tokens;
  std::int64_t gain;  // of the groups chosen inside it so far
  std::size_t chosen;
};

struct Range {
  std::int32_t begin, end, tokens;
};

/// The picoseconds that a group of `requests` requests saves.
std::int64_t gain_of(const Shape& shape, std::int64_t requests, std::int64_t tokens) {
  const std::int64_t each = tile_requests(shape);
  const std::int64_t tiles = (requests + each - 1) / each;
  const std::int64_t alone = requests * tokens * shape.read_cost;
  const std::int64_t together = tokens * (shape.read_cost + tiles * shape.tile_cost);
  return alone - together - requests * shape.member_cost;
}

class Chooser {
 public:
  Chooser(const Shape& shape, bool always) : shape_(shape), always_(always), ranges_(scratch()) {
    ranges_.reserve(shape.requests);
  }

  /// Chooses groups. tokens[i]: tokens that adjacent rows i and i + 1 share. Walks the tree of intervals,
  /// children first, with a stack of the open ones.
  const std::pmr::vector<Range>& choose(const std::pmr::vector<std::int32_t>& tokens) {
    const auto rows = static_cast<std::int32_t>(tokens.size()) + 1;
    std::pmr::vector<Interval> open(scratch());
    open.reserve(shape_.requests + 1);
    open.push_back({0, 0, 0, 0});
    for (std::int32_t i = 0; i < rows; ++i) {
      const std::int32_t shared = i + 1 < rows ? tokens[i] : 0;
      std::int32_t begin = i;
      std::int64_t gain = 0;
      std::size_t chosen = ranges_.size();
      while (open.back().tokens > shared) {
        const Interval closed = open.back();
        open.pop_back();
        chosen = closed.chosen;
        begin = closed.begin;
        gain = close(closed, i + 1);
        if (open.back().tokens >= shared) {  // the parent is already open
          open.back().gain += gain;
          gain = 0;
        }
      }
      if (open.back().tokens < shared) open.push_back({begin, shared, gain, chosen});
    }
    total_ = open.front().gain;
    return ranges_;
  }

  std::int64_t total() const { return total_; }

 private:
  std::int64_t gain_of_group(std::int64_t requests, std::int64_t tokens) const {
    if (requests < 2) return -1;
    return always_ ? requests * tokens * shape_.read_cost : gain_of(shape_, requests, tokens);
  }

  std::int64_t close(const Interval& interval, std::int32_t end) {
    const std::int64_t whole = gain_of_group(end - interval.begin, interval.tokens);
    if (whole <= interval.gain) return interval.gain;
    ranges_.resize(interval.chosen);
    ranges_.push_back({interval.begin, end, interval.tokens});
    return whole;
  }

  const Shape& shape_;
  const bool always_;
  std::pmr::vector<Range> ranges_;
  std::int64_t total_ = 0;
};

}  // namespace

bool may_pay(const Shape& shape) {
  const std::int64_t tokens = shape.max_tokens / shape.block_tokens * shape.block_tokens;
  // Several groups have at least as many tiles as one group of all requests; the last requests may not be
  // worth their own tile.
  const std::int64_t whole_tiles = shape.requests / tile_requests(shape) * tile_requests(shape);
  return std::max(gain_of(shape, shape.requests, tokens), gain_of(shape, whole_tiles, tokens)) >
         shape.call_cost;
}

Groups find_groups(const Shape& shape, const PageTable& pages, std::int32_t query_tokens, bool always) {
  // Reserved for the whole batch: the amount must not depend on lengths.
  Groups groups{std::pmr::vector<std::int32_t>(scratch()), std::pmr::vector<Group>(scratch())};
  groups.members.reserve(shape.requests);
  groups.list.reserve(shape.requests / 2);
  std::pmr::vector<std::int32_t> tokens(scratch());
  tokens.reserve(shape.requests);
  Chooser chooser(shape, always);
  const std::pmr::vector<Row> rows = sorted_rows(shape, pages, query_tokens);
  if (rows.size() < 2) return groups;
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    const std::int64_t common = std::int64_t{common_pages(rows[i], rows[i + 1])} * pages.page_size;
    tokens.push_back(static_cast<std::int32_t>(common / shape.block_tokens * shape.block_tokens));
  }
  const std::pmr::vector<Range>& ranges = chooser.choose(tokens);
  if (!always && chooser.total() <= shape.call_cost) return groups;
  for (const Range& range : ranges) {
    const auto begin = static_cast<std::ptrdiff_t>(groups.members.size());
    for (std::int32_t i = range.begin; i < range.end; ++i) groups.members.push_back(rows[i].request);
    std::sort(groups.members.begin() + begin, groups.members.end());
    groups.list.push_back({std::span<const std::int32_t>(groups.members).subspan(begin), range.tokens});
  }
  std::sort(groups.list.begin(), groups.list.end(),
            [](const Group& a, const Group& b) { return a.requests.front() < b.requests.front(); });
  return groups;
}

}  // namespace flashlatent::prefix
