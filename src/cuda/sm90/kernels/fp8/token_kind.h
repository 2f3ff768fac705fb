// The kinds of a cache's tokens, and what the kernels ask of a kind.
#pragma once

#include "core/formats/e4m3_latent.h"
#include "core/formats/fp8_584.h"
#include "core/formats/fp8_656.h"

namespace flashlatent::fp8 {

/// For e4m3 latents also how blocks are loaded (load/atoms_loader.cuh). kRopeRecords: fp8_584; kRecords:
/// mxfp8_528 and nvfp4_288.
enum class Tokens { kFp8_656, kE4m3Boxes, kE4m3Tokens, kRopeRecords, kRecords };

/// How the tokens of a block lie in shared memory.
enum class Arrangement {
  kOneByOne,  ///< 656 bytes each: eight consecutive ones lie in eight groups of banks.
  kPairs,     ///< token_pairs.cuh.
  kAtoms,     ///< load/atoms_loader.cuh.
};

/// Columns of the RoPE part, which is bf16 but in e4m3 latents.
inline constexpr int kRopeDim = 64;

struct TokenTraits {
  Arrangement arrangement;
  /// K's and V's: kFp32 need not be powers of two and are read again where they are used; kUe8m0 become units
  /// and ratios by integer arithmetic, once a token; kOfCache is left to scores and outputs.
  ScaleKind scales;
  int dim;          ///< Elements of a row, which Q has.
  int token_bytes;  ///< With kPairs half of a pair's.
  int rope_offset;  ///< From a token's begin.
  /// Elements of V that have a scale, or would have: places of ratios.
  int group;
  /// Is the RoPE part value, too? It is multiplied unconverted, by P without units in bf16.
  bool rope_is_value;
  /// Do items have two lists of tokens (plan/token_lists.h)? Then all rows of a tile attend to the same
  /// tokens, dead ones are zeros, and items are short.
  bool two_lists;
};

/// kRecords have kernels of their own (records_config.h).
template <Tokens kTokens>
inline constexpr TokenTraits kTraits;
template <>
inline constexpr TokenTraits kTraits<Tokens::kFp8_656> = {.arrangement = Arrangement::kOneByOne,
                                                          .scales = kFp8_656Format.scales,
                                                          .dim = fp8_656::kDim,
                                                          .token_bytes = fp8_656::kTokenBytes,
                                                          .rope_offset = fp8_656::kRopeOffset,
                                                          .group = fp8_656::kGroup,
                                                          .rope_is_value = false,
                                                          .two_lists = false};
template <>
inline constexpr TokenTraits kTraits<Tokens::kRopeRecords> = {.arrangement = Arrangement::kPairs,
                                                              .scales = kFp8_584Format.scales,
                                                              .dim = fp8_584::kDim,
                                                              .token_bytes = fp8_584::kTokenBytes,
                                                              .rope_offset = fp8_584::kRopeOffset,
                                                              .group = fp8_584::kGroup,
                                                              .rope_is_value = true,
                                                              .two_lists = true};
inline constexpr TokenTraits kE4m3Traits = {.arrangement = Arrangement::kAtoms,
                                            .scales = kE4m3Format.scales,
                                            .dim = e4m3_latent::kDim,
                                            .token_bytes = e4m3_latent::kDim,
                                            .rope_offset = e4m3_latent::kLatentDim,
                                            .group = fp8_656::kGroup,
                                            .rope_is_value = false,
                                            .two_lists = false};
template <>
inline constexpr TokenTraits kTraits<Tokens::kE4m3Boxes> = kE4m3Traits;
template <>
inline constexpr TokenTraits kTraits<Tokens::kE4m3Tokens> = kE4m3Traits;

/// A kind's traits under the names by which kernels ask for them.
template <Tokens kTokens_>
struct TokenConfig {
  static constexpr Tokens kTokens = kTokens_;
  static constexpr Arrangement kArrangement = kTraits<kTokens>.arrangement;
  static constexpr bool kE4m3 = kArrangement == Arrangement::kAtoms;
  static constexpr bool kBoxes = kTokens == Tokens::kE4m3Boxes;
  static constexpr bool kPairs = kArrangement == Arrangement::kPairs;
  static constexpr bool kUe8m0 = kTraits<kTokens>.scales == ScaleKind::kUe8m0;
  static constexpr bool kFp32Scales = kTraits<kTokens>.scales == ScaleKind::kFp32;
  static constexpr bool kRopeIsValue = kTraits<kTokens>.rope_is_value;
  static constexpr bool kLists = kTraits<kTokens>.two_lists;
  static constexpr int kQkDim = kTraits<kTokens>.dim, kVDim = 512;
  static constexpr int kRopeOffset = kTraits<kTokens>.rope_offset;
  static constexpr int kTokenBytes = kTraits<kTokens>.token_bytes;
  static constexpr int kChunks = kQkDim / 64;
  static constexpr int kBlockBytes = 64 * kTokenBytes;
};

}  // namespace flashlatent::fp8
