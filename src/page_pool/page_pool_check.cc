// Does a PagePool's state agree with itself?

#include "core/message.h"
#include "flashlatent/page_pool.h"

namespace flashlatent {

namespace {

template <class... Pieces>
Status broken(const Pieces&... pieces) {
  return {StatusCode::kInternal, message("page pool: ", pieces...)};
}

}  // namespace

Status PagePool::check_invariants() const {
  FLASHLATENT_RETURN_IF_ERROR(check_lists());
  FLASHLATENT_RETURN_IF_ERROR(check_sequences());
  return check_index();
}

/// Every page that nobody holds is in one list, once; no other page is in any.
Status PagePool::check_lists() const {
  std::vector<std::int32_t> rank(pages_.size(), kNone);  // in either list
  std::int32_t count = 0;
  for (std::int32_t page = free_head_; page != kNone; page = pages_[page].next) {
    if (rank[page] != kNone) return broken("page ", page, " is in the free list twice");
    if (pages_[page].registered) return broken("free page ", page, " is registered");
    rank[page] = count++;
  }
  if (count != stats_.free) return broken(count, " pages are in the free list, ", stats_.free, " counted");
  std::int32_t previous = kNone;
  for (std::int32_t page = cached_head_; page != kNone; previous = page, page = pages_[page].next) {
    const Page& p = pages_[page];
    if (rank[page] != kNone) return broken("page ", page, " is listed twice");
    if (p.previous != previous) return broken("cached page ", page, " points back to ", p.previous);
    if (!p.registered) return broken("cached page ", page, " is not registered");
    if (p.parent != kNone && rank[p.parent] != kNone) {
      return broken("page ", p.parent, " would be evicted before its child ", page);
    }
    rank[page] = count++;
  }
  if (cached_tail_ != previous) return broken("the cached list ends at ", previous, ", not ", cached_tail_);
  if (count != stats_.free + stats_.cached) {
    return broken(count - stats_.free, " pages are in the cached list, ", stats_.cached, " counted");
  }
  for (std::size_t page = 0; page < pages_.size(); ++page) {
    const std::int32_t references = pages_[page].references;
    if (references < 0 || (references == 0) != (rank[page] != kNone)) {
      return broken("page ", page, " has ", references, " references and is ",
                    rank[page] == kNone ? "in no list" : "in a list");
    }
  }
  return {};
}

/// Reference counts are what the sequences' tables say, and each sequence follows its chain.
Status PagePool::check_sequences() const {
  std::vector<std::int32_t> references(pages_.size(), 0);
  int live = 0;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    live += slot.live ? 1 : 0;
    if (slot.pages.size() != static_cast<std::size_t>(pages_for(slot.length))) {
      return broken("slot ", s, " has ", slot.pages.size(), " pages for ", slot.length, " tokens");
    }
    for (std::size_t i = 0; i < slot.pages.size(); ++i) {
      const Page& page = pages_[slot.pages[i]];
      ++references[slot.pages[i]];
      const std::int32_t before = i == 0 ? kNone : slot.pages[i - 1];
      if (page.registered && page.parent != before) {
        return broken("slot ", s, " holds page ", slot.pages[i], " behind page ", before, ", its parent is ",
                      page.parent);
      }
    }
  }
  if (live != stats_.sequences || live + free_slots_.size() != slots_.size()) {
    return broken(live, " live and ", free_slots_.size(), " free of ", slots_.size(), " slots, ",
                  stats_.sequences, " counted");
  }
  for (std::size_t page = 0; page < pages_.size(); ++page) {
    if (references[page] != pages_[page].references) {
      return broken("page ", page, " is held ", references[page], " times, ", pages_[page].references,
                    " counted");
    }
  }
  return {};
}

/// Every registered page is found under its chain, and no other is.
Status PagePool::check_index() const {
  std::size_t indexed = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::int32_t page = buckets_[b]; page != kNone; page = pages_[page].bucket_next) {
      if (++indexed > pages_.size()) return broken("bucket ", b, " is a ring");
      if (!pages_[page].registered) return broken("page ", page, " is in bucket ", b, " unregistered");
    }
  }
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const Page& page = pages_[i];
    if (!page.registered) continue;
    --indexed;
    if (find_registered(page.parent, page.content) != static_cast<std::int32_t>(i)) {
      return broken("page ", i, " is not found under its parent ", page.parent, " and content ",
                    page.content);
    }
    if (page.parent != kNone && !pages_[page.parent].registered) {
      return broken("page ", i, " is registered, its parent ", page.parent, " is not");
    }
  }
  if (indexed != 0) return broken(indexed, " pages are in a bucket twice");
  return {};
}

}  // namespace flashlatent
