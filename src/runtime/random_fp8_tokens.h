// Random tokens of the latent FP8 formats, and poison for unused ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/element.h"
#include "core/fp8_584.h"
#include "core/fp8_656.h"

namespace flashlatent::runtime {

class Fp8Tokens {
 public:
  Fp8Tokens(std::mt19937_64& engine, std::normal_distribution<float>& normal)
      : engine_(engine), normal_(normal) {}

  /// Writes an fp8_656 token. Half of the groups have the writer's scale; the others have any scale that
  /// keeps all elements in range.
  void write_656(std::uint8_t* token, bool rope, float mean) {
    for (int group = 0; group < fp8_656::kGroups; ++group) {
      const float scale =
          write_group<fp8_656::kGroup>(token + group * fp8_656::kGroup, mean, [this](float amax, float) {
            return amax / fp8_656::kLargest * (1 + static_cast<float>(engine_() % 100) / 50);
          });
      std::memcpy(token + fp8_656::kScaleOffset + group * sizeof(scale), &scale, sizeof(scale));
    }
    if (rope) write_rope(token + fp8_656::kRopeOffset, mean);
  }

  /// Writes an fp8_584 token, but not its byte of padding.
  void write_584(std::uint8_t* page, int page_size, std::int64_t offset, float mean) {
    std::uint8_t* data = page + fp8_584::data_offset(offset);
    std::uint8_t* scales = page + fp8_584::scale_offset(page_size, offset);
    for (int group = 0; group < fp8_584::kGroups; ++group) {
      const float scale = write_group<fp8_584::kGroup>(
          data + group * fp8_584::kGroup, mean,
          [this](float, float least) { return least * e4m3::power_of_two(static_cast<int>(engine_() % 3)); });
      scales[group] = fp8_584::scale_byte(std::ilogb(scale));
    }
    write_rope(data + fp8_584::kRopeOffset, mean);
  }

  /// Writes NaN to every element, or finite elements with scales that are NaN or Inf.
  void poison_656(std::uint8_t* token) {
    std::memset(token, 0xFF, fp8_656::kTokenBytes);
    if (engine_() % 2 == 0) return;
    std::memset(token, 0x38, fp8_656::kLatentDim);
    const float scale =
        engine_() % 2 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    for (int group = 0; group < fp8_656::kGroups; ++group) {
      std::memcpy(token + fp8_656::kScaleOffset + group * sizeof(scale), &scale, sizeof(scale));
    }
  }

  /// The same for fp8_584, whose bytes are all NaN before.
  void poison_584(std::uint8_t* page, int page_size, std::int64_t offset) {
    switch (engine_() % 3) {
      case 0:  // numbers with NaN scales
        std::memset(page + fp8_584::data_offset(offset), 0x38, fp8_584::kNopeDim);
        break;
      case 1:  // NaN with finite scales
        std::memset(page + fp8_584::scale_offset(page_size, offset), 127, fp8_584::kScaleBytes);
        break;
      default:
        break;
    }
  }

 private:
  /// Writes the codes of a group of normal elements and returns its scale: the writer's, or the larger one
  /// that `another` makes of it.
  template <int kGroup, class Another>
  float write_group(std::uint8_t* codes, float mean, Another another) {
    float values[kGroup], amax = 0;
    for (float& value : values) amax = std::max(amax, std::abs(value = normal_(engine_) + mean));
    float scale = e4m3::power_of_two(e4m3::scale_exponent(amax));
    if (engine_() % 2 == 0) scale = another(amax, scale);
    for (int i = 0; i < kGroup; ++i) codes[i] = e4m3::encode(values[i] / scale);
    return scale;
  }

  void write_rope(std::uint8_t* rope, float mean) {
    for (int i = 0; i < fp8_656::kRopeDim; ++i) {
      const std::uint16_t value = float_to_bf16(normal_(engine_) + mean);
      std::memcpy(rope + i * sizeof(value), &value, sizeof(value));
    }
  }

  std::mt19937_64& engine_;
  std::normal_distribution<float>& normal_;
};

}  // namespace flashlatent::runtime
