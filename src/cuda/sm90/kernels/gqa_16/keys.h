// What gqa_16 is compiled for, as data.
#pragma once

#include <array>

namespace flashlatent::gqa_16 {

enum class CachedType { kBF16, kF16, kE4m3 };

/// The key of a compiled kernel; Config says what the fields mean.
struct InstanceKey {
  CachedType cached;
  int dim;
  int columns;
  bool packed;

  friend bool operator==(const InstanceKey&, const InstanceKey&) = default;
};

/// The most query rows of a tile. With 16 rows of d 256 a warp has too few registers: two tiles of 8, which
/// read the same tokens through the cache, take 5 to 58 % less time.
constexpr int most_columns(int dim) {
  return dim <= 128 ? 16 : 8;
}

/// Warps of a CTA; each takes steps of step_tokens_of() tokens.
constexpr int warps_of(int dim) {
  return dim <= 128 ? 8 : 4;
}
/// mma's M, or twice that. e4m3 has half the bytes, so it is bound by the latency of a warp's work and not by
/// memory.
constexpr int step_tokens_of(bool e4m3) {
  return e4m3 ? 32 : 16;
}

/// 8 and 16 columns of d 64 and 128, 8 of d 256; values in rows and packed.
constexpr std::array<InstanceKey, 10> keys(CachedType cached) {
  return {{{cached, 64, 8, false},
           {cached, 64, 8, true},
           {cached, 64, 16, false},
           {cached, 64, 16, true},
           {cached, 128, 8, false},
           {cached, 128, 8, true},
           {cached, 128, 16, false},
           {cached, 128, 16, true},
           {cached, 256, 8, false},
           {cached, 256, 8, true}}};
}
inline constexpr auto kBf16Keys = keys(CachedType::kBF16), kFp16Keys = keys(CachedType::kF16),
                      kE4m3Keys = keys(CachedType::kE4m3);

}  // namespace flashlatent::gqa_16
