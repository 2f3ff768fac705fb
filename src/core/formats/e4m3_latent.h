// The e4m3 latent token, and the numbers of e4m3 products, for host and device.
//
// A token is 576 elements of e4m3, RoPE part included (without RoPE 512), times one fp32 scale of the cache.
//
// e4m3 products round two more things, in the same way in every kernel:
//   q  a row of a bf16 query is e4m3 * 2^query_exponent(amax); amax: the row's largest finite magnitude
//   P  exp(s - m) * kProbabilityScale; m: a maximum of the row's scores so far
#pragma once

#include "core/e4m3.h"
#include "core/formats/format.h"

namespace flashlatent {

namespace e4m3_latent {

inline constexpr int kLatentDim = 512;
inline constexpr int kRopeDim = 64;
inline constexpr int kDim = kLatentDim + kRopeDim;

using namespace e4m3;  // the type of its elements

/// The exponent of a query row's scale, ceil(log2(amax / 448)), from -126 to 119. The scale is a power of
/// two: dividing by it rounds nothing, so every kernel makes the same codes.
FLASHLATENT_HOST_DEVICE int query_exponent(float amax) {
  constexpr std::uint32_t kCarry = 0x7FFFFF - 0x600000;  // as e4m3::scale_exponent()
  const int exponent = static_cast<int>((bits_of(amax) + kCarry) >> 23) - 127 - 8;
  return exponent > -126 ? exponent : -126;
}

/// Brings P, at most 1, near e4m3's largest number, 448.
inline constexpr float kProbabilityScale = 256.0F;

/// Tensor cores keep 13 bits of a sum of e4m3 products, so a score is made of several such sums ("chains") of
/// about equally many products, which are added in fp32 (docs/log/mla_64_e4m3.md). Tiles of up to kFewRows
/// query rows have registers for two sums at a time and use five; larger tiles use three, which bring lse
/// within its tolerance.
inline constexpr int kFewRows = 16, kChainsOfFewRows = 5, kChainsOfTiles = 3;

constexpr int score_chains(int query_rows) {
  return query_rows <= kFewRows ? kChainsOfFewRows : kChainsOfTiles;
}

}  // namespace e4m3_latent

/// Its tokens have as many bytes as elements, kDim or kLatentDim.
inline constexpr LatentFormat kE4m3Format = {
    .format = KvFormat::kE4m3, .name = "e4m3", .elements = Elements::kE4m3, .scales = ScaleKind::kOfCache};

}  // namespace flashlatent
