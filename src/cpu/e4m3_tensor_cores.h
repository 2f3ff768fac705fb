// e4m3 products as Hopper's tensor cores compute them, on the CPU. `bench numerics` judges mla_64_e4m3's
// accuracy by it.
#pragma once

#include <vector>

#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// A sum of e4m3 products. 32 products and the sum so far are added at once; each is cut off 13 bits behind
/// the point of the largest of them (docs/log/mla_64_e4m3.md).
class E4m3Sum {
 public:
  static constexpr int kAtOnce = 32, kBits = 13;

  /// Adds a[i] * b[i] for i < kAtOnce; both are numbers of e4m3 times a power of two.
  void add(const float* a, const float* b);
  float value() const { return sum_; }

 private:
  float sum_ = 0;
};

struct E4m3Row {
  std::vector<float> out;  ///< v_dim, not rounded to the output's dtype.
  float lse = 0;
};

/// One row by e4m3 products on tensor cores. A score is made of `chains` sums of about equally many products,
/// added in fp32. A block is 64 tokens; its P is relative to the block's own maximum and rounded to e4m3. The
/// block's product with V is one sum, and blocks are added in fp32. Finite values only.
E4m3Row e4m3_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token, int head,
                 int chains);

}  // namespace flashlatent::cpu
