#include "flashlatent/page_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <limits>
#include <new>
#include <utility>

#include "core/message.h"

namespace flashlatent {

namespace {

constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();  // cache_seqlens is int32

Status not_live(PagePool::Sequence sequence) {
  return invalid_argument("sequence (slot ", sequence.slot, ", generation ", sequence.generation,
                          ") is not live: it was released or is another pool's");
}

/// Where a pool's generations begin: far from other pools', which so do not take its sequences for theirs.
std::uint32_t first_generation() {
  static std::atomic<std::uint32_t> pools = 0;
  return pools.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B9U;  // 2^32 over the golden ratio
}

}  // namespace

PagePool::PagePool(int pages, int page_size)
    : page_size_(page_size),
      pages_(pages),
      buckets_(std::bit_ceil(static_cast<unsigned>(pages)), kNone),
      free_head_(0),
      first_generation_(first_generation()) {
  for (std::int32_t i = 0; i + 1 < pages; ++i) pages_[i].next = i + 1;
  stats_.pages = stats_.free = pages;
}

Result<PagePool> PagePool::create_pool(int pages, int page_size) {
  if (pages < 1 || pages > kMaxPages) {
    return invalid_argument("pages is ", pages, ", must be 1 to ", kMaxPages);
  }
  if (page_size < 1) return invalid_argument("page_size is ", page_size, ", must be at least 1");
  try {
    return PagePool(pages, page_size);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kExhausted, message("no memory for the records of ", pages, " pages"));
  }
}

// Sequences.

const PagePool::Slot* PagePool::find_slot(Sequence sequence) const {
  if (sequence.slot < 0 || static_cast<std::size_t>(sequence.slot) >= slots_.size()) return nullptr;
  const Slot& slot = slots_[sequence.slot];
  return slot.live && slot.generation == sequence.generation ? &slot : nullptr;
}

PagePool::Slot* PagePool::find_slot(Sequence sequence) {
  return const_cast<Slot*>(std::as_const(*this).find_slot(sequence));
}

PagePool::Sequence PagePool::new_slot(std::vector<std::int32_t> pages, std::int32_t length) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::int32_t>(slots_.size()));
    slots_.emplace_back().generation = first_generation_;
  }
  const std::int32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.pages = std::move(pages);
  slot.length = length;
  slot.live = true;
  ++stats_.sequences;
  return {index, slot.generation};
}

int PagePool::pages_for(std::int64_t tokens) const {
  return static_cast<int>((tokens + page_size_ - 1) / page_size_);
}

Status PagePool::exhausted(const char* call, std::int64_t tokens, std::int64_t needed, int available) const {
  return {StatusCode::kExhausted,
          message(call, " of ", tokens, " tokens needs ", needed, " fresh pages of ", page_size_,
                  " tokens, but of the pool's ", stats_.pages, " only ", available,
                  " are free or can be evicted: release a sequence or make the pool larger")};
}

Result<PagePool::Created> PagePool::create(std::span<const ContentId> contents, int length, int spare) {
  if (length < 0) return invalid_argument("length is ", length, ", must be at least 0");
  if (spare < 0) return invalid_argument("spare is ", spare, ", must be at least 0");
  if (contents.size() > static_cast<std::size_t>(length / page_size_)) {
    return invalid_argument("contents has ", contents.size(), " entries, but length ", length, " fills only ",
                            length / page_size_, " pages of ", page_size_, " tokens");
  }
  std::vector<std::int32_t> table;
  int cached = 0;  // cached pages that this call will hold, and that can then not be evicted
  for (ContentId content : contents) {
    const std::int32_t page = find_registered(table.empty() ? kNone : table.back(), content);
    if (page == kNone) break;
    table.push_back(page);
    cached += pages_[page].references == 0 ? 1 : 0;
  }
  const int matched = static_cast<int>(table.size());
  const int needed = pages_for(length) - matched;
  const int available = stats_.free + stats_.cached - cached;
  if (std::int64_t{needed} + spare > available) {
    return exhausted("create", length, std::int64_t{needed} + spare, available);
  }

  table.reserve(matched + needed);
  for (std::int32_t page : table) hold(page);
  for (int i = 0; i < needed; ++i) table.push_back(take());
  stats_.lookups += static_cast<std::int64_t>(contents.size());
  stats_.hits += matched;
  return Created{new_slot(std::move(table), length), matched};
}

int PagePool::find(std::span<const ContentId> contents) const {
  std::int32_t page = kNone;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    page = find_registered(page, contents[i]);
    if (page == kNone) return static_cast<int>(i);
  }
  return static_cast<int>(contents.size());
}

Result<PagePool::Copy> PagePool::append(Sequence sequence, int tokens) {
  Slot* slot = find_slot(sequence);
  if (slot == nullptr) return not_live(sequence);
  if (tokens < 0 || tokens > kMaxLength - slot->length) {
    return invalid_argument("tokens is ", tokens, ", must be 0 to ", kMaxLength - slot->length,
                            " for a sequence of ", slot->length);
  }
  const int filled = slot->length % page_size_;  // of a partly filled last page
  const bool copies = tokens > 0 && filled > 0 && pages_[slot->pages.back()].references > 1;
  const int fresh = pages_for(std::int64_t{slot->length} + tokens) - static_cast<int>(slot->pages.size());
  const int needed = fresh + (copies ? 1 : 0);
  const int available = stats_.free + stats_.cached;
  if (needed > available) return exhausted("append", tokens, needed, available);

  if (const std::size_t size = slot->pages.size() + fresh; size > slot->pages.capacity()) {
    slot->pages.reserve(std::max(size, 2 * slot->pages.capacity()));
  }
  Copy copy;
  if (copies) {
    copy = {slot->pages.back(), take(), filled};
    give_back(copy.from);
    slot->pages.back() = copy.to;
  }
  for (int i = 0; i < fresh; ++i) slot->pages.push_back(take());
  slot->length += tokens;
  return copy;
}

Result<PagePool::Sequence> PagePool::fork(Sequence sequence) {
  const Slot* slot = find_slot(sequence);
  if (slot == nullptr) return not_live(sequence);
  std::vector<std::int32_t> table = slot->pages;
  for (std::int32_t page : table) hold(page);
  return new_slot(std::move(table), slot->length);
}

Result<int> PagePool::commit(Sequence sequence, std::span<const ContentId> contents) {
  Slot* slot = find_slot(sequence);
  if (slot == nullptr) return not_live(sequence);
  const int full = slot->length / page_size_;
  if (contents.size() > static_cast<std::size_t>(full)) {
    return invalid_argument("contents has ", contents.size(), " entries, but the sequence of ", slot->length,
                            " tokens fills only ", full, " pages of ", page_size_, " tokens");
  }
  std::size_t known = 0;  // registered pages come first in a sequence
  for (; known < slot->pages.size() && pages_[slot->pages[known]].registered; ++known) {
    const Page& page = pages_[slot->pages[known]];
    if (known < contents.size() && page.content != contents[known]) {
      return invalid_argument("contents[", known, "] is ", contents[known], ", but page ", slot->pages[known],
                              " was registered with ", page.content);
    }
  }
  for (; known < contents.size(); ++known) {
    std::int32_t& page = slot->pages[known];
    const std::int32_t parent = known == 0 ? kNone : slot->pages[known - 1];
    const std::int32_t twin = find_registered(parent, contents[known]);
    if (twin == kNone) {
      register_page(page, parent, contents[known]);
      continue;
    }
    // Other holders keep the page; a later page that they share would then have two parents.
    if (pages_[page].references > 1) break;
    hold(twin);
    give_back(page);
    page = twin;
  }
  return static_cast<int>(known);
}

Status PagePool::release(Sequence sequence) {
  Slot* slot = find_slot(sequence);
  if (slot == nullptr) return not_live(sequence);
  free_slots_.push_back(sequence.slot);
  for (std::size_t i = slot->pages.size(); i-- > 0;) give_back(slot->pages[i]);  // see cached_head_
  slot->pages = {};
  slot->length = 0;
  slot->live = false;
  ++slot->generation;
  --stats_.sequences;
  return {};
}

Status PagePool::grow(int pages) {
  const auto before = static_cast<std::int32_t>(pages_.size());
  if (pages < before || pages > kMaxPages) {
    return invalid_argument("pages is ", pages, ", must be ", before, ", as many as there are, to ",
                            kMaxPages);
  }
  try {
    std::vector<std::int32_t> buckets(std::bit_ceil(static_cast<unsigned>(pages)), kNone);
    pages_.resize(pages);  // the last that can fail
    buckets_.swap(buckets);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kExhausted, message("no memory for the records of ", pages, " pages")};
  }
  for (std::int32_t i = 0; i < before; ++i) {
    if (pages_[i].registered) add_to_bucket(i);
  }
  for (std::int32_t i = pages; i-- > before;) {
    pages_[i].next = free_head_;
    free_head_ = i;
  }
  stats_.pages = pages;
  stats_.free += pages - before;
  return {};
}

Result<int> PagePool::length(Sequence sequence) const {
  const Slot* slot = find_slot(sequence);
  if (slot == nullptr) return not_live(sequence);
  return slot->length;
}

Result<std::span<const std::int32_t>> PagePool::pages(Sequence sequence) const {
  const Slot* slot = find_slot(sequence);
  if (slot == nullptr) return not_live(sequence);
  return std::span<const std::int32_t>(slot->pages);
}

Status PagePool::write_page_table(std::span<const Sequence> batch, int max_pages,
                                  std::span<std::int32_t> block_table,
                                  std::span<std::int32_t> cache_seqlens) const {
  if (max_pages < 0) return invalid_argument("max_pages is ", max_pages, ", must be at least 0");
  const std::size_t rows = cache_seqlens.size();
  if (rows < batch.size()) {
    return invalid_argument("cache_seqlens has ", rows, " rows, but the batch ", batch.size());
  }
  if (block_table.size() != rows * max_pages) {
    return invalid_argument("block_table has ", block_table.size(), " entries, must have ", rows, " x ",
                            max_pages);
  }
  const std::less<const std::int32_t*> before;
  if (before(block_table.data(), cache_seqlens.data() + rows) &&
      before(cache_seqlens.data(), block_table.data() + block_table.size())) {
    return invalid_argument("cache_seqlens, at ", static_cast<const void*>(cache_seqlens.data()),
                            ", overlaps block_table, at ", static_cast<const void*>(block_table.data()),
                            "; both are written, and must be apart");
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Slot* slot = find_slot(batch[i]);
    if (slot == nullptr) return not_live(batch[i]);
    if (slot->pages.size() > static_cast<std::size_t>(max_pages)) {
      return invalid_argument("max_pages is ", max_pages, ", but row ", i, " of the batch has ",
                              slot->pages.size(), " pages");
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    const auto row = block_table.subspan(i * max_pages, max_pages);
    const Slot* slot = i < batch.size() ? &slots_[batch[i].slot] : nullptr;
    cache_seqlens[i] = slot == nullptr ? 0 : slot->length;
    auto end = slot == nullptr ? row.begin() : std::copy(slot->pages.begin(), slot->pages.end(), row.begin());
    std::fill(end, row.end(), -1);
  }
  return {};
}

PagePool::Stats PagePool::stats() const {
  Stats stats = stats_;
  stats.used = stats.pages - stats.cached - stats.free;
  return stats;
}

// Pages.

std::int32_t PagePool::take() {
  std::int32_t page = free_head_;
  if (page != kNone) {
    free_head_ = pages_[page].next;
    pages_[page].next = kNone;
    --stats_.free;
  } else {
    page = cached_head_;
    remove_cached(page);
    unregister_page(page);
    ++stats_.evictions;
  }
  pages_[page].references = 1;
  return page;
}

void PagePool::hold(std::int32_t page) {
  if (pages_[page].references++ == 0) remove_cached(page);
}

void PagePool::give_back(std::int32_t page) {
  Page& p = pages_[page];
  if (--p.references > 0) return;
  if (p.registered) {
    append_cached(page);
  } else {
    p.next = free_head_;
    free_head_ = page;
    ++stats_.free;
  }
}

void PagePool::append_cached(std::int32_t page) {
  pages_[page].previous = cached_tail_;
  (cached_tail_ == kNone ? cached_head_ : pages_[cached_tail_].next) = page;
  cached_tail_ = page;
  ++stats_.cached;
}

void PagePool::remove_cached(std::int32_t page) {
  Page& p = pages_[page];
  (p.previous == kNone ? cached_head_ : pages_[p.previous].next) = p.next;
  (p.next == kNone ? cached_tail_ : pages_[p.next].previous) = p.previous;
  p.previous = p.next = kNone;
  --stats_.cached;
}

}  // namespace flashlatent
