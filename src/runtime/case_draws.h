// Numbers and memory that the makers of a random case draw from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/element.h"
#include "flashlatent/tensor.h"
#include "runtime/random_fp8_tokens.h"

namespace flashlatent::runtime {

class CaseDraws {
 public:
  CaseDraws(Dtype dtype, std::uint64_t seed) : dtype_(dtype), engine_(seed) {}

  std::mt19937_64& engine() { return engine_; }
  std::uint64_t bits() { return engine_(); }
  /// From 0 to 1.
  double uniform() { return uniform_(engine_); }
  /// Normal, with a deviation of 1.
  float real() { return normal_(engine_); }
  /// The same as an element of the case's dtype.
  std::uint16_t normal(float mean = 0) { return from_float(real() + mean, dtype_); }

  /// NaN or infinite.
  std::uint16_t poison() {
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
    return from_float(values[bits() % 3], dtype_);
  }

  /// An index that is -1, or `count` or more.
  std::int32_t outside(std::int64_t count) {
    const std::int32_t values[] = {-1, static_cast<std::int32_t>(count), std::numeric_limits<int>::max(),
                                   std::numeric_limits<int>::min()};
    return values[bits() % 4];
  }

  template <class T>
  T* allocate(std::int64_t count) {
    storage_.emplace_back(std::max<std::int64_t>(count, 1) * sizeof(T));
    return reinterpret_cast<T*>(storage_.back().data());
  }
  /// What has been allocated.
  std::vector<std::vector<std::uint8_t>> take_storage() { return std::move(storage_); }

  /// fp32 scales, absent if `count` is 0.
  ConstTensorView make_scales(int count) {
    if (count == 0) return {};
    auto* scales = allocate<float>(count);
    std::generate_n(scales, count, [this] { return static_cast<float>(0.01 + 0.02 * uniform()); });
    return {scales, Dtype::kF32, {count}};
  }

  /// Writes the codes of `count` normal elements, in units of the scale if there is one.
  void write_codes(std::uint8_t* codes, int count, const ConstTensorView& scale, int head, float mean) {
    const auto* scales = static_cast<const float*>(scale.data);
    const float factor = scale.present() ? scales[scale.shape[0] > 1 ? head : 0] : 1;
    std::generate_n(codes, count, [&] { return e4m3::encode((real() + mean) / factor); });
  }

  /// Tokens of formats with bytes of their own.
  RandomTokens& records() { return records_; }

 private:
  const Dtype dtype_;
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
  std::uniform_real_distribution<double> uniform_;
  RandomTokens records_{engine_, normal_};
  std::vector<std::vector<std::uint8_t>> storage_;
};

}  // namespace flashlatent::runtime
