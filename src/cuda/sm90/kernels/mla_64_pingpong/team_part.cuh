// The work of a CTA in a team of any size (any_team.cuh): its row tile, its blocks, and the pieces of the
// output that it owns. All of these follow from shapes.
#pragma once

#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::mla_64_pingpong {

/// Divides small numbers: a few instructions, where an integer division is a chain of 25.
class SmallDivisor {
 public:
  __device__ __forceinline__ explicit SmallDivisor(int divisor) : inverse_(1.0F / divisor) {}
  /// x / divisor, x from 0 to 2^16.
  __device__ __forceinline__ int quotient(int x) const { return __float2int_rd((x + 0.5F) * inverse_); }

 private:
  float inverse_;
};

/// This CTA's work, by shapes.
struct TeamPart {
  int size, rank;     // of the team, and this CTA in it
  int begin, blocks;  // of the item's
  int item;
  sm90::RowTile tile;
  int pieces;       // of all owners
  int first, end;   // this owner's
  int room;         // pieces for which an owner has a place
  int piece_bytes;  // that this CTA gets, with statistics
  SmallDivisor by_size;

  /// `together`: so many pieces, a power of two, have one owner.
  __device__ __forceinline__ TeamPart(const sm90::DecodeArguments& args, int together)
      : size(args.geometry.team), rank(ptx::rank_in_cluster()), by_size(size) {
    const unsigned cta = blockIdx.x;
    const int team = cta < 1 << 16 ? by_size.quotient(cta) : cta / size;
    item = args.lanes.quotient(team);  // as schedule::whole_cut() in one round
    tile = sm90::row_tile(args, item, 0, args.lanes.remainder(team));
    const int all = schedule::max_blocks(args.geometry);
    begin = by_size.quotient(all * rank);
    blocks = by_size.quotient(all * (rank + 1)) - begin;
    pieces = (tile.rows + 7) / 8 * kPiecesOfEight;
    room = by_size.quotient(pieces / together + size - 1) * together;
    first = first_of(rank, together);
    end = first_of(rank + 1, together);
    const int groups = first < end ? (end - 1) / kPiecesOfGroup - first / kPiecesOfGroup + 1 : 0;
    piece_bytes = size * ((end - first) * kPieceBytes + groups * 8 * static_cast<int>(sizeof(float4)));
  }

  static constexpr int kMostPieces = 64;
  static constexpr int kPieceBytes = 1024;  // 8 rows of 64 columns in fp16
  static constexpr int kPiecesOfEight = 8;  // of 512 columns
  static constexpr int kPiecesOfGroup = 4;  // of a warpgroup's half of them

  __device__ __forceinline__ int first_of(int owner, int together) const {
    return by_size.quotient(pieces / together * owner) * together;
  }
};

}  // namespace flashlatent::mla_64_pingpong
