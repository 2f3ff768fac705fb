// TMA descriptors.
#pragma once

#include <cuda.h>

#include <cstdint>

// Declared only, for files of instances (compiled_kernel.h).
namespace flashlatent {
class Status;
template <class Pointer>
struct BasicTensorView;
using ConstTensorView = BasicTensorView<const void*>;
}  // namespace flashlatent

namespace flashlatent::cuda {

/// Four dimensions of a view as boxes: dimension i of the map, the innermost first, is dimension order[i] of
/// the view. Rows of `swizzle` bytes, 64 or 128, are swizzled; 0: as they are. Strides but the innermost, and
/// the pointer, must be multiples of 16 bytes.
Status box_map(const char* name, const ConstTensorView& view, const int (&order)[4],
               const std::uint32_t (&box)[4], int swizzle, CUtensorMap& map);

/// A KV cache (pages, page_size, heads, dim) as boxes of `box_tokens` tokens by 64 elements of one head and
/// page, 128-byte swizzled. Strides are the view's; they and the pointer must be multiples of 16 bytes.
/// `name` is the argument's, for errors.
Status kv_tensor_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

/// The same, but boxes have all of a head's elements, in chunks of 128 bytes: a chunk of each of 16 tokens,
/// the next one of these and so on, and then the next 16 tokens. Dimensions are a column, a token, a chunk
/// (those of a head begin so many after the one before's as its stride has), 16 tokens, a page. `box_tokens`
/// and the page size are multiples of 16, and heads_in_chunks() is true (tensors.h).
Status kv_block_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

/// The same, but boxes have a chunk of each of `box_tokens` tokens, the next one of these and so on:
/// dimensions are a column, a token, a chunk, a page. `box_tokens` divides the page size, and
/// heads_in_chunks() is true.
Status kv_chunks_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

/// Queries (batch, tokens, heads, dim) as boxes of `box_rows` rows and 64 elements, a request's tokens and
/// heads taken as one line of rows.
Status query_rows_map(const ConstTensorView& q, int box_rows, CUtensorMap& map);

/// The same, but boxes have a chunk of 64 elements of each row, the next one of these and so on, as
/// kv_chunks_map()'s: dimensions are an element, a row, a chunk, a request.
Status query_chunks_map(const ConstTensorView& q, int box_rows, CUtensorMap& map);

/// The same as boxes of `box_tokens` tokens, each with `box_heads` heads in a row.
Status query_group_map(const ConstTensorView& q, int box_tokens, int box_heads, CUtensorMap& map);

}  // namespace flashlatent::cuda
