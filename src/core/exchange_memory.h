// The memory of a rank that its peers write to in an exchange, byte by byte, for host and device.
//
//   flags    [CTA][rank]   exchanges for which that rank's CTA has written its rows here
//   epochs   [CTA]         exchanges that this rank's CTA has done
//   rows     [parity][CTA][rank], as many rows as fit
//
// A CTA takes the same rows on all ranks, so it waits only for the CTAs of its own number. Exchanges use the
// two parities of `rows` in turns. A CTA that writes the rows of exchange e has waited for its peers in
// exchange e - 1, and these had finished exchange e - 2 by then.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define FLASHLATENT_EXCHANGE_FUNCTION __host__ __device__ __forceinline__
#else
#define FLASHLATENT_EXCHANGE_FUNCTION inline
#endif

namespace flashlatent::exchange {

// all are resident at the same time on a GPU with at least as many multiprocessors
inline constexpr int kCtas = 128;
inline constexpr int kFlagBytes = 32;  // a memory sector each

struct Layout {
  int world, v_dim;
  // bytes for one CTA's rows of one rank, whatever the length of a row; CTAs do not share them
  std::size_t room;

  /// A row: elements of 16 bits, and its lse in 16 bytes.
  FLASHLATENT_EXCHANGE_FUNCTION std::size_t row_bytes() const { return 2 * std::size_t(v_dim) + 16; }
  FLASHLATENT_EXCHANGE_FUNCTION std::size_t flag(int cta, int rank) const {
    return (std::size_t(cta) * world + rank) * kFlagBytes;
  }
  FLASHLATENT_EXCHANGE_FUNCTION std::size_t epoch(int cta) const {
    return flag(kCtas, 0) + std::size_t(cta) * kFlagBytes;
  }
  FLASHLATENT_EXCHANGE_FUNCTION std::size_t row(int parity, int cta, int rank, int index) const {
    const std::size_t place = (std::size_t(parity) * kCtas + cta) * world + rank;
    return epoch(kCtas) + place * room + std::size_t(index) * row_bytes();
  }
  FLASHLATENT_EXCHANGE_FUNCTION std::size_t bytes() const { return row(2, 0, 0, 0); }
  /// Rows of a rank that fit.
  FLASHLATENT_EXCHANGE_FUNCTION std::size_t rows() const { return room / row_bytes() * kCtas; }
};

/// The least layout for `rows` rows of a rank.
inline Layout layout_for(int rows, int v_dim, int world) {
  Layout layout{world, v_dim, 0};
  layout.room = (rows + std::size_t(kCtas) - 1) / kCtas * layout.row_bytes();
  return layout;
}

/// The layout of a memory of `bytes` bytes. A row must be a multiple of 16 bytes long.
inline Layout layout_of(std::size_t bytes, int v_dim, int world) {
  Layout layout{world, v_dim, 0};
  const std::size_t fixed = layout.bytes();
  if (bytes > fixed) layout.room = (bytes - fixed) / (2 * std::size_t(kCtas) * world) / 16 * 16;
  return layout;
}

}  // namespace flashlatent::exchange
