// O += P V for 64 query rows, a block of 64 tokens and kColumns columns of V.
#pragma once

#include "cuda/sm90/math/tile.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::sm90 {

/// P is in registers as wgmma's A operand. `v`: the first of kColumns / 64 consecutive tiles. Uses the
/// block's tokens [16 kBegin, 16 kEnd), kPiece columns in a product.
template <class Element, int kColumns, int kBegin = 0, int kEnd = 4, int kPiece = kColumns, class Descriptors>
__device__ __forceinline__ void pv(float (&o)[kColumns / 2], const std::uint32_t (&p)[4][4],
                                   const Descriptors& descriptors, const Tile* v) {
  const std::uint64_t b = descriptors.n_major(v, sizeof(Tile));
#pragma unroll
  for (int piece = 0; piece < kColumns / kPiece; ++piece) {
    auto& part = reinterpret_cast<float(&)[kPiece / 2]>(o[piece * kPiece / 2]);
    constexpr std::uint64_t kPieceStep = kPiece / 64 * sizeof(Tile) / 16;
#pragma unroll
    for (int step = kBegin; step < kEnd; ++step) {
      ptx::Wgmma<Element, kPiece>::template rs<true>(
          part, p[step], b + piece * kPieceStep + step * ptx::kStepAlongRows, true);
    }
  }
}

}  // namespace flashlatent::sm90
