// Which requests share a prefix, and is it worth it?
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "plan/prefix.h"

namespace flashlatent::prefix {

/// A page table as plan() gets it, on the host.
struct PageTable {
  const std::int32_t* entries;  ///< (requests, columns)
  std::int64_t stride;          ///< From one request's entries to the next one's.
  std::int32_t columns;
  std::int32_t page_size;
  const std::int32_t* lengths;  ///< Tokens of each request.
};

/// Requests that attend to their first `tokens` tokens (whole blocks) together.
struct Group {
  std::span<const std::int32_t> requests;  ///< In rising order.
  std::int32_t tokens;
};

/// Groups with the memory of their requests.
struct Groups {
  std::pmr::vector<std::int32_t> members;
  std::pmr::vector<Group> list;
};

/// Groups of requests whose first pages are the same, each request in one at most: of nested prefixes those
/// that save the most by the shape's costs. The last `query_tokens` of a request are never in its prefix, so
/// that no causal mask touches it. With `always`, wherever two requests share a block. Takes a sort of the
/// page table's rows, and memory of the calling thread (scratch()).
Groups find_groups(const Shape& shape, const PageTable& pages, std::int32_t query_tokens, bool always);

/// Is there any page table of which find_groups() would take groups, without `always`? Where it is not so of
/// a batch, it is not of a smaller one.
bool may_pay(const Shape& shape);

}  // namespace flashlatent::prefix
