#include "cpu/e4m3_tensor_cores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/formats/e4m3_latent.h"
#include "cpu/reference.h"

namespace flashlatent::cpu {

namespace {

constexpr int kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The value of every e4m3 code.
std::array<float, 256> all_numbers() {
  std::array<float, 256> numbers{};
  for (int code = 0; code < 256; ++code) numbers[code] = e4m3::decode(static_cast<std::uint8_t>(code));
  return numbers;
}

/// The state of one row while blocks of up to 64 tokens are added.
class Row {
 public:
  Row(std::vector<float> query, int v_dim, int chains, float scale)
      : query_(std::move(query)), chains_(chains), scale_(scale), out_(v_dim) {}

  void add_block(const std::uint8_t* const* tokens, int count) {
    float scores[kBlock], max = -kInfinity;
    for (int t = 0; t < count; ++t) {
      scores[t] = score(tokens[t]) * scale_;
      max = std::max(max, scores[t]);
    }
    if (max == -kInfinity) return;
    if (base_ == -kInfinity) base_ = max;
    if (max - base_ > kSlack) {
      const float shrink = std::exp(base_ - max);
      for (float& x : out_) x *= shrink;
      sum_ *= shrink;
      base_ = max;
    }
    const float factor = std::exp(max - base_);
    float p[kBlock] = {}, sum = 0;
    for (int t = 0; t < count; ++t) {
      const float x = std::exp(scores[t] - max) * e4m3_latent::kProbabilityScale;
      sum += x;
      p[t] = numbers_[e4m3::encode(x)];
    }
    sum_ += sum * factor;
    for (std::size_t d = 0; d < out_.size(); ++d) {
      float v[kBlock] = {};
      for (int t = 0; t < count; ++t) v[t] = numbers_[tokens[t][d]];
      E4m3Sum product;
      for (int t = 0; t < kBlock; t += E4m3Sum::kAtOnce) product.add(p + t, v + t);
      out_[d] += product.value() * factor;
    }
  }

  /// `scale`: of the cache, for values.
  E4m3Row result(float scale) && {
    if (sum_ == 0) return {std::move(out_), -kInfinity};
    for (float& x : out_) x *= scale / sum_;
    return {std::move(out_), base_ + std::log(sum_ / e4m3_latent::kProbabilityScale)};
  }

 private:
  static constexpr float kSlack = 40;  // fp32 has room for exp(2 * kSlack)

  float score(const std::uint8_t* token) const {
    const int steps = static_cast<int>(query_.size()) / E4m3Sum::kAtOnce;
    float score = 0;
    for (int chain = 0; chain < chains_; ++chain) {
      E4m3Sum sum;
      for (int step = chain * steps / chains_; step < (chain + 1) * steps / chains_; ++step) {
        const int first = step * E4m3Sum::kAtOnce;
        float k[E4m3Sum::kAtOnce];
        for (int d = 0; d < E4m3Sum::kAtOnce; ++d) k[d] = numbers_[token[first + d]];
        sum.add(query_.data() + first, k);
      }
      score += sum.value();
    }
    return score;
  }

  const std::array<float, 256> numbers_ = all_numbers();
  const std::vector<float> query_;
  const int chains_;
  const float scale_;
  std::vector<float> out_;
  float base_ = -kInfinity, sum_ = 0;
};

float first_of(const ConstTensorView& scale, int index) {
  if (!scale.present()) return 1;
  return static_cast<const float*>(scale.data)[scale.shape[0] > 1 ? index : 0];
}

}  // namespace

void E4m3Sum::add(const float* a, const float* b) {
  float products[kAtOnce], largest = std::abs(sum_);
  for (int i = 0; i < kAtOnce; ++i) {
    products[i] = a[i] * b[i];  // exact: a product has 8 significant bits
    largest = std::max(largest, std::abs(products[i]));
  }
  if (largest == 0) return;
  // All are brought to one exponent as integers: 33 of up to 14 bits are added.
  const int exponent = std::clamp(std::ilogb(largest), -100, 100);
  const float to_integer = e4m3::power_of_two(kBits - exponent);
  int sum = static_cast<int>(sum_ * to_integer);
  for (float product : products) sum += static_cast<int>(product * to_integer);
  sum_ = static_cast<float>(sum) * e4m3::power_of_two(exponent - kBits);
}

E4m3Row e4m3_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token, int head,
                 int chains) {
  const float cache_scale = first_of(inputs.kv_scale, 0);
  const float query_scale = problem.query.e4m3 ? first_of(inputs.q_scale, head) : 1.0F;
  Row row(e4m3_query_row(problem, inputs, request, token, head), problem.cache.v_dim, chains,
          problem.options.softmax_scale * cache_scale * query_scale);
  const std::vector<const std::uint8_t*> tokens = e4m3_tokens_seen(problem, inputs, request, token);
  for (std::size_t first = 0; first < tokens.size(); first += kBlock) {
    row.add_block(tokens.data() + first,
                  static_cast<int>(std::min<std::size_t>(kBlock, tokens.size() - first)));
  }
  E4m3Row result = std::move(row).result(cache_scale);
  if (problem.options.attn_sink && result.lse != -kInfinity) {
    const float sink = static_cast<const float*>(inputs.attn_sink.data)[head];
    for (float& x : result.out) x /= 1 + std::exp(sink - result.lse);
  }
  return result;
}

}  // namespace flashlatent::cpu
