// The contracts of e4m3 latent caches, on every backend that is there: products in bf16 and in e4m3, queries
// of both.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "contracts.h"
#include "core/formats/e4m3_latent.h"
#include "cpu/reference.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

struct Kind {
  const char* name;
  bool e4m3_query;
  bool scale_a_head;
  Products products;
};
constexpr Kind kKinds[] = {{"bf16", false, false, Products::kAuto},
                           {"fp8 products", false, false, Products::kFp8},
                           {"e4m3 queries", true, false, Products::kAuto},
                           {"a scale a head", true, true, Products::kAuto},
                           {"e4m3 queries, bf16 products", true, false, Products::kBf16}};

class E4m3Latent : public Contracts {
 protected:
  /// Every kernel of a GPU that should take the case, in every kind, by its name; on the CPU and where none
  /// should, the one that is picked.
  template <class Test>
  void by_every_kernel(const CaseSpec& spec, Test test) {
    for (const Kind& kind : kKinds) {
      CaseSpec of = with(spec, kind);
      if (!taken(of)) continue;
      if (!on_gpu()) test(of);
      for (const KernelInfo& kernel : kernels()) {
        if (!on_gpu() || kernel.backend != Backend::kCuda) continue;
        if (!should_take(kernel.name, runtime::problem_of(of))) continue;
        executor_.kernel = kernel.name;
        of.name = std::string(kind.name) + " by " + kernel.name;
        if (taken(of)) test(of);
        executor_.kernel = "";
      }
    }
  }
  /// Compares with the oracle.
  void check(const CaseSpec& spec) {
    by_every_kernel(spec, [&](const CaseSpec& of) { expect_right(of); });
  }
  static CaseSpec with(CaseSpec spec, const Kind& kind) {
    spec.name = kind.name;
    spec.e4m3_query = kind.e4m3_query;
    spec.query_scales = !kind.e4m3_query ? 0 : kind.scale_a_head ? spec.heads : 1;
    spec.products = kind.products;
    return spec;
  }
  static CaseSpec e4m3(int heads, std::vector<int> lengths) {
    return {.format = KvFormat::kE4m3, .scales = 1, .heads = heads, .lengths = std::move(lengths)};
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, E4m3Latent, kBackends, backend_name);

TEST_P(E4m3Latent, LengthsAndHeads) {
  check(e4m3(16, {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 193}));
  for (int heads : {1, 3, 8, 24, 64, 65, 128}) check(e4m3(heads, {33, 130}));
}

TEST_P(E4m3Latent, PageSizesAndStrides) {
  for (int page_size : {1, 16, 61, 64, 256}) {
    CaseSpec spec = e4m3(24, {1, 130, 257});
    spec.page_size = page_size;
    check(spec);
    spec.strided = spec.invalid_pages = true;
    check(spec);
  }
}

TEST_P(E4m3Latent, QueryTokensSplitsAndSinks) {
  CaseSpec spec = e4m3(12, {1, 2, 66, 300});
  spec.query_tokens = 3;
  spec.causal = spec.sink = true;
  check(spec);
  spec = e4m3(4, {9000, 20});
  spec.sink = true;
  check(spec);
  spec = e4m3(24, {5, 100, 64, 700});
  spec.ragged_tokens = {1, 3, 0, 2};
  spec.causal = true;
  check(spec);
}

TEST_P(E4m3Latent, WithoutRope) {
  for (int heads : {8, 80}) {
    CaseSpec spec = e4m3(heads, {1, 130, 700});
    spec.qk_dim = 512;
    spec.query_tokens = 2;
    spec.causal = true;
    check(spec);
  }
}

TEST_P(E4m3Latent, IndicesWindowsAndTwoCaches) {
  for (int heads : {8, 80}) {
    CaseSpec spec = e4m3(heads, {200, 0, 77});
    spec.window = 70;
    check(spec);
    spec.window = 0;
    spec.extra_lengths = {90, 3, 0};
    spec.extra_page_size = 2;
    check(spec);
    spec = e4m3(heads, {200, 0, 77});
    spec.sparse = true;
    spec.topk = 130;
    spec.topk_lengths = {130, 5, 64};
    spec.skipped_indices = 0.3;
    check(spec);
  }
}

/// These scores are sums of products of one sign, of which tensor cores lose most in e4m3 (docs/numerics.md).
TEST_P(E4m3Latent, RisingAndFallingScores) {
  for (const auto& [name, steps] : hard_score_steps()) {
    for (int heads : {4, 32}) {
      CaseSpec spec = e4m3(heads, {900, 300});
      spec.score_steps = steps;
      spec.step_tokens = ScoreSteps::kTokens;
      check(spec);
    }
  }
}

// Scores of tokens that do not count are -inf whatever the scale is.
TEST_P(E4m3Latent, ScalesBelowZero) {
  CaseSpec spec = e4m3(20, {1, 7, 70, 130});
  spec.logit_scale = -2;
  check(spec);
  spec.sparse = true;
  spec.topk = 7;
  check(spec);
}

TEST_P(E4m3Latent, SameBitsAndBatchInvariance) {
  for (int heads : {8, 24}) {
    CaseSpec spec = e4m3(heads, {5000, 130, 0, 64});  // three splits of 2048 tokens
    by_every_kernel(spec, [&](const CaseSpec& of) { expect_same_bits(of); });
    spec.batch_invariant = true;
    by_every_kernel(spec, [&](const CaseSpec& of) { expect_batch_invariant(of); });
  }
}

TEST_P(E4m3Latent, ANanReachesTheRowsThatSeeIt) {
  by_every_kernel(e4m3(16, {100, 70}), [&](const CaseSpec& spec) {
    RandomCase c = runtime::make_case(spec, 3);
    const auto* table = static_cast<const std::int32_t*>(c.inputs.block_table.data);
    auto* cache = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.kv_cache.data));  // this case's own
    cache[table[0] * c.inputs.kv_cache.strides[0] + 5 * c.inputs.kv_cache.strides[1] + 17] = e4m3::kNan;
    expect_right(c, spec.name);
  });
}

// All three query tokens see the first of request 0's last three tokens, one sees the last.
TEST_P(E4m3Latent, ANanThatSomeRowsSee) {
  for (int heads : {4, 40}) {
    CaseSpec spec = e4m3(heads, {60, 130});
    spec.query_tokens = 3;
    spec.causal = true;
    by_every_kernel(spec, [&](const CaseSpec& of) {
      for (int back : {1, 3}) {
        for (int column : {7, 575}) {
          RandomCase c = runtime::make_case(of, 4);
          const auto* table = static_cast<const std::int32_t*>(c.inputs.block_table.data);
          auto* cache =
              static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.kv_cache.data));  // this case's own
          cache[table[0] * c.inputs.kv_cache.strides[0] + (60 - back) * c.inputs.kv_cache.strides[1] +
                column] = e4m3::kNan;
          expect_right(c, of.name);
        }
      }
    });
  }
}

// Its row is NaN, and no other.
TEST_P(E4m3Latent, ANanInAQuery) {
  CaseSpec spec = e4m3(12, {90, 300});
  by_every_kernel(spec, [&](const CaseSpec& of) {
    RandomCase c = runtime::make_case(of, 5);
    auto* q = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.q.data));  // this case's own
    if (of.e4m3_query) {
      q[3 * c.inputs.q.strides[2] + 11] = e4m3::kNan;
    } else {
      reinterpret_cast<std::uint16_t*>(q)[3 * c.inputs.q.strides[2] + 11] = 0x7FC0;
    }
    expect_right(c, of.name);
  });
}

TEST_P(E4m3Latent, AScaleThatIsLeftOutIsOne) {
  for (Kind kind : kKinds) {
    CaseSpec spec = with(e4m3(16, {100, 70}), kind);
    spec.scales = 0;
    spec.query_scales = 0;
    if (taken(spec)) expect_right(spec);
  }
}

/// With products in bf16 the scale goes to scores and outputs: elements times a scale that is no power of two
/// would be rounded, and the lse of a row with few tokens be off by 1e-2.
TEST_P(E4m3Latent, TheScaleTakesNoDigits) {
  for (int heads : {16, 64}) {
    for (int qk_dim : {576, 512}) {
      CaseSpec spec = e4m3(heads, {1, 1, 40});
      spec.qk_dim = qk_dim;
      by_every_kernel(spec, [&](const CaseSpec& of) {
        if (of.products == Products::kFp8 || (of.e4m3_query && of.products != Products::kBf16)) return;
        for (float scale : {0.1F, 0.3F}) {
          RandomCase c = runtime::make_case(of, 1);
          *static_cast<float*>(const_cast<void*>(c.inputs.kv_scale.data)) = scale;
          expect_right(c, of.name);
          DecodeRun run = place(c, executor_);
          ASSERT_TRUE(run.run().ok() && run.fetch().ok());
          const auto* lse = static_cast<const float*>(run.lse().data);
          for (int row = 0; row < 3 * heads; ++row) {
            const double right = cpu::reference_row(c.problem, c.inputs, row / heads, 0, row % heads).lse;
            // fp32 sums of e4m3 queries are off by up to 3e-5; a rounded scale by 6e-3.
            EXPECT_NEAR(lse[row], right, 5e-5 * (1 + std::abs(right))) << of.name << ", scale " << scale;
          }
        }
      });
    }
  }
}

// Parts have more or fewer blocks then, or none.
TEST_P(E4m3Latent, APlanOutlivesItsLengths) {
  for (int heads : {8, 24}) {
    by_every_kernel(e4m3(heads, {2600, 10, 64, 900}), [&](const CaseSpec& of) {
      const RandomCase longer = runtime::make_case(of, 2);
      RandomCase shorter = longer;
      const std::int32_t fewer[] = {700, 0, 64, 90};
      shorter.inputs.cache_seqlens.data = fewer;
      expect_right_with_plan_of(longer, shorter, of.name);
      expect_right_with_plan_of(shorter, longer, of.name);
    });
  }
}

TEST_P(E4m3Latent, TensorsThatDoNotFitAreNamed) {
  const RandomCase c = runtime::make_case(with(e4m3(16, {100}), kKinds[2]), 1);
  DecodeProblem::Options options = c.problem.options;
  auto refused = [&](const DecodeInputs& inputs, const char* words) {
    const Status status = infer_problem(inputs, 512, options).status();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  DecodeInputs inputs = c.inputs;
  inputs.q.dtype = Dtype::kF16;
  refused(inputs, "with an e4m3 cache bf16 and bytes (e4m3) are accepted");
  inputs = c.inputs;
  inputs.kv_cache.dtype = Dtype::kBF16;
  refused(inputs, "bf16 and fp16 are accepted, bytes (e4m3) with an e4m3 latent cache");
  options.products = Products::kFp8;
  inputs = c.inputs;
  inputs.q.dtype = inputs.kv_cache.dtype = Dtype::kBF16;
  refused(inputs, "products is fp8; that is for an e4m3 latent cache, and this one is latent, plain");
}

TEST(E4m3Query, ExponentIsTheLeastThatFits) {
  for (int exponent = -100; exponent <= 100; ++exponent) {
    const float fits = std::ldexp(448.0F, exponent);
    EXPECT_EQ(e4m3_latent::query_exponent(fits), exponent);
    EXPECT_EQ(e4m3_latent::query_exponent(std::nextafter(fits, std::numeric_limits<float>::max())),
              exponent + 1);
  }
  EXPECT_EQ(e4m3_latent::query_exponent(0), -126);
}

}  // namespace
}  // namespace flashlatent
