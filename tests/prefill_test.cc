// Prefill into pages is decode with many query tokens: prompts are appended, attended causally (varied
// numbers of tokens a request, with and without a cached prefix), then decoded; on every backend, against a
// dense computation in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <tuple>

#include "contracts.h"
#include "core/element.h"
#include "device_tensor.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {
namespace {

constexpr int kBatch = 2, kHeads = 6, kKvHeads = 2, kDim = 32, kPageSize = 8, kColumns = 20;
constexpr int kTokens = kPageSize * kColumns;  // the most of a request

/// What a model would compute: queries, keys and values of every token of every request.
struct Model {
  Model() {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kBatch; ++i) {
      for (auto [rows, size] : {std::pair{&q[i], kHeads}, {&keys[i], kKvHeads}, {&values[i], kKvHeads}}) {
        rows->resize(kTokens * size * kDim);
        for (std::uint16_t& x : *rows) x = float_to_bf16(normal(engine));
      }
    }
  }

  /// Attention of one token's head over the tokens up to it: out, and lse behind it.
  std::vector<double> attend(int request, int token, int head, float scale) const {
    const int kv_head = head / (kHeads / kKvHeads);
    std::vector<double> result(kDim + 1, 0), scores(token + 1, 0);
    auto row = [](const std::vector<std::uint16_t>& rows, int t, int heads, int h) {
      return rows.data() + (t * heads + h) * kDim;
    };
    for (int t = 0; t <= token; ++t) {
      for (int d = 0; d < kDim; ++d) {
        scores[t] += double{bf16_to_float(row(q[request], token, kHeads, head)[d])} *
                     bf16_to_float(row(keys[request], t, kKvHeads, kv_head)[d]);
      }
      scores[t] *= scale;
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (int t = 0; t <= token; ++t) {
      const double p = std::exp(scores[t] - max);
      sum += p;
      for (int d = 0; d < kDim; ++d) {
        result[d] += p * bf16_to_float(row(values[request], t, kKvHeads, kv_head)[d]);
      }
    }
    for (int d = 0; d < kDim; ++d) result[d] /= sum;
    result[kDim] = max + std::log(sum);
    return result;
  }

  std::vector<std::uint16_t> q[kBatch], keys[kBatch], values[kBatch];
};

class Prefill : public ::testing::TestWithParam<std::tuple<Backend, KvLayout>> {
 protected:
  void SetUp() override {
    executor_.backend = std::get<0>(GetParam());
    if (Status status = available(executor_.backend); !status.ok()) GTEST_SKIP() << status.message();
    if (std::get<1>(GetParam()) == KvLayout::kPacked) {
      keys_.emplace(executor_, Dtype::kBF16,
                    std::initializer_list<std::int64_t>{kPages, kKvHeads, kDim / 8, kPageSize, 8});
      values_.emplace(executor_, Dtype::kBF16,
                      std::initializer_list<std::int64_t>{kPages, kKvHeads, kDim, kPageSize});
    } else {
      for (auto* cache : {&keys_, &values_}) {
        cache->emplace(executor_, Dtype::kBF16,
                       std::initializer_list<std::int64_t>{kPages, kPageSize, kKvHeads, kDim});
      }
    }
    for (auto* cache : {&keys_, &values_}) {
      (*cache)->set(std::vector<std::uint16_t>(kPages * kPageSize * kKvHeads * kDim, 0xFFFF));
      (*cache)->upload();
    }
    for (int i = 0; i < kPages; ++i) table_[i] = (i * 7 + 3) % kPages;  // pages in no order
  }

  template <class T>
  TensorView on_device(std::optional<Tensor>& tensor, Dtype dtype, std::initializer_list<std::int64_t> shape,
                       const std::vector<T>& values) {
    tensor.emplace(executor_, dtype, shape);
    tensor->set(values);
    return tensor->upload();
  }
  /// What lies on the device now, in the host's memory.
  static ConstTensorView on_host(Tensor& tensor) {
    tensor.download();
    ConstTensorView view = tensor.view();
    view.data = tensor.bytes().data();
    view.device = {};
    return view;
  }

  /// Appends each request's next tokens and attends from them to all before.
  void step(const std::vector<int>& counts) {
    std::vector<std::uint16_t> q, keys, values;
    std::vector<std::int32_t> slots, begins = {0};
    auto append = [](std::vector<std::uint16_t>& to, const std::vector<std::uint16_t>& from, int token,
                     int heads) {
      const auto begin = from.begin() + token * heads * kDim;
      to.insert(to.end(), begin, begin + heads * kDim);
    };
    for (int i = 0; i < kBatch; ++i) {
      for (int t = lengths_[i]; t < lengths_[i] + counts[i]; ++t) {
        append(q, model_.q[i], t, kHeads);
        append(keys, model_.keys[i], t, kKvHeads);
        append(values, model_.values[i], t, kKvHeads);
        slots.push_back(table_[i * kColumns + t / kPageSize] * kPageSize + t % kPageSize);
      }
      lengths_[i] += counts[i];
      begins.push_back(static_cast<std::int32_t>(slots.size()));
    }
    const auto n = static_cast<std::int64_t>(slots.size());
    std::optional<Tensor> new_keys, new_values, new_slots;
    Status status =
        append_kv(on_device(new_keys, Dtype::kBF16, {n, kKvHeads, kDim}, keys),
                  on_device(new_values, Dtype::kBF16, {n, kKvHeads, kDim}, values),
                  on_device(new_slots, Dtype::kI32, {n}, slots), {keys_->view(), values_->view()}, executor_);
    ASSERT_TRUE(status.ok()) << status.message();

    DecodeInputs inputs;
    inputs.q = {q.data(), Dtype::kBF16, {n, kHeads, kDim}};
    inputs.key_cache = on_host(*keys_);
    inputs.value_cache = on_host(*values_);
    inputs.block_table = {table_, Dtype::kI32, {kBatch, kColumns}};
    inputs.cache_seqlens = {lengths_, Dtype::kI32, {kBatch}};
    inputs.cu_seqlens_q = {begins.data(), Dtype::kI32, {kBatch + 1}};
    Result<DecodeProblem> problem =
        infer_problem(inputs, kDim, {.softmax_scale = 1 / std::sqrt(float{kDim}), .causal = true});
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    problem->query.tokens = *std::max_element(counts.begin(), counts.end());
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(*problem, inputs, executor_);
    ASSERT_TRUE(run.ok()) << run.status().message();
    ASSERT_TRUE(run->run().ok() && run->fetch().ok());
    const auto* out = static_cast<const std::uint16_t*>(run->out().data);
    const auto* lse = static_cast<const float*>(run->lse().data);
    for (int i = 0; i < kBatch; ++i) {
      for (int t = 0; t < counts[i]; ++t) {
        for (int head = 0; head < kHeads; ++head) {
          const std::vector<double> expected =
              model_.attend(i, lengths_[i] - counts[i] + t, head, problem->options.softmax_scale);
          const std::uint16_t* row = out + ((begins[i] + t) * kHeads + head) * kDim;
          // out is rounded to bf16: half of the last of its 8 bits. On a GPU so are weights, to 9 bits: by no
          // more than 1/512 of the largest value, 4.
          const double weights = executor_.backend == Backend::kCpu ? 1e-5 : 4.0 / 512;
          for (int d = 0; d < kDim; ++d) {
            ASSERT_NEAR(bf16_to_float(row[d]), expected[d], std::abs(expected[d]) / 256 + weights)
                << "request " << i << " token " << t << " head " << head << " element " << d;
          }
          ASSERT_NEAR(lse[(i * kHeads + head) * problem->query.tokens + t], expected[kDim], 1e-5);
        }
      }
    }
  }

 private:
  static constexpr int kPages = kBatch * kColumns;
  const Model model_;
  Executor executor_;
  std::optional<Tensor> keys_, values_;
  std::int32_t table_[kPages], lengths_[kBatch] = {0, 0};
};

INSTANTIATE_TEST_SUITE_P(Layouts, Prefill,
                         ::testing::Combine(kBackends,
                                            ::testing::Values(KvLayout::kSeparate, KvLayout::kPacked)),
                         [](const auto& info) {
                           return std::string(to_string(std::get<1>(info.param))) + "_" +
                                  to_string(std::get<0>(info.param));
                         });

TEST_P(Prefill, PromptsThenDecode) {
  step({70, 41});
  for (int i = 0; i < 3; ++i) step({1, 1});
}

TEST_P(Prefill, InChunksBehindACachedPrefix) {
  step({0, 40});
  step({90, 80});  // request 1 has 40 tokens already
  step({1, 17});   // one decodes while the other's prompt goes on
  step({1, 1});
}

}  // namespace
}  // namespace flashlatent
