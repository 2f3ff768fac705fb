// Requests that are split over parts: who lays down the last of a row's partial results adds all of them up.
// A warp of each part has the same rows of a tile, and takes a ticket for these: no launch comes after this
// one, and no thread block waits.
#pragma once

#include "cuda/paged/prefix.cuh"
#include "cuda/parts/ticket.cuh"

namespace flashlatent::paged {

/// Is the segment one of several of its item, which meet here?
__device__ __forceinline__ bool merges(const Arguments& args, const schedule::Segment& segment) {
  return args.tickets != nullptr && segment.slot >= 0;
}

/// Where a slot's merge is looked for, a lane each: each merge has two slots or more, so that no later one
/// than number slot / 2 has this slot.
struct MergePlace {
  int index;
  int slot_begin, slot_end;  // of the merge there
};

/// `back`: how many times 32 merges before the last place. Reads from memory, and does not wait.
__device__ __forceinline__ MergePlace merge_place(const Arguments& args, int slot, int back = 0) {
  const schedule::Geometry& g = args.decode.geometry;
  if (g.whole == schedule::kShared) return {0, 0, g.parts};  // a lone request
  const int last = min(slot / 2, args.decode.plan_header->merges - 1);
  const int lane = threadIdx.x % 32;
  const int index = max(last - 32 * back - lane, 0);
  return {index, args.decode.merges[index].slot_begin, args.decode.merges[index].slot_end};
}

/// Of all lanes the place that has the slot.
__device__ __forceinline__ MergePlace merge_of(const Arguments& args, int slot, MergePlace place) {
  std::uint32_t found = 0;
  for (int back = 1;; ++back) {
    found = __ballot_sync(0xffffffff, place.slot_begin <= slot && slot < place.slot_end);
    if (found != 0 || __all_sync(0xffffffff, place.index == 0)) break;
    place = merge_place(args, slot, back);
  }
  const int from = max(__ffs(static_cast<int>(found)) - 1, 0);
  return {__shfl_sync(0xffffffff, place.index, from), __shfl_sync(0xffffffff, place.slot_begin, from),
          __shfl_sync(0xffffffff, place.slot_end, from)};
}

/// After a warp, number `turn` of `turns`, has written its rows of a tile to the segment's slot, whose merge
/// is in one lane's `place`.
template <class Config>
__device__ __forceinline__ void merge_splits(const Arguments& args, const schedule::Segment& segment,
                                             const parts::RowTile& tile, const MergePlace& place, int lane,
                                             int turn, int turns) {
  if (turn >= tile.rows) return;
  const MergePlace merge = merge_of(args, segment.slot, place);
  const int lanes = args.decode.geometry.lanes, count = merge.slot_end - merge.slot_begin;
  __syncwarp();  // all lanes have written
  bool last = false;
  if (threadIdx.x % 32 == 0) {
    last = parts::take_ticket(args.tickets + (merge.index * lanes + lane) * turns + turn, count);
  }
  if (!__shfl_sync(0xffffffff, last, 0)) return;
  schedule::Segment first = segment;
  first.slot = merge.slot_begin;
  schedule::Segment whole = segment;
  whole.slot = -1;
  for (int row = turn; row < tile.rows; row += turns) {
    const PartialRows from[1] = {partial_row<Config>(args, first, tile, lane, row)};
    for (int column = threadIdx.x % 32 * 4; column < args.dim; column += 128) {
      RowPiece sum[1] = {};
      add_pieces<kPiecesAtOnce<Config>>(sum, from, std::int64_t{lanes} * Config::kColumns, count, args.dim,
                                        column);
      const float lse = write_piece<Config>(args, {whole, {}}, tile, lane, row, column, sum[0]);
      if (column == 0) {
        parts::write_lse(args.decode.output, tile, head_of(args, tile, row), token_of(args, tile, row), lse);
      }
    }
  }
}

}  // namespace flashlatent::paged
