#include "serve/latents.h"

#include "core/element.h"

namespace flashlatent::serve {

namespace {

/// The finaliser of SplitMix64 (Steele et al., 2014): a bijection that reaches every bit from every bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

template <std::uint16_t (*kRound)(float)>
void fill(std::span<std::uint16_t> row, float scale, std::uint64_t key) {
  const float step = scale * 0x1p-15F;
  for (std::size_t i = 0; i < row.size(); i += 4) {  // 16 bits an element
    const std::uint64_t bits = mix(key += kGolden);
    for (std::size_t j = 0; j < 4 && i + j < row.size(); ++j) {
      row[i + j] = kRound(step * static_cast<float>(static_cast<std::int16_t>(bits >> 16 * j)));
    }
  }
}

}  // namespace

void fill_random(std::span<std::uint16_t> row, Dtype dtype, float scale, std::uint64_t seed,
                 const RowName& name) {
  std::uint64_t key = mix(seed + kGolden);
  for (std::uint64_t part :
       {static_cast<std::uint64_t>(name.kind), static_cast<std::uint64_t>(name.stream),
        static_cast<std::uint64_t>(name.position), static_cast<std::uint64_t>(name.layer)}) {
    key = mix((key ^ part) + kGolden);
  }
  dtype == Dtype::kBF16 ? fill<float_to_bf16>(row, scale, key) : fill<float_to_fp16>(row, scale, key);
}

}  // namespace flashlatent::serve
