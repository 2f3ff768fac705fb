// Finds requests that share a prefix, and decides whether sharing pays.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "plan/prefix.h"

namespace flashlatent::prefix {

/// A page table on the host, as plan() gets it.
struct PageTable {
  const std::int32_t* entries;  ///< (requests, columns)
  std::int64_t stride;          ///< Entries from one request's row to the next.
  std::int32_t columns;
  std::int32_t page_size;
  const std::int32_t* lengths;  ///< Tokens of each request.
};

/// Requests that attend together to their first `tokens` tokens (whole blocks).
struct Group {
  std::span<const std::int32_t> requests;  ///< In rising order.
  std::int32_t tokens;
};

/// Groups, and the memory of their requests.
struct Groups {
  std::pmr::vector<std::int32_t> members;
  std::pmr::vector<Group> list;
};

/// Finds groups of requests whose first pages are the same. A request is in at most one group; of nested
/// prefixes those that save most by the shape's costs are taken. The last `query_tokens` of a request are
/// never in its prefix, so no causal mask touches the prefix. `always`: groups are made wherever two requests
/// share a block. Sorts the page table's rows; uses memory of the calling thread (scratch()).
Groups find_groups(const Shape& shape, const PageTable& pages, std::int32_t query_tokens, bool always);

/// Could find_groups() without `always` take groups for some page table? If not for a batch, then not for a
/// smaller batch.
bool may_pay(const Shape& shape);

}  // namespace flashlatent::prefix
