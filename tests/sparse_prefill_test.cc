// Contracts of sparse prefill: contiguous rows, paged caches, two caches in one softmax.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/element.h"
#include "cpu/reference.h"
#include "dispatch/sparse_prefill.h"
#include "runtime/compare.h"
#include "runtime/random_case.h"

namespace flashlatent {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

/// Results of a call into poisoned memory.
struct Results {
  std::vector<std::uint16_t> out;
  std::vector<float> max_logits, lse;
  TensorView out_view, max_view, lse_view;

  SparsePrefillOutputs outputs() const { return {out_view, max_view, lse_view}; }
  friend bool operator==(const Results& a, const Results& b) {
    auto same = [](const auto& x, const auto& y) {
      return std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0;
    };
    return same(a.out, b.out) && same(a.max_logits, b.max_logits) && same(a.lse, b.lse);
  }
};

Results poisoned(const SparsePrefillInputs& inputs, int v_dim) {
  const std::int64_t s_q = inputs.q.shape[0], h_q = inputs.q.shape[1];
  Results r;
  r.out.assign(s_q * h_q * v_dim, 0xFFFF);
  r.max_logits.assign(s_q * h_q, std::nanf(""));
  r.lse.assign(s_q * h_q, std::nanf(""));
  r.out_view = {r.out.data(), inputs.q.dtype, {s_q, h_q, v_dim}};
  r.max_view = {r.max_logits.data(), Dtype::kF32, {s_q, h_q}};
  r.lse_view = {r.lse.data(), Dtype::kF32, {s_q, h_q}};
  return r;
}

SparsePrefillOptions options_of(float scale, int v_dim = 512) {
  return {.softmax_scale = scale, .v_dim = v_dim};
}

/// Workspace of the size that the call asks for, poisoned.
Status run(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options, Results& results,
           const Executor& executor = {}) {
  const Result<std::size_t> bytes = sparse_prefill_workspace_bytes(inputs, options, executor);
  if (!bytes.ok()) return bytes.status();
  std::vector<std::uint8_t> memory(*bytes + 256, 0xFF);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const Memory workspace{memory.data() + (256 - address % 256) % 256, *bytes};
  return sparse_prefill(inputs, results.outputs(), options, workspace, executor);
}

/// out and lse as decode's are judged; max_logits against the oracle's. Kernels sum scores in fp32, and round
/// what an fp8_656 cache holds, whose scales may be any numbers, to bf16.
void expect_right(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                  const Results& results) {
  const Result<SparsePrefillCall> call = as_decode(inputs, options, Device{});
  ASSERT_TRUE(call.ok()) << call.status().message();
  const runtime::Comparison compared =
      runtime::compare(call->problem, call->inputs, with_query_token(results.out_view),
                       with_last_query_token(results.lse_view));
  EXPECT_TRUE(compared.ok()) << to_string(call->problem) << ": " << runtime::to_string(compared);
  const double tolerance = call->problem.cache.format == KvFormat::kFp8_656 ? 2e-3 : 2e-5;
  const int heads = call->problem.query.heads;
  for (int row = 0; row < call->problem.query.batch * heads; ++row) {
    const double expected =
        cpu::reference_row(call->problem, call->inputs, row / heads, 0, row % heads).max_logit;
    const float got = results.max_logits[row];
    const bool right = expected == -kInfinity
                           ? got == -kInfinity
                           : std::abs(got - expected) <= tolerance * (1 + std::abs(expected));
    ASSERT_TRUE(right) << "max_logits[" << row / heads << "][" << row % heads << "] is " << got << ", not "
                       << expected;
  }
}

void check(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options) {
  Results results = poisoned(inputs, options.v_dim);
  const Status status = run(inputs, options, results);
  ASSERT_TRUE(status.ok()) << status.message();
  expect_right(inputs, options, results);
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

TEST(SparsePrefill, ContiguousRows) {
  for (int heads : {1, 9, 64, 128}) {
    for (int topk : {65, 77, 128}) {
      for (int dim : {512, 576}) {
        Shape shape{.heads = heads, .dim = dim, .topk = topk};
        shape.lengths = topk == 77;
        shape.sink = topk != 65;
        const Rows rows(shape);
        check(rows.inputs, rows.options);
      }
    }
  }
  const Rows half({.heads = 12, .dtype = Dtype::kF16, .lengths = true, .sink = true});
  check(half.inputs, half.options);
}

TEST(SparsePrefill, FewQueryTokensAreSplit) {
  // More threads than query tokens: the largest score is that of all parts.
  const Rows rows({.s_q = 1, .heads = 3, .s_kv = 3000, .topk = 2500, .sink = true});
  Executor executor;
  executor.threads = 8;
  Results results = poisoned(rows.inputs, 512);
  ASSERT_TRUE(run(rows.inputs, rows.options, results, executor).ok());
  expect_right(rows.inputs, rows.options, results);
  for (int h = 0; h < 3; ++h) EXPECT_NEAR(results.max_logits[h], rows.largest(0, h), 1e-4);
}

TEST(SparsePrefill, LargestScoresAndEmptyRows) {
  for (const char* kernel : {"", "reference"}) {
    const Rows rows({.s_q = 6, .lengths = true, .sink = true});
    Executor executor;
    executor.kernel = kernel;
    Results results = poisoned(rows.inputs, 512);
    ASSERT_TRUE(run(rows.inputs, rows.options, results, executor).ok());
    for (int t = 0; t < 6; ++t) {
      for (int h = 0; h < 9; ++h) {
        const int row = t * 9 + h;
        const double largest = rows.largest(t, h);
        const bool empty = largest == -kInfinity;
        EXPECT_EQ(empty, t == 1 || t == 3 || t == 4) << t;  // of the fifth one the only index names nothing
        if (!empty) {
          EXPECT_NEAR(results.max_logits[row], largest, 1e-4);
          EXPECT_GE(results.lse[row], results.max_logits[row]);
          continue;
        }
        EXPECT_EQ(results.max_logits[row], -kInfinity);
        EXPECT_EQ(results.lse[row], -kInfinity);
        for (int d = 0; d < 512; ++d) ASSERT_EQ(results.out[row * 512 + d], 0);
      }
    }
  }
}

TEST(SparsePrefill, SameBitsEachTime) {
  const Rows rows({.s_q = 7, .heads = 64, .s_kv = 500, .topk = 300, .lengths = true});
  Results first = poisoned(rows.inputs, 512), again = poisoned(rows.inputs, 512);
  ASSERT_TRUE(run(rows.inputs, rows.options, first).ok() && run(rows.inputs, rows.options, again).ok());
  EXPECT_TRUE(first == again);
}

TEST(SparsePrefill, LengthsOutOfRangeAreClamped) {
  Rows rows({.lengths = true});
  rows.lengths() = {-5, 1000, 77, kLeast, kMost};
  SparsePrefillInputs all = rows.inputs;
  const std::int32_t clamped[] = {0, 77, 77, 0, 77};
  all.topk_length.data = clamped;
  Results a = poisoned(all, 512), b = poisoned(all, 512);
  ASSERT_TRUE(run(rows.inputs, rows.options, a).ok() && run(all, rows.options, b).ok());
  EXPECT_TRUE(a == b);
}

TEST(SparsePrefill, NoQueryTokensAndNoIndices) {
  const Rows none({.s_q = 0});
  check(none.inputs, none.options);
  const Rows nothing({.s_q = 3, .topk = 0});
  check(nothing.inputs, nothing.options);
}

TEST(SparsePrefill, NanInLiveRowsIsSeen) {
  const Rows rows({.s_q = 1, .heads = 2, .s_kv = 2, .topk = 1});
  const std::int32_t poison = 1;  // s_kv / 2
  SparsePrefillInputs inputs = rows.inputs;
  inputs.indices = {&poison, Dtype::kI32, {1, 1, 1}};
  Results results = poisoned(inputs, 512);
  std::fill(results.max_logits.begin(), results.max_logits.end(), 0.0F);
  std::fill(results.out.begin(), results.out.end(), 0);
  ASSERT_TRUE(run(inputs, rows.options, results).ok());
  for (int h = 0; h < 2; ++h) {
    EXPECT_TRUE(std::isnan(results.max_logits[h]));
    EXPECT_TRUE(std::isnan(results.lse[h]));
    EXPECT_TRUE(std::isnan(to_float(results.out[h * 512], Dtype::kBF16)));
  }
}

/// A sparse decode case of one query token a request as a sparse prefill.
SparsePrefillInputs prefill_of(const DecodeInputs& decode) {
  SparsePrefillInputs inputs;
  inputs.q = decode.q;
  inputs.q.shape = {decode.q.shape[0], decode.q.shape[2], decode.q.shape[3]};
  inputs.q.strides = {decode.q.strides[0], decode.q.strides[2], 1};
  inputs.q.rank = 3;
  inputs.kv = decode.kv_cache;
  inputs.indices = decode.indices;
  inputs.topk_length = decode.topk_length;
  inputs.attn_sink = decode.attn_sink;
  inputs.extra_kv_cache = decode.extra_kv_cache;
  inputs.extra_indices = decode.extra_indices;
  inputs.extra_topk_length = decode.extra_topk_length;
  return inputs;
}

TEST(SparsePrefill, PagedCaches) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656, KvFormat::kFp8_584}) {
    for (bool extra : {false, true}) {
      runtime::CaseSpec spec{.format = format, .heads = 12, .lengths = {100, 0, 70, 300}};
      spec.qk_dim = format == KvFormat::kFp8_584 ? 512 : 576;
      spec.page_size = 3;
      spec.sparse = spec.sink = spec.strided = true;
      spec.topk = 77;
      spec.topk_lengths = {77, 5, 0, 70};
      spec.skipped_indices = 0.3;
      if (extra) {
        spec.extra_lengths = {90, 100, 0, 20};
        spec.extra_indexed = true;
        spec.extra_topk = 65;
        spec.extra_topk_lengths = {0, 65, 0, 33};
        spec.extra_page_size = 2;
      }
      const runtime::RandomCase c = runtime::make_case(spec, 1);
      check(prefill_of(c.inputs), options_of(c.problem.options.softmax_scale));
    }
  }
}

TEST(SparsePrefill, WrongTensorsAreNamed) {
  const Rows rows({.sink = true});
  const Executor cpu;
  auto refused = [&](auto change, const char* words) {
    SparsePrefillInputs inputs = rows.inputs;
    SparsePrefillOptions options = rows.options;
    change(inputs, options);
    const Status status = sparse_prefill_workspace_bytes(inputs, options, cpu).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  using Inputs = SparsePrefillInputs;
  using Options = SparsePrefillOptions;
  refused([](Inputs& i, Options&) { i.q = {}; }, "q is missing; expected bf16 or fp16 (s_q, h_q, d)");
  refused([](Inputs& i, Options&) { i.q.dtype = Dtype::kF32; }, "q is fp32 (5, 9, 576)");
  refused([](Inputs& i, Options&) { i.kv = {}; }, "kv is missing; expected rows (s_kv, 1, d)");
  refused([](Inputs& i, Options&) { i.kv.shape[1] = 2; }, "kv is bf16 (100, 2, 576)");
  refused([](Inputs& i, Options&) { i.kv.dtype = Dtype::kF16; }, "kv is fp16");
  refused([](Inputs& i, Options&) { i.kv.strides[2] = 2; }, "kv is");
  refused([](Inputs& i, Options&) { i.indices = {}; }, "indices is missing");
  refused([](Inputs& i, Options&) { i.indices.shape[0] = 4; }, "indices is int32 (4, 1, 77)");
  refused(
      [](Inputs& i, Options&) {
        i.topk_length = {i.indices.data, Dtype::kI32, {4}};
      },
      "topk_length is int32 (4)");
  refused([](Inputs& i, Options&) { i.attn_sink.shape[0] = 8; }, "attn_sink is fp32 (8)");
  refused([](Inputs& i, Options&) { i.extra_indices = i.indices; }, "extra_kv_cache is missing");
  refused([](Inputs& i, Options&) { i.extra_kv_cache = i.kv; }, "extra_indices is missing");
  refused([](Inputs&, Options& o) { o.softmax_scale = std::nanf(""); }, "softmax_scale is nan");
  refused([](Inputs&, Options& o) { o.v_dim = 577; }, "v_dim is 577");
  refused([](Inputs& i, Options&) { i.q.shape[0] = i.indices.shape[0] = (1 << 20) + 1; },
          "s_q (query tokens) is 1048577; it must be from 0 to 1048576");

  Results results = poisoned(rows.inputs, 512);
  results.max_view.shape[1] = 8;
  const Status status = run(rows.inputs, rows.options, results);
  EXPECT_NE(status.message().find("max_logits is fp32 (5, 8)"), std::string::npos) << status.message();
  EXPECT_EQ(sparse_prefill(rows.inputs, poisoned(rows.inputs, 512).outputs(), rows.options, {}, cpu).code(),
            StatusCode::kExhausted);
}

TEST(SparsePrefill, CudaIsRefusedByName) {
  const Rows rows({});
  Executor cuda;
  cuda.backend = Backend::kCuda;
  const Status status = sparse_prefill_workspace_bytes(rows.inputs, rows.options, cuda).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("executor.backend is cuda, which has no kernel for sparse_prefill; cpu"),
            std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace flashlatent
