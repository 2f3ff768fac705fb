// What tokens of a cache are.
#pragma once

namespace flashlatent::fp8 {

/// For e4m3 latents also how blocks come (parts/atoms_loader.cuh).
enum class Tokens { kFp8_656, kFp8_584, kE4m3Boxes, kE4m3Tokens };

}  // namespace flashlatent::fp8
