// Requests that are split over parts: the warp that writes the last of a row's partial results adds all of
// them up. A warp of each part has the same rows of a tile and takes a ticket for them. No further launch is
// needed, and no CTA waits.
#pragma once

#include "cuda/sm90/kernels/gqa_16/prefix.cuh"
#include "cuda/sm90/merge/ticket.cuh"

namespace flashlatent::gqa_16 {

/// Is the segment a split, whose item is merged here?
__device__ __forceinline__ bool merges(const Arguments& args, const schedule::Segment& segment) {
  return args.tickets != nullptr && segment.partial >= 0;
}

/// The plan's merge that a partial result belongs to, and its number.
struct SplitItem {
  int index;
  int partial_begin, partial_end;
};

/// Called by all lanes of a warp: one trip to memory for 32 merges.
__device__ __forceinline__ SplitItem item_of(const sm90::DecodeArguments& decode, int partial) {
  const int lane = threadIdx.x % 32;
  // Each merge has at least two partial results, so this one belongs to merge number partial / 2 or an
  // earlier one.
  for (int last = min(partial / 2, decode.plan_header->merges - 1); last >= 0; last -= 32) {
    const int index = max(last - lane, 0);
    const int begin = decode.merges[index].partial_begin, end = decode.merges[index].partial_end;
    const std::uint32_t found = __ballot_sync(0xffffffff, begin <= partial && partial < end);
    if (found == 0) continue;
    const int from = __ffs(static_cast<int>(found)) - 1;
    return {last - from, __shfl_sync(0xffffffff, begin, from), __shfl_sync(0xffffffff, end, from)};
  }
  return {};
}

/// Call after a warp, number `turn` of `turns`, has written its rows of a tile to the segment's place.
template <class Config>
__device__ __forceinline__ void merge_splits(const Arguments& args, const schedule::Segment& segment,
                                             const sm90::RowTile& tile, int lane, int turn, int turns) {
  if (turn >= tile.rows) return;
  const SplitItem item = item_of(args.decode, segment.partial);
  const int lanes = args.decode.geometry.lanes, count = item.partial_end - item.partial_begin;
  __syncwarp();  // all lanes have written
  bool last = false;
  if (threadIdx.x % 32 == 0) {
    last = sm90::take_ticket(args.tickets + (item.index * lanes + lane) * turns + turn, count);
  }
  if (!__shfl_sync(0xffffffff, last, 0)) return;
  schedule::Segment first = segment;
  first.partial = item.partial_begin;
  schedule::Segment whole = segment;
  whole.partial = -1;
  for (int row = turn; row < tile.rows; row += turns) {
    const PartialRows from = partial_row<Config>(args, first, tile, lane, row);
    for (int column = threadIdx.x % 32 * 4; column < args.dim; column += 128) {
      const RowPiece sum = add_pieces<kPiecesAtOnce<Config>>({}, from, std::int64_t{lanes} * Config::kColumns,
                                                             count, args.dim, column);
      const float lse = write_piece<Config>(args, {whole, {}}, tile, lane, row, column, sum);
      if (column == 0) {
        sm90::write_lse(args.decode.output, tile, tile.head(args.decode.query, row),
                        tile.token(args.decode.query, row), lse);
      }
    }
  }
}

}  // namespace flashlatent::gqa_16
