// Where the plain computation rounds, and the expected error of its sums. Kernels are judged by these numbers
// (docs/numerics.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/element.h"
#include "core/formats/formats.h"
#include "flashlatent/problem.h"

namespace flashlatent::cpu {

/// x rounded to the working precision.
inline float rounded(double x, Dtype dtype) {
  return to_float(from_float(static_cast<float>(x), dtype), dtype);
}

/// The largest relative error of rounding: 8 or 11 significant bits.
inline double unit_roundoff(Dtype dtype) {
  return dtype == Dtype::kBF16 ? 0x1p-8 : 0x1p-11;
}

/// x rounded to e4m3.
inline float rounded_e4m3(float x) {
  return e4m3::decode(e4m3::encode(x));
}

/// A query row in the working precision: 16-bit elements as they are, e4m3 elements with their scale. Rounded
/// where the call has e4m3 products.
inline std::vector<float> working_query(const DecodeProblem& problem, const std::vector<double>& q) {
  std::vector<float> row(q.begin(), q.end());
  if (!problem.fp8_products() || problem.query.e4m3) return row;
  float amax = 0;
  for (float x : row) amax = std::isfinite(x) ? std::max(amax, std::abs(x)) : amax;
  const float scale = e4m3::power_of_two(e4m3_latent::query_exponent(amax));
  for (float& x : row) x = rounded_e4m3(x / scale) * scale;
  return row;
}

/// A score, or a row's lse, is one number, so its error is not an average. Errors of fp32 sums are about
/// normal: one plain sum in 150,000 exceeds 1.5 times this many deviations.
inline constexpr double kDeviations = 3;

/// The working precision of a call, for P and cached elements.
class Working {
 public:
  /// `cache_scale`: of an e4m3 latent cache.
  Working(const DecodeProblem& problem, float cache_scale)
      : dtype_(problem.cache.dtype), fp8_(problem.fp8_products()), scale_(fp8_ ? cache_scale : 1.0F) {}

  /// With e4m3 products the scale is applied later.
  float cached(double x) const { return fp8_ ? static_cast<float>(x / scale_) : rounded(x, dtype_); }
  float probability(float p) const {
    if (!fp8_) return rounded(p, dtype_);
    return rounded_e4m3(p * e4m3_latent::kProbabilityScale) / e4m3_latent::kProbabilityScale;
  }
  float scale() const { return scale_; }
  /// Are cached elements products that this precision may round?
  bool rounds_cached(const LatentFormat& format) const {
    return !fp8_ && (format.scales == ScaleKind::kFp32 || format.scales == ScaleKind::kOfCache);
  }

 private:
  Dtype dtype_;
  bool fp8_;
  float scale_;
};

/// The expected error of a sum in fp32: the RMS of what each addition rounds off, 0.4 * 2^-24 of the sum so
/// far. It is the larger of two errors, that of the given order and that of a random order, because kernels
/// add in other orders.
class Fp32Sums {
 public:
  /// One more number, and the sum that includes it.
  void add(float x, float sum) {
    ++count_;
    squares_ += double{x} * x;
    sum_ = sum;
    sums2_ += double{sum} * sum;
  }
  double rounding() const {
    // On the way to a sum of n numbers in random order, the square of the sum of the first k is expected to
    // be (k sum / n)^2 + (squares - sum^2 / n) k (n - k) / (n (n - 1)).
    const double random = sum_ * sum_ * (count_ + 1) * (2 * count_ + 1) / (6 * count_) +
                          (squares_ - sum_ * sum_ / count_) * (count_ + 1) / 6;
    return 0.4 * 0x1p-24 * std::sqrt(std::max(sums2_, random));
  }

 private:
  double count_ = 0, squares_ = 0, sum_ = 0, sums2_ = 0;
};

/// The expected error of a sum of e4m3 products on Hopper's tensor cores: 32 products and the sum so far are
/// added at once, each cut off 13 bits behind the point of the largest of them.
class E4m3Sums {
 public:
  /// `product` number d, and the sum that includes it.
  void add(int d, float product, float sum) {
    largest_ = std::max(largest_, std::max(std::abs(product), std::abs(sum)));
    if (d % kAtOnce != kAtOnce - 1) return;
    largest2_ += double{largest_} * largest_;
    largest_ = std::abs(sum);
  }
  /// Twice the RMS: what is cut off is anything up to 2^-13 of the largest.
  double rounding() const { return 2 * 0x1p-13 * std::sqrt((kAtOnce + 1) / 3.0 * largest2_); }

 private:
  static constexpr int kAtOnce = 32;
  float largest_ = 0;
  double largest2_ = 0;
};

}  // namespace flashlatent::cpu
