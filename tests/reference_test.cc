// The oracle of separate and packed keys and values, against numbers made by hand: token t of four has the
// score t and the value e_t, so that out is the softmax itself.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/element.h"
#include "core/formats/fp8_656.h"
#include "cpu/reference.h"

namespace flashlatent {
namespace {

constexpr int kDim = 16, kTokens = 4, kPageSize = 3;

/// Two pages of three tokens in one of the layouts; the request's first page is page 1.
class HandMade {
 public:
  HandMade(KvLayout layout, KvFormat format, int query_tokens = 1, int heads = 1) {
    problem_.query = {1, query_tokens, heads, false};
    problem_.options.softmax_scale = 1;
    problem_.cache = {format, Dtype::kBF16, 1, kDim, kDim, kPageSize, 2, layout};
    const bool fp8 = format == KvFormat::kE4m3;
    const int x = fp8 ? 16 : 8;
    const bool packed = layout == KvLayout::kPacked;
    q_.assign(query_tokens * heads * kDim, 0);
    for (int row = 0; row < query_tokens * heads; ++row) q_[row * kDim] = float_to_bf16(1);
    inputs_.q = {q_.data(), Dtype::kBF16, {1, query_tokens, heads, kDim}};
    const Dtype dtype = fp8 ? Dtype::kU8 : Dtype::kBF16;
    keys_.assign(2 * kPageSize * kDim * 2, 0xFF);
    values_.assign(2 * kPageSize * kDim * 2, 0xFF);
    if (packed) {
      inputs_.key_cache = {keys_.data(), dtype, {2, 1, kDim / x, kPageSize, x}};
      inputs_.value_cache = {values_.data(), dtype, {2, 1, kDim, kPageSize}};
    } else {
      inputs_.key_cache = {keys_.data(), dtype, {2, kPageSize, 1, kDim}};
      inputs_.value_cache = {values_.data(), dtype, {2, kPageSize, 1, kDim}};
    }
    for (int t = 0; t < kTokens; ++t) {
      const int page = 1 - t / kPageSize, offset = t % kPageSize;
      for (int d = 0; d < kDim; ++d) {
        const int row = (page * kPageSize + offset) * kDim + d;
        const int key = packed ? ((page * (kDim / x) + d / x) * kPageSize + offset) * x + d % x : row;
        const int value = packed ? (page * kDim + d) * kPageSize + offset : row;
        put(keys_, key, d == 0 ? static_cast<float>(t) : 0, fp8);
        put(values_, value, d == t ? 1 : 0, fp8);
      }
    }
    inputs_.block_table = {pages_, Dtype::kI32, {1, 2}};
    inputs_.cache_seqlens = {&length_, Dtype::kI32, {1}};
  }

  HandMade(const HandMade&) = delete;  // the views point into it
  HandMade& operator=(const HandMade&) = delete;

  DecodeProblem::Options& options() { return problem_.options; }
  DecodeInputs& inputs() { return inputs_; }

  /// out and lse are softmax(scores) over the tokens from `first` on.
  void expect(const std::vector<double>& scores, int first, int token = 0, int head = 0, double factor = 1) {
    ASSERT_TRUE(validate(problem_).ok()) << validate(problem_).message();
    const cpu::ReferenceRow row = cpu::reference_row(problem_, inputs_, 0, token, head);
    double sum = 0;
    for (double score : scores) sum += std::exp(score);
    EXPECT_NEAR(row.lse, std::log(sum), 1e-12);
    for (int d = 0; d < kDim; ++d) {
      const bool seen = d >= first && d - first < static_cast<int>(scores.size());
      EXPECT_NEAR(row.out[d], seen ? factor * std::exp(scores[d - first]) / sum : 0, 1e-12) << d;
    }
  }

 private:
  static void put(std::vector<std::uint8_t>& memory, int index, float x, bool fp8) {
    if (fp8) {
      memory[index] = fp8_656::encode(x);
    } else {
      reinterpret_cast<std::uint16_t*>(memory.data())[index] = float_to_bf16(x);
    }
  }

  DecodeProblem problem_;
  DecodeInputs inputs_;
  std::vector<std::uint16_t> q_;
  std::vector<std::uint8_t> keys_, values_;
  std::int32_t pages_[2] = {1, 0}, length_ = kTokens;
};

class Reference : public ::testing::TestWithParam<std::pair<KvLayout, KvFormat>> {
 protected:
  static HandMade make(int query_tokens = 1, int heads = 1) {
    return {GetParam().first, GetParam().second, query_tokens, heads};
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, Reference,
                         ::testing::Values(std::pair{KvLayout::kSeparate, KvFormat::kPlain},
                                           std::pair{KvLayout::kSeparate, KvFormat::kE4m3},
                                           std::pair{KvLayout::kPacked, KvFormat::kPlain},
                                           std::pair{KvLayout::kPacked, KvFormat::kE4m3}));

TEST_P(Reference, ScaleAlone) {
  HandMade made = make();
  made.expect({0, 1, 2, 3}, 0);
  made.options().softmax_scale = -0.5F;
  made.expect({0, -0.5, -1, -1.5}, 0);
}

TEST_P(Reference, WindowSeesTheLastTokens) {
  HandMade made = make();
  made.options().window = 2;
  made.expect({2, 3}, 2);
  made.options().window = 1;
  made.expect({3}, 3);
  made.options().window = 5;
  made.expect({0, 1, 2, 3}, 0);
}

TEST_P(Reference, WindowEndsAtEachQueryToken) {
  HandMade made = make(2);
  made.options().causal = true;
  made.options().window = 2;
  made.expect({1, 2}, 1, 0);
  made.expect({2, 3}, 2, 1);
}

TEST_P(Reference, AlibiCountsFromTheRequestsLastToken) {
  HandMade made = make(2, 2);
  const float slopes[] = {0.5F, 2};
  made.options().causal = made.options().separate.alibi = true;
  made.inputs().alibi_slopes = {slopes, Dtype::kF32, {2}};
  // t + slope (t - 3); the first query token does not see the last token, and counts from it all the same.
  made.expect({-1.5, 0, 1.5}, 0, 0, 0);
  made.expect({-1.5, 0, 1.5, 3}, 0, 1, 0);
  made.expect({-6, -3, 0, 3}, 0, 1, 1);
}

TEST_P(Reference, CapComesBeforeAlibi) {
  HandMade made = make();
  const float slope = 1;
  made.options().separate.soft_cap = 2;
  const double one = 2 * std::tanh(0.5), two = 2 * std::tanh(1.0), three = 2 * std::tanh(1.5);
  made.expect({0, one, two, three}, 0);
  made.options().separate.alibi = true;
  made.inputs().alibi_slopes = {&slope, Dtype::kF32, {1}};
  made.expect({-3, one - 2, two - 1, three}, 0);
}

TEST_P(Reference, ScalesMultiply) {
  HandMade made = make();
  const float key_scale = 0.25F, value_scale = 3;
  if (GetParam().second != KvFormat::kE4m3) GTEST_SKIP() << "only e4m3 caches have scales";
  made.inputs().key_scale = {&key_scale, Dtype::kF32, {1}};
  made.inputs().value_scale = {&value_scale, Dtype::kF32, {1}};
  made.expect({0, 0.25, 0.5, 0.75}, 0, 0, 0, 3);
}

}  // namespace
}  // namespace flashlatent
