// Ragged queries over latent caches whose query tokens attend to tokens of their own: to a window, or to two
// caches in one softmax. On every backend that is there, and by every kernel that takes a format.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "contracts.h"
#include "core/element.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class RaggedWindow : public Contracts {
 protected:
  /// Calls `use` by each kernel of the backend that takes the problem.
  template <class Use>
  void by_each_kernel(const CaseSpec& spec, Use use) {
    if (!taken(spec)) return;
    if (!on_gpu()) return use(spec);
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != GetParam() || !should_take(kernel.name, runtime::problem_of(spec))) continue;
      executor_.kernel = kernel.name;
      CaseSpec named = spec;
      named.name += std::string(" by ") + kernel.name;
      EXPECT_TRUE(taken(named));
      use(named);
    }
    executor_.kernel.clear();
  }
  void check(const CaseSpec& spec) {
    by_each_kernel(spec, [&](const CaseSpec& named) { expect_right(named); });
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, RaggedWindow, kBackends, backend_name);

CaseSpec latent(const char* name, KvFormat format, int qk_dim, Dtype dtype = Dtype::kBF16) {
  CaseSpec spec = {.name = name, .dtype = dtype, .format = format, .qk_dim = qk_dim, .v_dim = 512};
  spec.scales = format == KvFormat::kE4m3 ? 1 : 0;
  return spec;
}

/// Every latent format, and the kinds of products and queries that e4m3 has.
std::vector<CaseSpec> formats() {
  std::vector<CaseSpec> specs = {latent("bf16", KvFormat::kPlain, 512),
                                 latent("fp16", KvFormat::kPlain, 512, Dtype::kF16),
                                 latent("fp8_656", KvFormat::kFp8_656, 576),
                                 latent("fp8_656 without RoPE", KvFormat::kFp8_656, 512),
                                 latent("fp8_584", KvFormat::kFp8_584, 512),
                                 latent("e4m3", KvFormat::kE4m3, 576),
                                 latent("e4m3 without RoPE", KvFormat::kE4m3, 512),
                                 latent("e4m3 products", KvFormat::kE4m3, 576),
                                 latent("e4m3 queries", KvFormat::kE4m3, 512)};
  specs[7].products = Products::kFp8;
  specs[8].e4m3_query = true;
  specs[8].query_scales = 1;
  return specs;
}

/// Seven requests of up to five query tokens; one has none, some see no or one token.
CaseSpec drafts(CaseSpec spec, int heads, int window) {
  spec.heads = heads;
  spec.lengths = {5, 100, 64, 700, 0, 3, 130};
  spec.ragged_tokens = {1, 3, 0, 2, 1, 5, 2};
  spec.causal = true;
  spec.window = window;
  return spec;
}

/// The same over two caches.
CaseSpec with_extra(CaseSpec spec) {
  spec.extra_lengths = {90, 0, 7, 300, 64, 1, 0};
  spec.extra_page_size = 2;
  return spec;
}

TEST_P(RaggedWindow, EveryFormat) {
  for (const CaseSpec& format : formats()) {
    for (int heads : {1, 16, 40, 80}) check(drafts(format, heads, 33));
    for (int window : {1, 64, 65, 1000}) check(drafts(format, 3, window));
  }
  check(drafts(latent("bf16 with RoPE", KvFormat::kPlain, 576), 12, 33));
}

TEST_P(RaggedWindow, TwoCaches) {
  for (const CaseSpec& format : formats()) {
    for (int heads : {3, 70}) {
      check(with_extra(drafts(format, heads, heads == 3 ? 70 : 0)));
    }
  }
}

TEST_P(RaggedWindow, OptionsAndStrides) {
  for (const CaseSpec& format : formats()) {
    for (bool causal : {false, true}) {
      CaseSpec spec = drafts(format, 7, 50);
      spec.causal = causal;
      spec.page_size = causal ? 3 : 256;
      spec.sink = spec.invalid_pages = spec.strided = true;
      check(spec);
    }
  }
}

/// Items that parts share, and many that requests lack.
TEST_P(RaggedWindow, Splits) {
  for (const CaseSpec& format : formats()) {
    CaseSpec spec = drafts(format, 5, 4000);
    spec.lengths = {6000, 20, 300};
    spec.ragged_tokens = {2, 0, 1};
    spec.sink = true;
    check(spec);
  }
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_584}) {  // tiles of 64 rows, two of a token
    CaseSpec spec = drafts(latent("two tiles", format, 512), 70, 2000);
    spec.lengths = {3000, 20, 300};
    spec.ragged_tokens = {1, 0, 2};
    check(spec);
  }
  CaseSpec prompt = drafts(latent("a prompt", KvFormat::kFp8_584, 512), 4, 100);
  prompt.lengths.assign(40, 150);
  prompt.ragged_tokens.assign(40, 1);
  prompt.ragged_tokens[11] = 90;
  prompt.ragged_tokens[39] = 0;
  check(prompt);
}

/// A request's bits are the same whatever the others are, and how many query tokens they have.
TEST_P(RaggedWindow, BatchInvariant) {
  for (const CaseSpec& format : formats()) {
    CaseSpec spec = drafts(format, 3, 2200);
    spec.lengths = {2600, 64, 2100};
    spec.ragged_tokens = {2, 0, 3};
    spec.batch_invariant = true;
    by_each_kernel(spec, [&](const CaseSpec& named) {
      const RandomCase all = runtime::make_case(named, 3);
      expect_right(all, named.name);
      RandomCase first = all;
      first.problem.query.batch = 1;
      first.inputs.q.shape[0] = 2;
      first.inputs.cu_seqlens_q.shape[0] = 2;
      first.inputs.block_table.shape[0] = first.inputs.cache_seqlens.shape[0] = 1;
      DecodeRun run = place(all, executor_), lone = place(first, executor_);
      ASSERT_TRUE(run.run().ok() && lone.run().ok() && run.fetch().ok() && lone.fetch().ok());
      EXPECT_EQ(0, std::memcmp(run.out().data, lone.out().data, std::size_t{2} * 3 * 512 * 2)) << named.name;
    });
  }
}

TEST_P(RaggedWindow, ContextsThatRanksShare) {
  for (const CaseSpec& format : formats()) {
    for (const ContextShard& shard : {ContextShard{1, 2, 1}, ContextShard{0, 3, 64}}) {
      CaseSpec spec = drafts(format, 3, 90);
      spec.shard = shard;
      check(spec);
      check(with_extra(spec));
    }
  }
}

/// Results do not depend on when the plan was made: with other lengths and other query tokens.
TEST_P(RaggedWindow, PlansOfOtherQueryTokens) {
  for (const CaseSpec& format : formats()) {
    CaseSpec spec = drafts(format, 3, 1000);
    spec.lengths = {1500, 20, 400, 1100};
    spec.ragged_tokens = {3, 0, 1, 2};
    by_each_kernel(spec, [&](const CaseSpec& named) {
      CaseSpec other = named;
      other.lengths = {0, 1500, 64, 1200};
      other.ragged_tokens = {1, 3, 2, 0};
      const RandomCase used = runtime::make_case(named, 2), planned = runtime::make_case(other, 1);
      ASSERT_EQ(used.problem, planned.problem);
      expect_right_with_plan_of(planned, used, named.name);
      RandomCase unknown = used;  // a plan that knows of no query tokens
      DecodeRun plan_run = place(unknown, executor_), run = place(used, executor_);
      ASSERT_TRUE(flashlatent::plan(plan_run.problem(), plan_run.inputs().cache_seqlens,
                                    plan_run.plan_memory(), executor_)
                      .ok());
      ASSERT_TRUE(flashlatent::decode(run.problem(), run.inputs(), run.outputs(), plan_run.plan_memory(),
                                      run.workspace_memory(), executor_)
                      .ok());
      ASSERT_TRUE(run.fetch().ok());
      const auto result = runtime::compare(used.problem, used.inputs, run.out(), run.lse());
      EXPECT_TRUE(result.ok()) << named.name << ": " << runtime::to_string(result);
    });
  }
}

TEST_P(RaggedWindow, NoQueryTokenAtAll) {
  for (const CaseSpec& format : formats()) {
    CaseSpec spec = drafts(format, 16, 33);
    spec.ragged_tokens.assign(spec.lengths.size(), 0);
    check(spec);
  }
}

TEST_P(RaggedWindow, SameBitsEachTime) {
  for (const CaseSpec& format : formats()) {
    CaseSpec spec = drafts(format, 40, 500);
    spec.lengths[1] = 4000;
    by_each_kernel(spec, [&](const CaseSpec& named) { expect_same_bits(named); });
  }
}

/// Neighbours of a query token in q are other requests', or tokens that see other tokens: NaN there stays
/// there.
TEST_P(RaggedWindow, NeighboursAreNotFelt) {
  for (const CaseSpec& format : formats()) {
    CaseSpec spec = drafts(format, 24, 50);
    by_each_kernel(spec, [&](const CaseSpec& named) {
      const RandomCase c = runtime::make_case(named, 5);
      auto row_of = [&](const RandomCase& used) {
        DecodeRun run = place(used, executor_);
        EXPECT_TRUE(run.run().ok() && run.fetch().ok());
        const auto begin = run.out_bytes().begin() + std::ptrdiff_t{2} * 24 * 512 * 2;
        return std::vector<std::uint8_t>(begin, begin + std::ptrdiff_t{24} * 512 * 2);
      };
      const auto before = row_of(c);
      const ConstTensorView& q = c.inputs.q;
      auto* bytes = static_cast<std::uint8_t*>(const_cast<void*>(q.data));
      const std::size_t token = q.strides[0] * size_of(q.dtype);
      for (std::size_t t = 0; t < static_cast<std::size_t>(q.shape[0]); ++t) {
        if (t != 2) std::memset(bytes + t * token, 0xFF, token);  // NaN in every dtype
      }
      const auto after = row_of(c);
      int differ = 0;
      float largest = 0;
      for (std::size_t i = 0; i < before.size(); i += 2) {
        const auto value = [&](const std::vector<std::uint8_t>& row) {
          std::uint16_t bits;
          std::memcpy(&bits, row.data() + i, 2);
          return to_float(bits, named.dtype);
        };
        if (std::memcmp(before.data() + i, after.data() + i, 2) == 0) continue;
        ++differ;
        largest = std::max(largest, std::abs(value(before) - value(after)));
        EXPECT_FALSE(std::isnan(value(after))) << named.name << ", element " << i / 2;
      }
      EXPECT_EQ(differ, 0) << named.name << ": elements differ by up to " << largest;
    });
  }
}

TEST_P(RaggedWindow, IndicesOfAnExtraCacheAreRefused) {
  DecodeProblem problem = runtime::problem_of(with_extra(drafts(formats()[4], 8, 70)));
  ASSERT_TRUE(validate(problem).ok());
  problem.cache.extra = {.enabled = true, .indexed = true, .page_size = 2, .topk = 8};
  EXPECT_NE(validate(problem).message().find("q is ragged; then an extra cache goes by extra_block_table"),
            std::string::npos);
}

}  // namespace
}  // namespace flashlatent
