// How partial results are stored. They are normalised fp32; but bf16 calls in tiles of 64 rows store fp16,
// with a unit for each half of a row's columns. An output of 8 bits hides the rounding to 11, and a call of
// few requests with 128 heads writes and reads 8.5 MB, not 17.
#pragma once

#include "cuda/sm90/merge/packed_row.cuh"
#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

template <class Element, int kTileRows>
using StoredPartial =
    std::conditional_t<std::is_same_v<Element, __nv_bfloat16> && kTileRows == 64, __half, float>;

template <class Stored>
__device__ __forceinline__ Stored* partial_out(const PartialArguments& partial) {
  return reinterpret_cast<Stored*>(partial.out);
}

/// What a lane loads of a row at once: 16 bytes, in groups of four values.
template <class Stored>
using StoredPiece = std::conditional_t<std::is_same_v<Stored, float>, float4, uint4>;
template <class Stored>
inline constexpr int kPieceValues = sizeof(StoredPiece<Stored>) / sizeof(Stored);
template <class Stored>
inline constexpr int kPieceFours = kPieceValues<Stored> / 4;

__device__ __forceinline__ void unpack_piece(float4 (&fours)[1], float4 piece) {
  fours[0] = piece;
}
__device__ __forceinline__ void unpack_piece(float4 (&fours)[2], uint4 piece) {
  const float2 a = unpack<__half>(piece.x), b = unpack<__half>(piece.y);
  const float2 c = unpack<__half>(piece.z), d = unpack<__half>(piece.w);
  fours[0] = make_float4(a.x, a.y, b.x, b.y);
  fours[1] = make_float4(c.x, c.y, d.x, d.y);
}

/// The lane, and its value, that has word `w` (two columns) of an output unit, the columns that a warp loads
/// at once.
struct WordPlace {
  int lane, value;
};
template <class Stored>
__device__ __forceinline__ WordPlace place_of_word(int w) {
  if constexpr (std::is_same_v<Stored, float>) {
    return {w / 2, w % 2 * 2};
  } else {
    return {w / 16 * 4 + w % 4, w / 4 % 4 * 2};  // a quad's pieces are its 32 columns, as packets (below)
  }
}

/// The unit of the left (0) or right (1) half of an fp16 row: the value of a 1. The row's packets
/// (packed_row.cuh) of a quad's four lanes lie side by side. So columns are in another order, which
/// merge_units.cuh knows, and no lane shuffles.
__device__ __forceinline__ float& partial_unit(const PartialArguments& partial, std::int64_t row, int half) {
  return reinterpret_cast<float*>(partial.units + row)[half];
}
__device__ __forceinline__ uint4* packets_of(const PartialArguments& partial, std::int64_t row, int v_dim,
                                             int half) {
  return reinterpret_cast<uint4*>(partial_out<__half>(partial) + row * v_dim + half * (v_dim / 2));
}

}  // namespace flashlatent::sm90
