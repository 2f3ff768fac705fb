// Where the elements of separate keys, or values, are: in rows or in vLLM's packed order.
#pragma once

#include <cstdint>

namespace flashlatent::parts {

/// Keys, or values. Strides in bytes. `unit_stride`: from 16 bytes of a token to the next 16, or for packed
/// values from one of their elements to the next.
struct Plane {
  const std::uint8_t* data;
  std::int64_t page_stride, head_stride, token_stride, unit_stride;
  const float* scale;  // fp8: one, or one a KV head; null: 1
  int scale_stride;    // 0 or 1
};

}  // namespace flashlatent::parts
