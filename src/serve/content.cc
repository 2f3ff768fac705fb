#include "serve/content.h"

#include <algorithm>

namespace flashlatent::serve {

namespace {

constexpr std::int64_t kBlock = io::kTraceBlockTokens;

std::int64_t named_tokens(const io::TraceRequest& request) {
  return std::min<std::int64_t>(request.input_length,
                                kBlock * static_cast<std::int64_t>(request.hash_ids.size()));
}

}  // namespace

RowName token_name(const io::TraceRequest& request, std::int64_t index, int position) {
  if (position >= named_tokens(request)) return {RowKind::kOwnToken, index, position};
  return {RowKind::kSharedToken, request.hash_ids[position / kBlock], position % kBlock};
}

std::vector<PagePool::ContentId> PageContents::of(const io::TraceRequest& request) {
  std::vector<PagePool::ContentId> ids(named_tokens(request) / page_size_);
  std::int64_t group_first = -1, group_last = -1;
  std::uint64_t group = 0;
  for (std::size_t page = 0; page < ids.size(); ++page) {
    const std::int64_t begin = static_cast<std::int64_t>(page) * page_size_;
    const std::int64_t first = begin / kBlock, last = (begin + page_size_ - 1) / kBlock;
    if (first != group_first || last != group_last) {
      const auto hash_ids = request.hash_ids.begin();
      group = groups_.try_emplace({hash_ids + first, hash_ids + last + 1}, groups_.size()).first->second;
      group_first = first;
      group_last = last;
    }
    ids[page] = group * kBlock + begin % kBlock;  // which blocks, and where in the first the page begins
  }
  return ids;
}

}  // namespace flashlatent::serve
