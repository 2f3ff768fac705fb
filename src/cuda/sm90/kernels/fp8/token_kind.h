// The kinds of a cache's tokens.
#pragma once

namespace flashlatent::fp8 {

/// For e4m3 latents also how blocks are loaded (load/atoms_loader.cuh). fp8_584, and records (mxfp8_528 and
/// nvfp4_288): from two lists.
enum class Tokens { kFp8_656, kE4m3Boxes, kE4m3Tokens, kFp8_584, kRecords };

constexpr bool is_e4m3(Tokens tokens) {
  return tokens == Tokens::kE4m3Boxes || tokens == Tokens::kE4m3Tokens;
}

}  // namespace flashlatent::fp8
