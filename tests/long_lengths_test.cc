// Lengths up to 2^31 - 1, whose tokens are those of few pages again and again.
#include <cmath>
#include <limits>

#include "contracts.h"
#include "core/element.h"

namespace flashlatent {
namespace {

constexpr int kDim = 8;
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

/// One query token and head. All tokens of a page lie at one place: page 0 has values of 1, page 1, the last
/// one of the table, of 2. Keys are 0.
class LongLengths : public Contracts {
 protected:
  /// A table that reaches to 2^31 tokens, or to `reach`.
  void make(int page_size, int length, std::int64_t reach = std::int64_t{1} << 31) {
    const std::int64_t columns = reach / page_size;
    table_.assign(columns, 0);
    table_.back() = 1;
    length_ = length;
    for (int d = 0; d < kDim; ++d) {
      values_[d] = float_to_bf16(1);
      values_[kDim + d] = float_to_bf16(2);
    }
    case_.problem = {};
    case_.problem.query = {.batch = 1, .tokens = 1, .heads = 1};
    case_.problem.cache.dtype = Dtype::kBF16;
    case_.problem.cache.layout = KvLayout::kSeparate;
    case_.problem.cache.heads = 1;
    case_.problem.cache.qk_dim = case_.problem.cache.v_dim = kDim;
    case_.problem.cache.page_size = page_size;
    case_.problem.cache.max_pages = static_cast<int>(columns);
    case_.problem.options.softmax_scale = 1;
    case_.problem.options.causal = true;
    case_.problem.options.window = 50;
    case_.inputs = {};
    case_.inputs.q = {q_, Dtype::kBF16, {1, 1, 1, kDim}};
    case_.inputs.key_cache = {keys_, Dtype::kBF16, {2, page_size, 1, kDim}};
    case_.inputs.value_cache = {values_, Dtype::kBF16, {2, page_size, 1, kDim}};
    for (ConstTensorView* view : {&case_.inputs.key_cache, &case_.inputs.value_cache}) {
      view->strides = {kDim, 0, kDim, 1};
    }
    case_.inputs.block_table = {table_.data(), Dtype::kI32, {1, columns}};
    case_.inputs.cache_seqlens = {&length_, Dtype::kI32, {1}};
  }

  /// Every token's score is 0: `ones` tokens of page 0 and `twos` of page 1.
  void expect(double ones, double twos) {
    runtime::DecodeRun run = place(case_, executor_);
    const Status status = run.run();
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(run.fetch().ok());
    const auto* out = static_cast<const std::uint16_t*>(run.out().data);
    const double mean = (ones + 2 * twos) / (ones + twos);
    EXPECT_NEAR(bf16_to_float(out[0]), mean, 0.01) << executor_.kernel << " " << to_string(case_.problem);
    EXPECT_NEAR(static_cast<const float*>(run.lse().data)[0], std::log(ones + twos), 1e-4)
        << executor_.kernel << " " << to_string(case_.problem);
  }

  std::uint16_t q_[kDim] = {}, keys_[2 * kDim] = {}, values_[2 * kDim] = {};
  std::vector<std::int32_t> table_;
  std::int32_t length_ = 0;
  runtime::RandomCase case_;
};

INSTANTIATE_TEST_SUITE_P(Backends, LongLengths, kBackends, backend_name);

TEST_P(LongLengths, TheLastTokensOfTheLongestRequests) {
  if (on_gpu()) GTEST_SKIP() << "kernels count to 2^31 - 2^14";
  for (const char* kernel : {"cpu_dense", "reference"}) {
    executor_.kernel = kernel;
    for (int page_size : {1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 20}) {
      const int last_page = static_cast<int>((std::int64_t{1} << 31) - page_size);
      for (int length : {kMost, kMost - 63, kMost - 64, last_page + 49, last_page + 1}) {
        make(page_size, length);
        const double twos = std::min(length - last_page, 50);
        expect(50 - twos, twos);
        case_.problem.options.batch_invariant = true;
        expect(50 - twos, twos);
      }
    }
  }
}

TEST_P(LongLengths, WithoutAWindow) {
  if (on_gpu()) GTEST_SKIP() << "kernels count to 2^31 - 2^14";
  constexpr int kPage = 1 << 16;
  make(kPage, kMost);
  case_.problem.options.window = 0;
  std::fill(table_.begin(), table_.end() - 1, -1);  // skipped
  expect(0, kPage - 1);
}

TEST_P(LongLengths, AsFarAsEveryBackendCounts) {
  constexpr std::int64_t kReach = (std::int64_t{1} << 31) - (1 << 14);
  if (on_gpu()) executor_.kernel = "paged";
  make(1 << 14, kMost, kReach);  // clamped
  expect(0, 50);
  make(1 << 14, static_cast<int>(kReach - (1 << 14) + 20), kReach);
  expect(30, 20);
}

TEST_P(LongLengths, CudaRefusesTablesThatReachFarther) {
  if (!on_gpu()) GTEST_SKIP() << "the CPU takes them";
  make(1 << 14, 100);
  const Status status = plan_bytes(case_.problem, executor_).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(
      status.message().find("max_pages 131072 x page_size 16384 is 2147483648 tokens; up to 2147467264"),
      std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace flashlatent
