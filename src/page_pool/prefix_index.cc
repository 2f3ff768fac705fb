// The registered pages of a PagePool, by chain of contents: a hash table whose links lie in the pages.
#include "flashlatent/page_pool.h"

namespace flashlatent {

namespace {

/// The finaliser of SplitMix64: every bit of the input reaches every bit of the output.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

}  // namespace

std::uint64_t PagePool::chain_hash(std::int32_t parent, ContentId content) const {
  const std::uint64_t before = parent == kNone ? 0 : pages_[parent].hash;
  return mix(mix(before + 0x9E3779B97F4A7C15U) ^ content);
}

std::int32_t PagePool::find_registered(std::int32_t parent, ContentId content) const {
  std::int32_t page = buckets_[chain_hash(parent, content) & (buckets_.size() - 1)];
  // Equal hashes prove nothing. An equal parent page does: it cannot be evicted before its children, so its
  // number still means the chain that it was registered with.
  while (page != kNone && (pages_[page].parent != parent || pages_[page].content != content)) {
    page = pages_[page].bucket_next;
  }
  return page;
}

void PagePool::register_page(std::int32_t page, std::int32_t parent, ContentId content) {
  Page& p = pages_[page];
  p.registered = true;
  p.parent = parent;
  p.content = content;
  p.hash = chain_hash(parent, content);
  add_to_bucket(page);
}

void PagePool::add_to_bucket(std::int32_t page) {
  std::int32_t& bucket = buckets_[pages_[page].hash & (buckets_.size() - 1)];
  pages_[page].bucket_next = bucket;
  bucket = page;
}

void PagePool::unregister_page(std::int32_t page) {
  Page& p = pages_[page];
  std::int32_t* link = &buckets_[p.hash & (buckets_.size() - 1)];
  while (*link != page) link = &pages_[*link].bucket_next;
  *link = p.bucket_next;
  p.registered = false;
  p.parent = p.bucket_next = kNone;
}

}  // namespace flashlatent
