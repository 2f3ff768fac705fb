// Finds tokens by numbers that only the device reads, and describes how tensors lie.
#pragma once

#include <cstdint>

#include "flashlatent/tensor.h"

namespace flashlatent::cuda {

/// An int32 or int64 array.
struct Integers {
  const void* data;
  std::int64_t stride;
  bool wide;

  explicit Integers(const ConstTensorView& view)
      : data(view.data), stride(view.strides[0]), wide(view.dtype == Dtype::kI64) {}
  __device__ __forceinline__ std::int64_t at(std::int64_t row, std::int64_t column = 0) const {
    const std::int64_t i = row * stride + column;
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
};

/// The pages of requests, and the rows of a contiguous buffer that their tokens become.
struct PageTable {
  const std::int32_t* table;
  std::int64_t stride, max_pages;
  const std::int32_t* ends;         // cu_seqlens + 1
  const std::int32_t* first_token;  // or null
  int batch;

  PageTable(const ConstTensorView& block_table, const ConstTensorView& cu_seqlens,
            const ConstTensorView& first)
      : table(static_cast<const std::int32_t*>(block_table.data)),
        stride(block_table.strides[0]),
        max_pages(block_table.shape[1]),
        ends(static_cast<const std::int32_t*>(cu_seqlens.data) + 1),
        first_token(static_cast<const std::int32_t*>(first.data)),
        batch(static_cast<int>(block_table.shape[0])) {}

  struct Found {
    bool row = false;        // does a request have this row?
    std::int64_t page = -1;  // negative: there is none, and the row becomes 0
    std::int64_t offset = 0;
  };

  /// The first request that ends past the row. Called by a warp: 32 probes at a time, so that few loads
  /// depend on others.
  __device__ __forceinline__ int request_of(std::int64_t row) const {
    const int lane = threadIdx.x % 32;
    int first = 0;
    for (int count = batch; count > 0;) {
      const int step = (count + 31) / 32, probe = min((lane + 1) * step, count) - 1;
      const unsigned past = __ballot_sync(0xffffffff, ends[first + probe] > row);
      if (past == 0) return first + count;  // the request behind those; `count` if there is none
      const int skipped = (__ffs(past) - 1) * step;
      count = min(step, count - skipped) - 1;
      first += skipped;
    }
    return first;
  }

  /// `request`: the request of an earlier row, or of this one.
  __device__ __forceinline__ Found find(std::int64_t row, int request, std::int64_t pages,
                                        std::int64_t page_size) const {
    while (request < batch && ends[request] <= row) ++request;
    if (request == batch) return {};
    const std::int64_t first = first_token == nullptr ? 0 : first_token[request];
    const std::int64_t token = first + row - ends[request - 1];
    const std::int64_t column = token / page_size;
    if (token < 0 || column >= max_pages) return {true};
    const std::int64_t page = table[request * stride + column];
    if (page < 0 || page >= pages) return {true};
    return {true, page, token % page_size};
  }
};

/// Are the address and all strides but the last multiples of `bytes`?
inline bool in_vectors(const ConstTensorView& view, std::int64_t bytes = 16) {
  bool fits = reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) == 0;
  for (int i = 0; i + 1 < view.rank; ++i) {
    const std::int64_t stride = view.strides[i] * static_cast<std::int64_t>(size_of(view.dtype));
    fits = fits && (view.shape[i] <= 1 || stride % bytes == 0);
  }
  return fits;
}

}  // namespace flashlatent::cuda
