// TMA descriptors.
#pragma once

#include <cuda.h>

#include <cstdint>

// Declared only, so that files of instances include less (compiled_kernel.h).
namespace flashlatent {
class Status;
template <class Pointer>
struct BasicTensorView;
using ConstTensorView = BasicTensorView<const void*>;
}  // namespace flashlatent

namespace flashlatent::cuda {

/// A map over four dimensions of a view. Dimension i of the map, the innermost first, is dimension order[i]
/// of the view. `swizzle`: 64 or 128 bytes, or 0 for none. The pointer and all strides but the innermost must
/// be multiples of 16 bytes. `name`: the argument, for errors.
Status box_map(const char* name, const ConstTensorView& view, const int (&order)[4],
               const std::uint32_t (&box)[4], int swizzle, CUtensorMap& map);

/// Boxes of a KV cache (pages, page_size, heads, dim): `box_tokens` tokens by 64 elements of one head and
/// page, 128-byte swizzled. The pointer and all strides must be multiples of 16 bytes.
Status kv_tensor_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

/// Boxes with all elements of a head, in chunks of 128 bytes: the first chunk of each of 16 tokens, their
/// second chunk and so on; then the next 16 tokens. The map's dimensions: column, token, chunk, 16 tokens,
/// page. `box_tokens` and the page size are multiples of 16, and heads_in_chunks() is true (tensors.h).
Status kv_block_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

/// Boxes with all elements of a head: the first chunk of each of `box_tokens` tokens, then their second chunk
/// and so on. The map's dimensions: column, token, chunk, page. `box_tokens` divides the page size, and
/// heads_in_chunks() is true.
Status kv_chunks_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map);

/// Boxes of queries, or of a part of their columns, (batch, tokens, heads, dim): `box_rows` rows by 64
/// elements. The map's dimensions: element, row of a line, line, request. With `in_line` a request's tokens
/// and heads are one line of rows, at equal distances. Otherwise a line is the heads of a token; their number
/// then divides `box_rows`, or is a multiple of it.
Status query_rows_map(const char* name, const ConstTensorView& q, int box_rows, bool in_line,
                      CUtensorMap& map);

/// Boxes with all elements: the first chunk of 64 elements of each of `box_rows` rows, then their second
/// chunk and so on. The map's dimensions: element, row of a line, line, chunk, request.
Status query_chunks_map(const char* name, const ConstTensorView& q, int box_rows, bool in_line,
                        CUtensorMap& map);

/// Boxes of queries: `box_tokens` tokens, each with `box_heads` consecutive heads.
Status query_group_map(const ConstTensorView& q, int box_tokens, int box_heads, CUtensorMap& map);

}  // namespace flashlatent::cuda
