// What a format of a latent cache is: a value. kFormats (formats.h) has all of them. Host code asks the value
// and names no format; device code has an element reader for each (cuda/sm90/load/).
#pragma once

#include <cstdint>

#include "flashlatent/problem.h"

namespace flashlatent {

/// What an element is before its scale.
enum class Elements : std::uint8_t {
  kHalf,  ///< bf16 or fp16, without a scale.
  kE4m3,
  kE2m1,  ///< 4 bits, element 2i in the low nibble of byte i.
};

/// What a group's scale is, and where: kOfCache is one fp32 for all elements, which the call gives.
enum class ScaleKind : std::uint8_t { kNone, kOfCache, kFp32, kUe8m0, kE4m3 };

/// One arrangement of bytes. A token is `dim` elements: first those with scales, then `rope_dim` of bf16.
/// Where `place` is kPage, a page of B tokens is B times data_bytes, then B times scale_bytes; else a token's
/// scales are among its data_bytes.
struct LatentFormat {
  KvFormat format;
  const char* name;
  int dim = 0;               ///< 0: the last dimension says.
  int dim_without_rope = 0;  ///< Another qk_dim, with which the RoPE part is never read; 0: none.
  int rope_dim = 0;          ///< Elements in bf16 behind the others.
  bool all_value = false;    ///< Is the value the whole row, RoPE part included?
  Elements elements = Elements::kHalf;
  ScaleKind scales = ScaleKind::kNone;
  ScaleFloor rule = ScaleFloor::kAuto;  ///< The engines' writer's, where a scale is a power of two.
  int group = 0;                        ///< Elements that share a scale.
  int rope_offset = 0;                  ///< From a token's data to its RoPE part.
  int data_bytes = 0;                   ///< A token's; with kPage from one token's data to the next one's.
  int scale_offset = 0;                 ///< From a token's data to its scales, where these are with it.
  int scale_bytes = 0;                  ///< A token's; with kPage from one token's scales to the next one's.
  ScalePlace place = ScalePlace::kToken;
  int page_unit = 1;  ///< The least page stride is rounded up to a multiple of this.

  constexpr bool plain() const { return elements == Elements::kHalf; }
  /// Has a token a number of bytes of its own?
  constexpr bool is_record() const { return data_bytes != 0; }
  /// Do a page's scales follow its data?
  constexpr bool apart() const { return place == ScalePlace::kPage; }
  /// Bytes of a token, scales included.
  constexpr int token_bytes() const { return data_bytes + (apart() ? scale_bytes : 0); }
  /// Elements with a scale of their group.
  constexpr int scaled_dim() const { return dim - rope_dim; }
  constexpr int groups() const { return group == 0 ? 0 : scaled_dim() / group; }
  constexpr int bytes_a_scale() const { return scales == ScaleKind::kFp32 ? 4 : 1; }
  /// Bytes of a token that a reader needs, without its scales where these are apart.
  constexpr int read_bytes(int qk_dim) const { return qk_dim == dim_without_rope ? rope_offset : data_bytes; }

  /// Elements of a token of a cache whose last dimension is `last`.
  constexpr std::int64_t elements_of(std::int64_t last) const { return dim > 0 ? dim : last; }
  /// The last dimension of a cache whose tokens have this many elements.
  constexpr std::int64_t last_extent(std::int64_t count) const { return is_record() ? token_bytes() : count; }
  constexpr Dtype dtype(Dtype of_plain) const { return plain() ? of_plain : Dtype::kU8; }

  /// Bytes from the begin of a page to a token's data and to its scales. `stride`: from token to token in the
  /// cache's view, which only counts where scales are with their token.
  constexpr std::int64_t token_stride(std::int64_t stride) const { return apart() ? data_bytes : stride; }
  constexpr std::int64_t data_at(std::int64_t token, std::int64_t stride) const {
    return token * token_stride(stride);
  }
  constexpr std::int64_t scales_at(std::int64_t page_size, std::int64_t token, std::int64_t stride) const {
    return apart() ? page_size * data_bytes + token * scale_bytes : token * stride + scale_offset;
  }

  /// The least bytes from one page of this many tokens to the next.
  constexpr std::int64_t least_page_stride(std::int64_t page_size, std::int64_t last) const {
    return (page_size * last_extent(last) + page_unit - 1) / page_unit * page_unit;
  }
};

/// The same token with its scales behind the data of the page.
constexpr LatentFormat by_page(LatentFormat format) {
  format.place = ScalePlace::kPage;
  format.data_bytes = format.scale_offset;
  return format;
}

/// A page stride of a format whose scales are apart is a multiple of this many bytes.
inline constexpr int kPageAlignment = 16;

}  // namespace flashlatent
