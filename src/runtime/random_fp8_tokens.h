// Random tokens of the formats that have bytes of their own, and poison for unused ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/element.h"
#include "core/formats/formats.h"

namespace flashlatent::runtime {

class RandomTokens {
 public:
  RandomTokens(std::mt19937_64& engine, std::normal_distribution<float>& normal)
      : engine_(engine), normal_(normal) {}

  /// Writes a token of normal elements, but no byte of padding. Half of its groups have the writer's scale;
  /// the others have another one that keeps all elements in range: with fp32 any up to three times as large,
  /// else twice or four times as large. Without `rope` the part that is bf16 is left alone.
  void write(const LatentFormat& format, std::uint8_t* data, std::uint8_t* scales, bool rope, float mean) {
    for (int group = 0; group < format.groups(); ++group) {
      float values[kMostGroup], amax = 0;
      for (int i = 0; i < format.group; ++i)
        amax = std::max(amax, std::abs(values[i] = normal_(engine_) + mean));
      const float scale = write_scale(format, scales, group, amax);
      for (int i = 0; i < format.group; ++i)
        write_element(format, data, group * format.group + i, values[i] / scale);
    }
    for (int i = 0; rope && i < format.rope_dim; ++i) {
      const std::uint16_t value = float_to_bf16(normal_(engine_) + mean);
      std::memcpy(data + format.rope_offset + i * sizeof(value), &value, sizeof(value));
    }
  }

  /// Makes a token, whose bytes are all 0xFF before, NaN in one of the ways that its format has: elements,
  /// scales or both. fp32 scales may be infinite.
  void poison(const LatentFormat& format, std::uint8_t* data, std::uint8_t* scales) {
    // 0xFF is NaN in e4m3, ue8m0, fp32 and bf16, but in e2m1 it is -6 twice: there only scales are NaN.
    switch (engine_() % 3) {
      case 0:  // numbers with NaN scales
        std::memset(data, 0x38, code_bytes(format));
        if (format.scales == ScaleKind::kFp32 && engine_() % 2 == 0) {
          constexpr float kInfinity = std::numeric_limits<float>::infinity();
          for (int i = 0; i < format.groups(); ++i)
            std::memcpy(scales + i * sizeof(float), &kInfinity, sizeof(float));
        }
        break;
      case 1:  // NaN with finite scales of 1
        if (format.elements == Elements::kE4m3 && format.scales == ScaleKind::kUe8m0) {
          std::memset(scales, 127, format.scale_bytes);
        }
        break;
      default:
        break;
    }
  }

 private:
  static constexpr int kMostGroup = 128;

  static int code_bytes(const LatentFormat& format) {
    return format.elements == Elements::kE2m1 ? format.scaled_dim() / 2 : format.scaled_dim();
  }

  float write_scale(const LatentFormat& format, std::uint8_t* scales, int group, float amax) {
    const bool another = engine_() % 2 == 0;
    if (format.scales == ScaleKind::kE4m3) {
      const std::uint8_t byte =
          e2m1::scale_byte(amax * (another ? e4m3::power_of_two(static_cast<int>(engine_() % 3)) : 1));
      scales[group] = byte;
      return e4m3::decode(byte);
    }
    const int exponent = e4m3::scale_exponent(amax, least_exponent(format, ScaleFloor::kAuto));
    if (format.scales == ScaleKind::kUe8m0) {
      const int larger = another ? static_cast<int>(engine_() % 3) : 0;
      scales[group] = ue8m0::scale_byte(exponent + larger);
      return e4m3::power_of_two(exponent + larger);
    }
    const float scale = another ? amax / e4m3::kLargest * (1 + static_cast<float>(engine_() % 100) / 50)
                                : e4m3::power_of_two(exponent);
    std::memcpy(scales + group * sizeof(scale), &scale, sizeof(scale));
    return scale;
  }

  static void write_element(const LatentFormat& format, std::uint8_t* data, int i, float x) {
    if (format.elements == Elements::kE4m3) {
      data[i] = e4m3::encode(x);
      return;
    }
    std::uint8_t& pair = data[i / 2];
    const int shift = i % 2 * 4;
    pair = static_cast<std::uint8_t>((pair & ~(0xF << shift)) | e2m1::encode(x) << shift);
  }

  std::mt19937_64& engine_;
  std::normal_distribution<float>& normal_;
};

}  // namespace flashlatent::runtime
