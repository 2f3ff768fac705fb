// The contracts of separate and packed keys and values (MHA, GQA, MQA), on every backend that is there. What
// no kernel of a backend should take (kernels_that_take.h) is refused there; the CPU takes everything.
#include <cmath>
#include <cstring>
#include <limits>

#include "contracts.h"
#include "core/element.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class Paged : public Contracts {
 protected:
  static CaseSpec gqa(int heads, int kv_heads, int d, std::vector<int> lengths) {
    return {.name = "gqa",
            .layout = KvLayout::kSeparate,
            .heads = heads,
            .kv_heads = kv_heads,
            .qk_dim = d,
            .v_dim = d,
            .page_size = 16,
            .lengths = std::move(lengths)};
  }

  /// By every kernel that takes it, each by name: the dispatcher would pick one of them.
  void expect_right(const CaseSpec& spec) {
    if (!on_gpu()) return Contracts::expect_right(spec);
    for (const char* kernel : {"gqa_16", "gqa_128_split", "gqa_128"}) {
      executor_.kernel = kernel;
      if (taken(spec)) Contracts::expect_right(spec);
      if (HasFailure()) ADD_FAILURE() << kernel;
    }
    executor_.kernel.clear();
  }
  /// In both layouts.
  void expect_both(CaseSpec spec) {
    for (KvLayout layout : {KvLayout::kSeparate, KvLayout::kPacked}) {
      spec.layout = layout;
      expect_right(spec);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Paged, kBackends, backend_name);

TEST_P(Paged, LengthsAtBoundaries) {
  expect_both(gqa(8, 2, 128, {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 193}));
}

TEST_P(Paged, AnotherLseForEmptyRows) {
  CaseSpec spec = gqa(8, 2, 128, {0, 2, 5000});
  spec.query_tokens = 3;
  spec.causal = true;
  ASSERT_TRUE(taken(spec));
  RandomCase c = runtime::make_case(spec, 5);
  c.problem.options.empty_lse = std::numeric_limits<float>::infinity();
  Contracts::expect_right(c, "+inf");
}

TEST_P(Paged, Dimensions) {
  for (int d : {64, 80, 96, 112, 120, 128, 192, 256}) {
    CaseSpec spec = gqa(8, 2, d, {1, 70, 130});
    expect_both(spec);
    spec.dtype = Dtype::kF16;
    expect_right(spec);
  }
  for (auto [qk_dim, v_dim] : {std::pair{192, 128}, {64, 128}, {24, 5}}) {
    CaseSpec spec = gqa(6, 2, qk_dim, {70});
    spec.v_dim = v_dim;
    expect_both(spec);
    spec.heads = 40;  // more than 16 rows a KV head: other code on the CPU
    expect_both(spec);
  }
}

TEST_P(Paged, Groups) {
  for (int group : {1, 2, 3, 4, 5, 7, 8, 16, 17, 70}) {
    for (int kv_heads : {1, 3}) expect_both(gqa(group * kv_heads, kv_heads, 64, {33, 130}));
  }
}

TEST_P(Paged, ManyHeadsAndRequests) {
  // Enough that a CTA has several KV heads, or several tiles of one, side by side; 40 rows a head are 3
  // tiles.
  const std::vector<int> lengths = {0, 1, 17, 64, 130, 193, 31, 32};
  for (int d : {64, 128, 192}) expect_both(gqa(64, 64, d, lengths));
  CaseSpec spec = gqa(64, 32, 128, lengths);
  spec.query_tokens = 10;
  spec.causal = spec.sink = spec.strided = spec.invalid_pages = true;
  expect_both(spec);
  spec.query_tokens = 20;
  expect_both(spec);
  spec.format = KvFormat::kE4m3;
  spec.query_tokens = 3;
  expect_both(spec);
  spec.format = KvFormat::kPlain;
  spec.ragged_tokens = {2, 0, 1, 3, 12, 7, 1, 1};
  expect_both(spec);
}

TEST_P(Paged, RisingAndFallingScores) {
  for (const auto& [name, steps] : hard_score_steps()) {
    for (KvFormat format : {KvFormat::kPlain, KvFormat::kE4m3}) {
      for (int query_tokens : {1, 20}) {
        CaseSpec spec = gqa(8, 2, 128, {1500, 300});
        spec.name = name;
        spec.format = format;
        spec.query_tokens = query_tokens;
        spec.causal = true;
        spec.score_steps = steps;
        spec.step_tokens = ScoreSteps::kTokens;
        expect_both(spec);
      }
    }
  }
}

TEST_P(Paged, OneRequest) {
  for (int length : {0, 1, 130, 1000, 5000}) {
    CaseSpec spec = gqa(8, 2, 128, {length});
    expect_both(spec);
    spec.query_tokens = 3;
    spec.causal = spec.sink = true;
    expect_both(spec);
    spec.format = KvFormat::kE4m3;
    expect_both(spec);
  }
}

TEST_P(Paged, PageSizesStridesAndPagesThatAreNone) {
  for (int page_size : {1, 8, 16, 32, 61, 64, 128, 256}) {
    CaseSpec spec = gqa(4, 2, 80, {1, 130, 257});
    spec.page_size = page_size;
    expect_both(spec);
    spec.strided = spec.invalid_pages = true;
    spec.dtype = Dtype::kF16;
    expect_both(spec);
  }
}

TEST_P(Paged, Fp8ScalesOfTensorAndHead) {
  for (int scales : {0, 1, 4}) {
    for (int group : {1, 3, 20}) {
      for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
        CaseSpec spec = gqa(4 * group, 4, 128, {0, 130, 65});
        spec.format = KvFormat::kE4m3;
        spec.scales = scales;
        spec.dtype = dtype;
        // Without scales elements reach 448: scores stay as they are with them.
        expect_both(spec);
        spec.strided = true;
        spec.invalid_pages = true;
        expect_both(spec);
      }
    }
  }
}

TEST_P(Paged, ScoresCappedBiasedAndWindowed) {
  for (int heads : {4, 40}) {
    CaseSpec spec = gqa(heads, 2, 96, {0, 1, 200, 577});
    spec.logit_scale = 20;
    for (float cap : {1e-30F, 15.0F, 1e4F, 3e38F}) {
      spec.soft_cap = cap;
      expect_both(spec);
    }
    spec.soft_cap = 0;
    spec.logit_scale = 1;
    spec.alibi = true;
    expect_both(spec);
    spec.soft_cap = 30;
    for (int window : {1, 7, 64, 100, 576, 1000, std::numeric_limits<int>::max()}) {
      spec.window = window;
      expect_both(spec);
    }
  }
}

TEST_P(Paged, CausalQueryTokensAndWindows) {
  for (int tokens : {2, 3, 5, 100}) {
    for (int window : {0, 1, 4, 65}) {
      CaseSpec spec = gqa(6, 2, 64, {1, 2, 64, 65, 200});
      spec.query_tokens = tokens;
      spec.causal = true;
      spec.window = window;
      spec.alibi = true;
      expect_both(spec);
    }
  }
}

TEST_P(Paged, RaggedQueries) {
  CaseSpec spec = gqa(6, 2, 128, {300, 0, 65, 700, 1, 128, 64});
  spec.ragged_tokens = {2, 1, 0, 9, 1, 30, 64};
  spec.causal = true;
  spec.sink = true;
  expect_both(spec);
  spec.window = 70;
  expect_both(spec);
  spec.format = KvFormat::kE4m3;
  spec.scales = 2;
  expect_both(spec);
}

TEST_P(Paged, SplitsMergeAndSinksScale) {
  CaseSpec spec = gqa(8, 2, 128, {5000, 3});
  spec.sink = true;
  expect_both(spec);
  spec.format = KvFormat::kE4m3;
  spec.scales = 2;
  expect_both(spec);
  spec.lengths.assign(150, 66);
  spec.lengths[40] = 2500;
  expect_right(spec);
}

TEST_P(Paged, HugeScores) {
  CaseSpec spec = gqa(8, 2, 64, {200, 65});
  CaseSpec prompts = spec;
  prompts.query_tokens = 60;
  prompts.causal = true;
  for (float scale : kHugeLogits) {
    spec.logit_scale = prompts.logit_scale = scale;
    for (KvFormat format : {KvFormat::kPlain, KvFormat::kE4m3}) {
      spec.format = format;
      expect_both(spec);
    }
    expect_right(prompts);
  }
}

/// Pages that lie before every query token's window are not read: NaN in them changes nothing.
TEST_P(Paged, TokensBeforeTheWindowAreNotRead) {
  CaseSpec spec = gqa(4, 2, 64, {300});
  spec.query_tokens = 3;
  spec.causal = true;
  spec.window = 40;
  ASSERT_TRUE(taken(spec));
  RandomCase c = runtime::make_case(spec, 3);
  Contracts::expect_right(c, "before");
  DecodeRun clean = place(c, executor_);
  ASSERT_TRUE(clean.run().ok() && clean.fetch().ok());
  // The first of the three sees the tokens from 300 - 2 - 40 on.
  const auto* pages = static_cast<const std::int32_t*>(c.inputs.block_table.data);
  for (const ConstTensorView* view : {&c.inputs.key_cache, &c.inputs.value_cache}) {
    auto* elements = static_cast<std::uint16_t*>(const_cast<void*>(view->data));
    for (int t = 0; t < 300 - 2 - 40; ++t) {
      auto* row = elements + pages[t / 16] * view->strides[0] + t % 16 * view->strides[1];
      std::fill_n(row, view->strides[1], float_to_bf16(std::numeric_limits<float>::quiet_NaN()));
    }
  }
  DecodeRun poisoned = place(c, executor_);
  ASSERT_TRUE(poisoned.run().ok() && poisoned.fetch().ok());
  EXPECT_EQ(clean.out_bytes(), poisoned.out_bytes());
  EXPECT_EQ(clean.lse_bytes(), poisoned.lse_bytes());
}

/// What is not finite in a live key or value reaches the rows that see it, as what it is, and no others.
TEST_P(Paged, LiveNanAndInfinityReachTheOutput) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<bool, float>> poisons = {
      {false, kNan}, {true, kNan}, {true, kInfinity}, {true, -kInfinity}};  // in values?
  for (const auto& [in_values, poison] : poisons) {
    for (float cap : {0.0F, 20.0F}) {
      for (int heads : {4, 40}) {
        CaseSpec spec = gqa(heads, 2, 64, {130});
        spec.query_tokens = 2;
        spec.causal = true;
        spec.soft_cap = cap;
        spec.window = 100;
        ASSERT_TRUE(taken(spec));
        for (int token : {29, 30, 100, 128, 129}) {  // 30: the second row's first; 129: unseen by the first
          RandomCase c = runtime::make_case(spec, 4);
          const ConstTensorView& view = in_values ? c.inputs.value_cache : c.inputs.key_cache;
          const auto* pages = static_cast<const std::int32_t*>(c.inputs.block_table.data);
          auto* elements = static_cast<std::uint16_t*>(const_cast<void*>(view.data));
          elements[pages[token / 16] * view.strides[0] + token % 16 * view.strides[1]] =
              float_to_bf16(poison);
          if (!on_gpu()) Contracts::expect_right(c, "not finite");
          for (const char* kernel : {"gqa_16", "gqa_128_split", "gqa_128"}) {
            executor_.kernel = kernel;
            if (on_gpu() && taken(spec)) Contracts::expect_right(c, kernel);
          }
          executor_.kernel.clear();
        }
        executor_.kernel.clear();
      }
    }
  }
}

/// Many query tokens: whole prompts, chunks behind a cached prefix, more query tokens than tokens.
TEST_P(Paged, Prompts) {
  for (int d : {64, 72, 128, 192}) {
    for (int group : {1, 3, 8}) {
      CaseSpec spec = gqa(group, 1, d, {90, 0, 200});
      spec.query_tokens = 90;
      spec.causal = true;
      spec.dtype = group == 3 ? Dtype::kF16 : Dtype::kBF16;
      expect_right(spec);
      if (group == 8) continue;
      spec.causal = false;
      expect_both(spec);
    }
  }
}

TEST_P(Paged, PromptsInPages) {
  for (int page_size : {8, 24, 256}) {
    CaseSpec spec = gqa(4, 2, 80, {300, 130});
    spec.page_size = page_size;
    spec.query_tokens = 70;
    spec.causal = spec.sink = true;
    spec.strided = spec.invalid_pages = true;
    expect_right(spec);
    spec.window = 50;
    expect_right(spec);
    spec.window = 0;
    spec.query_tokens = 1;
    spec.ragged_tokens = {70, 41};
    expect_right(spec);
  }
}

/// The same of values and keys that are not finite, seen by the first, the last and all query tokens.
TEST_P(Paged, LiveNanAndInfinityInPrompts) {
  if (on_gpu()) executor_.kernel = "gqa_128";
  for (int token : {0, 60, 64, 199}) {
    for (float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity()}) {
      CaseSpec spec = gqa(2, 1, 64, {200});
      spec.query_tokens = 140;
      spec.causal = true;
      spec.window = token == 60 ? 80 : 0;
      ASSERT_TRUE(taken(spec));
      RandomCase c = runtime::make_case(spec, 4);
      const ConstTensorView& view = c.inputs.value_cache;
      const auto* pages = static_cast<const std::int32_t*>(c.inputs.block_table.data);
      auto* elements = static_cast<std::uint16_t*>(const_cast<void*>(view.data));
      elements[pages[token / 16] * view.strides[0] + token % 16 * view.strides[1] + 37] =
          float_to_bf16(poison);
      Contracts::expect_right(c, "prompt");
      if (HasFailure()) return;
    }
  }
}

TEST_P(Paged, SameBits) {
  CaseSpec spec = gqa(8, 2, 128, {3000, 1, 64});
  spec.alibi = true;
  ASSERT_TRUE(taken(spec));
  expect_same_bits(spec);
  spec.alibi = false;
  spec.lengths = {300, 40};
  spec.query_tokens = 40;
  spec.causal = true;
  if (on_gpu()) executor_.kernel = "gqa_128";
  expect_same_bits(spec);
}

/// Several query tokens of large groups, 17 to 300 rows a KV head: in splits, ragged, with each option.
TEST_P(Paged, SeveralQueryTokensOfLargeGroups) {
  struct Shape {
    int d, group, tokens;
  };
  for (const auto& [d, group, tokens] :
       {Shape{64, 16, 2}, Shape{96, 8, 4}, Shape{128, 7, 8}, Shape{256, 48, 2}, Shape{128, 75, 4}}) {
    CaseSpec spec = gqa(2 * group, 2, d, {900, 2, 64, 0, 129});
    spec.page_size = 64;
    spec.query_tokens = tokens;
    spec.causal = true;
    spec.dtype = d == 96 ? Dtype::kF16 : Dtype::kBF16;
    expect_right(spec);
    spec.sink = spec.strided = spec.invalid_pages = true;
    spec.ragged_tokens = {tokens, 0, 1, tokens - 1, 1};
    expect_right(spec);
    spec.window = 300;
    spec.alibi = group != 16;
    spec.soft_cap = group == 8 ? 20.0F : 0.0F;
    expect_right(spec);
  }
}

/// With a plan that was made for other lengths; and in a batch that a request must not feel.
TEST_P(Paged, PlansOfSeveralQueryTokensOutliveLengths) {
  CaseSpec planned = gqa(32, 1, 128, {1900, 64, 1});
  planned.query_tokens = 2;
  planned.causal = true;
  if (on_gpu()) executor_.kernel = "gqa_128_split";
  expect_same_bits(planned);
  const RandomCase longer = runtime::make_case(planned, 2);
  RandomCase shorter = longer;
  const std::int32_t fewer[] = {190, 3, 0};
  shorter.inputs.cache_seqlens.data = fewer;
  expect_right_with_plan_of(longer, shorter, "fewer tokens");
  expect_right_with_plan_of(shorter, longer, "more tokens");
  planned.batch_invariant = true;
  expect_batch_invariant(planned);
}

TEST_P(Paged, BatchInvariant) {
  CaseSpec spec = gqa(8, 2, 128, {4500, 3, 64, 2100});
  spec.batch_invariant = true;
  ASSERT_TRUE(taken(spec));
  expect_batch_invariant(spec);
  spec.window = 2200;
  expect_batch_invariant(spec);
  spec.lengths = {300, 3, 40};
  spec.query_tokens = 20;
  spec.causal = true;
  expect_batch_invariant(spec);
}

}  // namespace
}  // namespace flashlatent
