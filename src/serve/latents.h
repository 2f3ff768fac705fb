// Random cache rows and queries, each computed from its name: nothing has to be kept to make them again.
#pragma once

#include <cstdint>
#include <span>

#include "flashlatent/tensor.h"

namespace flashlatent::serve {

enum class RowKind : std::uint64_t { kSharedToken = 1, kOwnToken = 2, kQuery = 3 };

/// The name of one row.
struct RowName {
  RowKind kind = RowKind::kOwnToken;
  std::int64_t stream = 0;    ///< A block's hash id, or a request.
  std::int64_t position = 0;  ///< Token in the stream.
  std::int64_t layer = 0;
};

/// Fills `row` with values uniform in [-scale, scale), rounded to bf16 or fp16; always the same for a seed
/// and a name.
void fill_random(std::span<std::uint16_t> row, Dtype dtype, float scale, std::uint64_t seed,
                 const RowName& name);

}  // namespace flashlatent::serve
