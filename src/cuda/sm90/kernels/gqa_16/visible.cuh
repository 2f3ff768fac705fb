// Which tokens query rows attend to.
#pragma once

#include "cuda/sm90/kernels/gqa_16/arguments.h"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::gqa_16 {

/// Tokens [begin, end) that a query row attends to.
struct Visible {
  int begin, end;
};

__device__ __forceinline__ Visible visible_by(const Arguments& args, const sm90::RowTile& tile, int length,
                                              int row) {
  const sm90::DecodeArguments& decode = args.decode;
  if (decode.spans != nullptr) [[unlikely]] {
    const schedule::TokenSpan span = tile.span(decode, tile.later(decode, row));
    return {span.begin, min(length, span.end)};
  }
  const int end = tile.limit_in_context(decode, length, row);
  return {args.score.window > 0 ? max(end - args.score.window, 0) : 0, end};
}
/// From the first to the last token that some row of the tile attends to.
__device__ __forceinline__ Visible visible_by_some(const Arguments& args, const sm90::RowTile& tile,
                                                   int length) {
  return {visible_by(args, tile, length, 0).begin, visible_by(args, tile, length, max(tile.rows - 1, 0)).end};
}

}  // namespace flashlatent::gqa_16
