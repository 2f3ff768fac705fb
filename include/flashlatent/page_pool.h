// The owners of a KV cache's pages: reference counts, prefix sharing, copy-on-write, eviction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashlatent/status.h"

namespace flashlatent {

/// Manages the page numbers of one KV cache (PagedAttention, arXiv 2309.06180); never touches its bytes. One
/// pool serves all layers: page p of each layer's cache belongs to the same tokens.
///
/// A sequence is a list of pages and a length in tokens. Pages are shared in two ways:
///  - by prefix: commit() registers full pages under the chain of their contents; create() finds the longest
///    registered prefix and shares it. A registered page that no sequence holds stays cached until a fresh
///    page is needed. The least recently used one is then taken, but a page always before the pages that
///    precede it in its chain;
///  - by fork(): both sequences hold all pages, a partly filled last one too; the first to append to that one
///    gets its own copy.
///
/// Taking and giving back a page is O(1). A call that fails changes nothing, statistics included. Not
/// thread-safe.
class PagePool {
 public:
  /// Names the tokens of one full page: equal ids mean equal tokens. It does not name the pages before it:
  /// the pool compares whole chains of ids, by the ids themselves and not only by a hash.
  using ContentId = std::uint64_t;

  static constexpr std::int32_t kMaxPages = 1 << 28;

  /// A handle. The pool recognises and refuses a released one, and another pool's.
  struct Sequence {
    std::int32_t slot = -1;
    std::uint32_t generation = 0;

    friend bool operator==(const Sequence&, const Sequence&) = default;
  };

  struct Created {
    Sequence sequence;
    /// The first `cached_pages` pages hold their tokens already; the caller fills the others.
    int cached_pages = 0;
  };

  /// A copy for the caller to make: the first `tokens` tokens of page `from` go to page `to`, in every layer,
  /// before the caller writes to any page that a later call hands out. tokens = 0: nothing to copy.
  struct Copy {
    std::int32_t from = -1;
    std::int32_t to = -1;
    int tokens = 0;
  };

  struct Stats {
    int pages = 0;   ///< used + cached + free.
    int used = 0;    ///< Held by at least one sequence.
    int cached = 0;  ///< Held by none, registered: found by create(), evicted when needed.
    int free = 0;
    int sequences = 0;
    std::int64_t lookups = 0;    ///< Content ids that create() got.
    std::int64_t hits = 0;       ///< Content ids whose page was found.
    std::int64_t evictions = 0;  ///< Cached pages that were taken for other tokens.
  };

  /// `pages`: 1 to kMaxPages. `page_size`: tokens a page, at least 1. kInvalidArgument otherwise.
  static Result<PagePool> create_pool(int pages, int page_size);

  /// Creates a sequence of `length` tokens whose first full pages have these contents. It shares their
  /// longest registered prefix and takes fresh pages for the rest. kExhausted if there are too few pages, or
  /// if fewer than `spare` would be left for other sequences to grow.
  Result<Created> create(std::span<const ContentId> contents, int length, int spare = 0);

  /// How many of these contents create() would find registered, from the first on. Changes nothing.
  int find(std::span<const ContentId> contents) const;

  /// Makes room for `tokens` more tokens (0 or more). kExhausted if there are too few pages.
  Result<Copy> append(Sequence sequence, int tokens);

  /// Creates a second sequence of the same pages, without taking a page.
  Result<Sequence> fork(Sequence sequence);

  /// Registers the sequence's first pages, which are full and hold these contents, for others to share.
  /// Returns how many pages of the sequence are now registered. If another page is registered under the same
  /// chain, it replaces the sequence's own page, so pages() may change; but if the own page is forked, it and
  /// the pages after it stay unregistered. kInvalidArgument if a page was registered with other contents.
  Result<int> commit(Sequence sequence, std::span<const ContentId> contents);

  /// Gives up the sequence's hold on its pages and ends the handle.
  Status release(Sequence sequence);

  /// Adds free pages, up to `pages` in all. Sequences, page numbers and registered pages stay. The caller
  /// first makes caches of `pages` pages, whose first pages have the contents of the old caches.
  /// kInvalidArgument for fewer pages than there are, or more than kMaxPages; kExhausted if there is no
  /// memory for their records.
  Status grow(int pages);

  /// Tokens; kInvalidArgument for a handle that is not a live sequence's.
  Result<int> length(Sequence sequence) const;
  /// The page numbers, in the order of tokens; valid until the next change of this sequence. kInvalidArgument
  /// as length().
  Result<std::span<const std::int32_t>> pages(Sequence sequence) const;

  /// Writes the page table of a batch, ready to upload:
  ///   block_table    (rows, max_pages), row-major: row i has the pages of batch[i], then -1
  ///   cache_seqlens  (rows): the lengths of the sequences
  /// with rows = cache_seqlens.size() >= batch.size(). Rows past the batch are padding: -1 and length 0.
  /// kInvalidArgument: a handle that is not live, a sequence with more than max_pages pages, or spans of
  /// other sizes.
  Status write_page_table(std::span<const Sequence> batch, int max_pages, std::span<std::int32_t> block_table,
                          std::span<std::int32_t> cache_seqlens) const;

  Stats stats() const;
  int page_size() const { return page_size_; }

  /// Checks every count, list and link against the others, in time linear in the pool. kInternal names what
  /// is wrong, which would be a bug.
  Status check_invariants() const;

 private:
  static constexpr std::int32_t kNone = -1;

  struct Page {
    std::int32_t references = 0;                  // sequences that hold it
    std::int32_t previous = kNone, next = kNone;  // in the cached list; free pages use `next` only
    // Only of registered pages:
    bool registered = false;
    std::int32_t parent = kNone;       // the page before it in the chain
    std::int32_t bucket_next = kNone;  // the next page of its bucket
    ContentId content = 0;
    std::uint64_t hash = 0;  // of the chain that ends here
  };

  struct Slot {
    std::vector<std::int32_t> pages;
    std::int32_t length = 0;
    std::uint32_t generation = 0;
    bool live = false;
  };

  PagePool(int pages, int page_size);

  const Slot* find_slot(Sequence sequence) const;
  Slot* find_slot(Sequence sequence);
  Sequence new_slot(std::vector<std::int32_t> pages, std::int32_t length);
  int pages_for(std::int64_t tokens) const;
  Status exhausted(const char* call, std::int64_t tokens, std::int64_t needed, int available) const;

  std::int32_t take();                // takes a fresh page and holds it once; there must be one
  void hold(std::int32_t page);       // one more sequence holds it
  void give_back(std::int32_t page);  // one sequence fewer holds it
  void append_cached(std::int32_t page);
  void remove_cached(std::int32_t page);

  std::uint64_t chain_hash(std::int32_t parent, ContentId content) const;
  std::int32_t find_registered(std::int32_t parent, ContentId content) const;
  void register_page(std::int32_t page, std::int32_t parent, ContentId content);
  void unregister_page(std::int32_t page);
  void add_to_bucket(std::int32_t page);

  Status check_lists() const;
  Status check_sequences() const;
  Status check_index() const;

  int page_size_;
  std::vector<Page> pages_;
  std::vector<std::int32_t> buckets_;  // the first page of each; their number is a power of two
  std::int32_t free_head_ = kNone;
  std::uint32_t first_generation_ = 0;  // of this pool's slots
  // Cached pages, least recently used first. A sequence gives back its last page first, and who holds a page
  // holds its parent. So a page always stands before its parent here, and the first page is a leaf of its
  // chain.
  std::int32_t cached_head_ = kNone, cached_tail_ = kNone;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> free_slots_;
  Stats stats_;
};

}  // namespace flashlatent
