// What a trace says of its requests' tokens: which are the same, and which pages can therefore be shared.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "flashlatent/page_pool.h"
#include "io/trace.h"
#include "serve/latents.h"

namespace flashlatent::serve {

/// The name of token `position` of request number `index`. Tokens under a hash id are the same in every
/// request that has the id; others, generated ones above all, are the request's own.
RowName token_name(const io::TraceRequest& request, std::int64_t index, int position);

/// Gives equal pages of tokens equal ids, whatever the page size.
class PageContents {
 public:
  explicit PageContents(int page_size) : page_size_(page_size) {}

  /// Ids of the request's first pages: the full ones that lie wholly under hash ids.
  std::vector<PagePool::ContentId> of(const io::TraceRequest& request);

 private:
  int page_size_;
  // The hash ids that a page touches, as one number.
  std::map<std::vector<std::int64_t>, std::uint64_t> groups_;
};

}  // namespace flashlatent::serve
