// TMA descriptors of the query's parts (core/query_columns.h).
#pragma once

#include <cuda.h>

namespace flashlatent::sm90 {

/// Set where QueryArguments::rows_in_boxes; `rope` only where there are RoPE columns.
struct QueryMaps {
  CUtensorMap first, rope;
};

}  // namespace flashlatent::sm90
