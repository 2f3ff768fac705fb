// The e4m3 latent token and the numbers of e4m3 products, for host and device.
//
// A token is 576 (without RoPE 512) bytes of e4m3, RoPE too, times one fp32 scale that the cache has.
//
// e4m3 products round two things besides, alike in every kernel:
//   q  a row of a bf16 query is e4m3 * 2^query_exponent(amax), amax being the row's largest finite magnitude
//   P  exp(s - m) * kProbabilityScale, m being a maximum of the row's scores so far
#pragma once

#include "core/e4m3.h"

namespace flashlatent::e4m3_latent {

inline constexpr int kLatentDim = 512;
inline constexpr int kRopeDim = 64;
inline constexpr int kDim = kLatentDim + kRopeDim;

using namespace e4m3;  // what its elements are

/// The exponent of a query row's scale, ceil(log2(amax / 448)), from -126 to 119: a power of two, so that
/// dividing by it rounds nothing and every kernel makes the same codes.
FLASHLATENT_FP8_FUNCTION int query_exponent(float amax) {
  constexpr std::uint32_t kCarry = 0x7FFFFF - 0x600000;  // as e4m3::scale_exponent()
  const int exponent = static_cast<int>((bits_of(amax) + kCarry) >> 23) - 127 - 8;
  return exponent > -126 ? exponent : -126;
}

/// Keeps P, at most 1, near e4m3's largest number, 448.
inline constexpr float kProbabilityScale = 256.0F;

/// On tensor cores a score is made in so many sums ("chains") of about as many products each, which are added
/// in fp32: a sum of e4m3 products keeps 13 bits (docs/log/mla_64_e4m3.md). Of tiles of up to kFewRows query
/// rows, which have registers for two sums under way, and of larger ones, whose lse three bring within the
/// tolerance.
inline constexpr int kFewRows = 16, kChainsOfFewRows = 5, kChainsOfTiles = 3;

constexpr int score_chains(int query_rows) {
  return query_rows <= kFewRows ? kChainsOfFewRows : kChainsOfTiles;
}

}  // namespace flashlatent::e4m3_latent
