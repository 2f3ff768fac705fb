// Status, tensor views, and the refusals that every backend shares: each must name the argument, its value
// and what would do.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/divisor.h"
#include "core/message.h"
#include "core/validate.h"
#include "flashlatent/flashlatent.h"

namespace flashlatent {
namespace {

// Says which piece of the message is missing.
testing::AssertionResult refuses(const Status& status, StatusCode code,
                                 const std::vector<std::string>& pieces) {
  if (status.code() != code) {
    return testing::AssertionFailure() << to_string(status.code()) << ": " << status.message();
  }
  if (status.message().find('\n') != std::string::npos) {
    return testing::AssertionFailure() << "more than one line: " << status.message();
  }
  for (const std::string& piece : pieces) {
    if (status.message().find(piece) == std::string::npos) {
      return testing::AssertionFailure() << "no '" << piece << "' in: " << status.message();
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult is_invalid(const Status& status, const std::vector<std::string>& pieces) {
  return refuses(status, StatusCode::kInvalidArgument, pieces);
}

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
}

TEST(Status, CodesHaveNames) {
  EXPECT_STREQ(to_string(StatusCode::kOk), "ok");
  EXPECT_STREQ(to_string(StatusCode::kInvalidArgument), "invalid argument");
  EXPECT_STREQ(to_string(StatusCode::kUnsupported), "unsupported");
  EXPECT_STREQ(to_string(StatusCode::kUnavailable), "unavailable");
  EXPECT_STREQ(to_string(StatusCode::kExhausted), "exhausted");
  EXPECT_STREQ(to_string(StatusCode::kInternal), "internal error");
}

TEST(Result, HoldsAValueOrAStatus) {
  const Result<int> seven(7);
  ASSERT_TRUE(seven.ok());
  EXPECT_EQ(*seven, 7);
  EXPECT_TRUE(seven.status().ok());
  const Result<int> none(Status(StatusCode::kExhausted, "the pool is full"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kExhausted);
  EXPECT_EQ(none.status().message(), "the pool is full");
}

TEST(Message, PiecesOfAnyType) {
  const std::uint8_t small = 255;
  EXPECT_EQ(message("a", std::string("b"), std::string_view("c"), 'd', true, small), "abcd1255");
  EXPECT_EQ(message(std::numeric_limits<std::int64_t>::min(), " ", ~std::uint64_t{0}, " ", 7U, -7LL, 7ULL),
            "-9223372036854775808 18446744073709551615 7-77");
  EXPECT_EQ(message(1.0, " ", 0.1F, " ", 1234567.0, " ", 1e-7, " ", 2.0 / 3),
            "1 0.1 1.23457e+06 1e-07 0.666667");
  EXPECT_EQ(message(reinterpret_cast<const void*>(0xab0)), "0xab0");
}

TEST(Tensor, ContiguousStrides) {
  float data[24];
  const TensorView view(data, Dtype::kF32, {2, 3, 4});
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(view.elements(), 24);
  EXPECT_TRUE(view.present());
  EXPECT_FALSE(TensorView().present());
}

TEST(Tensor, MoreDimensionsThanThereAreIsNoView) {
  float data[1];
  const TensorView view(data, Dtype::kF32, {1, 1, 1, 1, 1, 1});
  EXPECT_TRUE(view.present());
  EXPECT_EQ(view.rank, kTooManyDimensions);
  EXPECT_EQ(to_string(view), "fp32 of more than 5 dimensions on cpu");
  EXPECT_TRUE(TensorView(data, Dtype::kF32, {1, 1, 1, 1, 1}).rank == kMaxRank);
}

TEST(Tensor, OffsetsAre64Bit) {
  const ConstTensorView view(nullptr, Dtype::kBF16, {1 << 20, 64, 1, 576});
  EXPECT_EQ(view.elements(), std::int64_t{1} * (1 << 20) * 64 * 576);
  EXPECT_EQ(view.strides[0], 64 * 576);
}

TEST(Tensor, Prints) {
  EXPECT_EQ(to_string(ConstTensorView(nullptr, Dtype::kBF16, {8, 64, 1, 576}, {DeviceType::kCuda, 1})),
            "bf16 (8, 64, 1, 576) strides (36864, 576, 576, 1) on cuda:1");
  EXPECT_EQ(to_string(ConstTensorView(nullptr, Dtype::kI32, {3})), "int32 (3) strides (1) on cpu");
}

TEST(Tensor, DtypeSizes) {
  EXPECT_EQ(size_of(Dtype::kBF16), 2U);
  EXPECT_EQ(size_of(Dtype::kF16), 2U);
  EXPECT_EQ(size_of(Dtype::kF32), 4U);
  EXPECT_EQ(size_of(Dtype::kI32), 4U);
  EXPECT_EQ(size_of(Dtype::kU8), 1U);
}

TEST(Backend, NamesGoBothWays) {
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    const Result<Backend> named = backend_from_name(to_string(backend));
    ASSERT_TRUE(named.ok());
    EXPECT_EQ(*named, backend);
  }
  EXPECT_TRUE(is_invalid(backend_from_name("tpu").status(), {"tpu", "cpu", "cuda"}));
}

// Each field out of its range in turn.
TEST(Problem, RefusesFieldsOutOfRange) {
  DecodeProblem good;
  EXPECT_TRUE(is_invalid(validate(good), {"softmax_scale is nan, which is not set"}));
  good.options.softmax_scale = 1;
  EXPECT_TRUE(validate(good).ok());
  struct Case {
    void (*spoil)(DecodeProblem&);
    std::vector<std::string> pieces;
  };
  const Case cases[] = {
      {[](DecodeProblem& p) { p.query.batch = -1; }, {"batch is -1", "from 0"}},
      {[](DecodeProblem& p) { p.query.tokens = 0; }, {"s_q", "is 0", "from 1"}},
      {[](DecodeProblem& p) { p.query.heads = 0; }, {"h_q", "is 0", "from 1"}},
      {[](DecodeProblem& p) { p.cache.heads = 0; }, {"h_kv", "is 0; it must be 1"}},
      {[](DecodeProblem& p) { p.cache.heads = 2; }, {"h_kv", "is 2; it must be 1"}},
      {[](DecodeProblem& p) { p.query.heads = 5, p.cache.heads = 2; }, {"h_q is 5", "multiple", "2"}},
      {[](DecodeProblem& p) { p.cache.dtype = Dtype::kU8; }, {"dtype is uint8", "bf16", "fp16"}},
      {[](DecodeProblem& p) { p.cache.qk_dim = 0; }, {"qk_dim is 0", "from 1"}},
      {[](DecodeProblem& p) { p.cache.v_dim = 577; }, {"v_dim is 577", "to 576"}},
      {[](DecodeProblem& p) { p.cache.page_size = 0; }, {"page_size is 0", "from 1"}},
      {[](DecodeProblem& p) { p.cache.max_pages = -3; }, {"max_pages", "is -3", "from 0"}},
      {[](DecodeProblem& p) { p.cache.format = KvFormat::kFp8_656, p.cache.qk_dim = 520; },
       {"qk_dim is 520; an fp8_656 cache has 576"}},
      {[](DecodeProblem& p) { p.sparse.enabled = true, p.cache.max_pages = 3; }, {"is 3; it must be 0"}},
      {[](DecodeProblem& p) { p.options.softmax_scale = DecodeProblem().options.softmax_scale; },
       {"softmax_scale is nan", "not set", "finite"}},
      {[](DecodeProblem& p) { p.options.softmax_scale = std::numeric_limits<float>::infinity(); },
       {"softmax_scale is inf; it must be finite"}},
      {[](DecodeProblem& p) { p.options.empty_lse = 0; }, {"empty_lse is 0", "-inf", "+inf"}},
  };
  for (const Case& bad : cases) {
    DecodeProblem problem = good;
    bad.spoil(problem);
    EXPECT_TRUE(is_invalid(validate(problem), bad.pieces)) << to_string(problem);
  }
}

TEST(Problem, Prints) {
  DecodeProblem problem;
  problem.query.batch = 128;
  problem.query.heads = 16;
  problem.cache.max_pages = 65;
  problem.options.softmax_scale = 1;
  problem.options.causal = true;
  EXPECT_EQ(to_string(problem), "decode b=128 s_q=1 h_q=16 h_kv=1 d=576/512 bf16 page=64x65 scale=1 causal");
}

// A call that is right, to spoil one argument at a time. Nothing reads its memory.
class DecodeArguments : public testing::Test {
 protected:
  DecodeArguments() {
    problem_.query.batch = 3;
    problem_.query.heads = 16;
    problem_.cache.max_pages = 4;
    problem_.options.softmax_scale = 1;
    inputs_.q = {memory_, Dtype::kBF16, {3, 1, 16, 576}};
    inputs_.kv_cache = {memory_, Dtype::kBF16, {20, 64, 1, 576}};
    inputs_.block_table = {memory_, Dtype::kI32, {3, 4}};
    inputs_.cache_seqlens = {memory_, Dtype::kI32, {3}};
    outputs_.out = {memory_, Dtype::kBF16, {3, 1, 16, 512}};
    outputs_.lse = {memory_, Dtype::kF32, {3, 16, 1}};
  }

  Status check() const { return validate_decode(problem_, inputs_, outputs_, {}); }

  alignas(256) char memory_[256] = {};
  DecodeProblem problem_;
  DecodeInputs inputs_;
  DecodeOutputs outputs_;
};

TEST_F(DecodeArguments, Right) {
  const Status status = check();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(DecodeArguments, Missing) {
  inputs_.q = {};
  EXPECT_TRUE(is_invalid(check(), {"q is missing", "bf16 (3, 1, 16, 576)"}));
}

TEST_F(DecodeArguments, WrongRank) {
  inputs_.block_table = {memory_, Dtype::kI32, {12}};
  EXPECT_TRUE(is_invalid(check(), {"block_table is int32 (12)", "int32 (3, 4)"}));
}

TEST_F(DecodeArguments, WrongShape) {
  outputs_.lse = {memory_, Dtype::kF32, {3, 1, 16}};
  EXPECT_TRUE(is_invalid(check(), {"lse is fp32 (3, 1, 16)", "fp32 (3, 16, 1)"}));
}

TEST_F(DecodeArguments, WrongDtype) {
  inputs_.kv_cache.dtype = Dtype::kF16;
  EXPECT_TRUE(is_invalid(check(), {"kv_cache is fp16", "expected bf16"}));
}

TEST_F(DecodeArguments, WrongDevice) {
  inputs_.cache_seqlens.device = {DeviceType::kCuda, 2};
  EXPECT_TRUE(is_invalid(check(), {"cache_seqlens", "on cuda:2", "on cpu"}));
}

TEST_F(DecodeArguments, NullAndMisaligned) {
  outputs_.out.data = nullptr;
  EXPECT_TRUE(is_invalid(check(), {"out is", "null"}));
  outputs_.out.data = memory_ + 1;
  EXPECT_TRUE(is_invalid(check(), {"out is", "aligned"}));
}

TEST_F(DecodeArguments, MoreDimensionsThanThereAre) {
  for (ConstTensorView* view :
       {&inputs_.q, &inputs_.kv_cache, &inputs_.block_table, &inputs_.cache_seqlens, &inputs_.key_cache,
        &inputs_.indices, &inputs_.attn_sink, &inputs_.alibi_slopes, &inputs_.key_scale}) {
    const ConstTensorView before = *view;
    *view = {memory_, Dtype::kBF16, {3, 1, 16, 576, 1, 1}};
    EXPECT_EQ(check().code(), StatusCode::kInvalidArgument);
    *view = before;
  }
  inputs_.kv_cache = {memory_, Dtype::kBF16, {20, 64, 1, 576, 1, 1}};
  EXPECT_TRUE(is_invalid(check(), {"kv_cache is bf16 of more than 5 dimensions", "(any, 64, 1, 576)"}));
  EXPECT_TRUE(
      is_invalid(infer_problem(inputs_, 512, problem_.options).status(), {"kv_cache is", "more than 5"}));
}

TEST_F(DecodeArguments, StridesOfNothingAreFree) {
  problem_.query.batch = 0;
  inputs_.q = {nullptr, Dtype::kBF16, {0, 1, 16, 576}};
  inputs_.block_table = {nullptr, Dtype::kI32, {0, 4}};
  inputs_.cache_seqlens = {nullptr, Dtype::kI32, {0}};
  inputs_.kv_cache = {nullptr, Dtype::kBF16, {0, 64, 1, 576}};
  outputs_.out = {nullptr, Dtype::kBF16, {0, 1, 16, 512}};
  outputs_.lse = {nullptr, Dtype::kF32, {0, 16, 1}};
  for (ConstTensorView* view :
       {&inputs_.q, &inputs_.kv_cache, &inputs_.block_table, &inputs_.cache_seqlens}) {
    view->strides = {};
  }
  outputs_.out.strides = outputs_.lse.strides = {};
  EXPECT_TRUE(check().ok()) << check().message();
}

TEST_F(DecodeArguments, InnermostStride) {
  inputs_.q.strides[3] = 2;
  EXPECT_TRUE(is_invalid(check(), {"q is", "stride", "1"}));
}

TEST_F(DecodeArguments, OuterStridesAreFree) {
  inputs_.q.strides[0] = 1 << 20;
  inputs_.kv_cache.strides[0] = std::int64_t{1} << 40;
  outputs_.out.strides[0] = 1 << 18;
  EXPECT_TRUE(check().ok());
}

TEST_F(DecodeArguments, OptionsAndTensorsGoTogether) {
  const ConstTensorView sink(memory_, Dtype::kF32, {16});
  inputs_.attn_sink = sink;
  EXPECT_TRUE(is_invalid(check(), {"attn_sink", "attn_sink off"}));
  problem_.options.attn_sink = true;
  EXPECT_TRUE(check().ok());
  inputs_.attn_sink = {};
  EXPECT_TRUE(is_invalid(check(), {"attn_sink is missing", "fp32 (16)"}));
  inputs_.attn_sink = sink;
  inputs_.cu_seqlens_q = {memory_, Dtype::kI32, {4}};
  EXPECT_TRUE(is_invalid(check(), {"cu_seqlens_q", "not ragged"}));
}

TEST_F(DecodeArguments, RaggedQueriesLieSideBySide) {
  std::int32_t begins[] = {0, 2, 2, 3};
  problem_.query.ragged = true;
  problem_.query.tokens = 2;
  inputs_.q = {memory_, Dtype::kBF16, {3, 16, 576}};
  inputs_.cu_seqlens_q = {begins, Dtype::kI32, {4}};
  outputs_.out = {memory_, Dtype::kBF16, {3, 16, 512}};
  outputs_.lse = {memory_, Dtype::kF32, {3, 16, 2}};
  EXPECT_TRUE(check().ok()) << check().message();
  begins[0] = 1;
  EXPECT_TRUE(is_invalid(check(), {"cu_seqlens_q[0] is 1", "request 0 begins", "0 is accepted"}));
  begins[0] = 0;
  begins[2] = 1;
  EXPECT_TRUE(is_invalid(check(), {"cu_seqlens_q[2] is 1", "request 1 ends", "2 to 3 are accepted"}));
  begins[2] = 0;
  begins[1] = 0;
  EXPECT_TRUE(is_invalid(check(), {"cu_seqlens_q[3] is 3", "request 2 ends", "0 to 2 are accepted", "s_q"}));
  begins[3] = 2;
  EXPECT_TRUE(is_invalid(check(), {"cu_seqlens_q[3] is 2", "request 2 ends", "3 is accepted"}));
}

TEST_F(DecodeArguments, InferredProblem) {
  const Result<DecodeProblem> problem = infer_problem(inputs_, 512, problem_.options);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(to_string(*problem), to_string(problem_));
  inputs_.q.rank = 3;
  EXPECT_TRUE(is_invalid(infer_problem(inputs_, 512, problem_.options).status(), {"q is", "(batch, s_q"}));
}

// What does not fit is named: q, not the problem's dtype; the page table, not what was inferred from it.
TEST_F(DecodeArguments, NamesWhatDoesNotFit) {
  const auto refused = [&](const DecodeInputs& inputs, const std::vector<std::string>& pieces) {
    return is_invalid(infer_problem(inputs, 512, problem_.options).status(), pieces);
  };
  DecodeInputs inputs = inputs_;
  inputs.q.dtype = Dtype::kF32;
  EXPECT_TRUE(refused(inputs, {"q is fp32", "bf16 and fp16"}));
  inputs = inputs_;
  inputs.block_table = {};
  EXPECT_TRUE(refused(inputs, {"block_table is missing", "indices"}));
  inputs = inputs_;
  inputs.block_table.shape[0] = 1;
  EXPECT_TRUE(refused(inputs, {"block_table is int32 (1, ", "rows, one a request of q"}));
  inputs = inputs_;
  inputs.q.dtype = Dtype::kF16;
  inputs.kv_cache.dtype = Dtype::kU8;
  EXPECT_TRUE(refused(inputs, {"q is fp16", "e4m3", "bf16"}));
  inputs.kv_cache.shape[3] = 656;
  EXPECT_TRUE(refused(inputs, {"q is fp16", "fp8_656", "bf16"}));
}

TEST_F(DecodeArguments, RaggedQueriesWithoutAnyToken) {
  std::int32_t begins[] = {0, 0, 0, 0};
  inputs_.q = {nullptr, Dtype::kBF16, {0, 16, 576}};
  inputs_.cu_seqlens_q = {begins, Dtype::kI32, {4}};
  const Result<DecodeProblem> problem = infer_problem(inputs_, 512, problem_.options);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->query.tokens, 1);
  problem_ = *problem;
  outputs_.out = {nullptr, Dtype::kBF16, {0, 16, 512}};
  EXPECT_TRUE(check().ok()) << check().message();
}

TEST_F(DecodeArguments, Buffers) {
  EXPECT_TRUE(validate_memory("plan", {memory_, 256}, 256).ok());
  EXPECT_TRUE(validate_memory("plan", {}, 0).ok());
  EXPECT_TRUE(refuses(validate_memory("plan", {memory_, 255}, 256), StatusCode::kExhausted,
                      {"plan has 255 bytes", "256"}));
  EXPECT_TRUE(
      refuses(validate_memory("workspace", {}, 512), StatusCode::kExhausted, {"workspace has 0", "512"}));
  EXPECT_TRUE(is_invalid(validate_memory("plan", {memory_ + 16, 240}, 64), {"plan", "aligned to 256"}));
}

TEST(Divisor, IsDivision) {
  std::mt19937_64 engine(1);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int64_t> divisors(2000);
  std::iota(divisors.begin(), divisors.end(), 1);
  for (std::int64_t d : {kMost, kMost - 1, std::int64_t{1} << 30, (std::int64_t{1} << 30) + 1})
    divisors.push_back(d);
  for (int i = 0; i < 2000; ++i) divisors.push_back(1 + engine() % kMost);
  for (std::int64_t d : divisors) {
    const Divisor divisor(static_cast<std::int32_t>(d));
    for (int i = 0; i < 100; ++i) {
      const std::int64_t multiple = static_cast<std::int64_t>(engine() % (std::uint64_t{1} << 31)) / d * d;
      for (std::int64_t x : {multiple - 1, multiple, multiple + d - 1, kMost}) {
        if (x < 0 || x > kMost) continue;
        ASSERT_EQ(divisor.quotient(static_cast<std::int32_t>(x)), x / d) << x << " / " << d;
        ASSERT_EQ(divisor.remainder(static_cast<std::int32_t>(x)), x % d) << x << " % " << d;
      }
    }
  }
}

}  // namespace
}  // namespace flashlatent
