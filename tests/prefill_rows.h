// What tests of sparse prefill share: contiguous rows, and a run of them on each backend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/element.h"
#include "runtime/prefill_run.h"

namespace flashlatent {

using runtime::PrefillRun;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

inline SparsePrefillOptions options_of(float scale, int v_dim = 512) {
  return {.softmax_scale = scale, .v_dim = v_dim};
}

struct Shape {
  int s_q = 5, heads = 9, dim = 576, s_kv = 100, topk = 77;
  Dtype dtype = Dtype::kBF16;
  bool lengths = false, sink = false;
};

/// Contiguous rows; a third of the indices name none of them, NaN lies between rows of q and of kv, in rows
/// that are not named and behind topk_length; the second query token has nothing to attend to.
class Rows {
 public:
  explicit Rows(const Shape& shape) : shape_(shape) {
    std::mt19937 random(shape.s_q * 1000 + shape.topk);
    std::normal_distribution<float> normal;
    const int stride = shape.dim + 8;
    auto fill = [&](std::vector<std::uint16_t>& memory, int rows) {
      memory.assign(std::size_t{1} * rows * stride, 0xFFFF);
      for (int row = 0; row < rows; ++row) {
        for (int d = 0; d < shape.dim; ++d)
          memory[row * stride + d] = from_float(normal(random), shape.dtype);
      }
    };
    fill(q_, shape.s_q * shape.heads);
    fill(kv_, shape.s_kv);
    const std::int32_t out_of_range[] = {kLeast, -1, shape.s_kv, kMost};
    const int unused = shape.s_kv / 2;  // poison
    std::fill_n(kv_.begin() + unused * stride, shape.dim, 0xFFFF);
    for (int t = 0; t < shape.s_q; ++t) {
      for (int i = 0; i < shape.topk; ++i) {
        std::int32_t index = static_cast<std::int32_t>(random() % shape.s_kv);
        if (index == unused) ++index;
        indices_.push_back(i % 3 == 0 || t == 1 ? out_of_range[(i / 3 + i) % 4] : index);
      }
      const int lengths[] = {shape.topk, shape.topk, shape.topk / 2, 0, 1, 2};
      lengths_.push_back(lengths[t % 6]);
      for (int i = lengths_.back(); i < shape.topk && shape.lengths; ++i)
        indices_[t * shape.topk + i] = unused;
    }
    for (int h = 0; h < shape.heads; ++h) {
      const float special[] = {kInfinity, -kInfinity, 4.0F, -1.0F};
      sink_.push_back(special[h % 4]);
    }
    const auto& [s_q, heads, dim, s_kv, topk, dtype, with_lengths, with_sink] = shape_;
    inputs.q = {q_.data(), dtype, {s_q, heads, dim}};
    inputs.q.strides = {std::int64_t{heads} * stride, stride, 1};
    inputs.kv = {kv_.data(), dtype, {s_kv, 1, dim}};
    inputs.kv.strides = {stride, stride, 1};
    inputs.indices = {indices_.data(), Dtype::kI32, {s_q, 1, topk}};
    if (with_lengths) inputs.topk_length = {lengths_.data(), Dtype::kI32, {s_q}};
    if (with_sink) inputs.attn_sink = {sink_.data(), Dtype::kF32, {heads}};
    options = options_of(1 / std::sqrt(static_cast<float>(dim)));
  }
  Rows(const Rows&) = delete;  // the views point into it
  Rows& operator=(const Rows&) = delete;

  /// The largest score in float64, by loops of its own.
  double largest(int t, int h) const {
    double most = -kInfinity;
    const int count = shape_.lengths ? lengths_[t] : shape_.topk;
    const int stride = shape_.dim + 8;
    for (int i = 0; i < count; ++i) {
      const std::int32_t index = indices_[t * shape_.topk + i];
      if (index < 0 || index >= shape_.s_kv) continue;
      double score = 0;
      for (int d = 0; d < shape_.dim; ++d) {
        score += double{to_float(q_[(t * shape_.heads + h) * stride + d], shape_.dtype)} *
                 to_float(kv_[index * stride + d], shape_.dtype);
      }
      most = std::max(most, score * options.softmax_scale);
    }
    return most;
  }

  std::vector<std::int32_t>& lengths() { return lengths_; }

  SparsePrefillInputs inputs;
  SparsePrefillOptions options;

 private:
  Shape shape_;
  std::vector<std::uint16_t> q_, kv_;
  std::vector<std::int32_t> indices_, lengths_;
  std::vector<float> sink_;
};

/// Rows to compare of calls with many query tokens and heads. The stride is odd, so that over the query
/// tokens no head is left out.
inline constexpr runtime::RowSample kSomePrefillRows = {.first = 0, .stride = 7};

/// On every backend that is there.
class SparsePrefill : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    executor_.backend = GetParam();
    if (Status status = available(GetParam()); !status.ok()) GTEST_SKIP() << status.message();
  }
  bool on_gpu() const { return GetParam() == Backend::kCuda; }

  /// From outputs and workspace full of these bytes; or why not.
  Result<PrefillRun> run(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                         int poison = 0xFF) {
    Result<PrefillRun> run = PrefillRun::create(inputs, options, executor_);
    if (!run.ok()) return run;
    for (const Status& status : {run->poison(poison), run->run(), run->fetch()}) {
      if (!status.ok()) return status;
    }
    return run;
  }

  /// Does the executor's kernel, or without a name any, take the call?
  bool takes(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options) {
    const Status status = PrefillRun::create(inputs, options, executor_).status();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnsupported) << status.message();
    return status.ok();
  }

  void check(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
             runtime::RowSample sample = {}) {
    const Result<PrefillRun> results = run(inputs, options);
    ASSERT_TRUE(results.ok()) << results.status().message();
    const auto compared = runtime::compare_prefill(inputs, options, results->results(), sample, &oracle_);
    ASSERT_TRUE(compared.ok()) << compared.status().message();
    EXPECT_TRUE(compared->ok()) << executor_.kernel << " " << to_string(inputs.q) << " "
                                << to_string(inputs.kv) << ": " << runtime::to_string(*compared);
  }

  Executor executor_;
  runtime::OracleMemory oracle_;
};

inline float max_logit_of(const PrefillRun& run, int row) {
  return static_cast<const float*>(run.results().max_logits.data)[row];
}
inline float lse_of(const PrefillRun& run, int row) {
  return static_cast<const float*>(run.results().lse.data)[row];
}
inline std::uint16_t out_of(const PrefillRun& run, int element) {
  return static_cast<const std::uint16_t*>(run.results().out.data)[element];
}

}  // namespace flashlatent
