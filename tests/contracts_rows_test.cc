// A query row's bits depend on nothing that other rows hold, though kernels compute many rows together: not
// on NaN there, not on scores so large that they are rounded otherwise, not on when the maxima of others
// rise. On every backend that is there, and by every kernel that takes a format. Only mla_64_roles rounds a
// row's scores as rows beside it need (docs/numerics.md).
#include <cstring>

#include "contracts.h"
#include "core/element.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

constexpr int kToken = 1;  // the query token that stays as it is

/// What other query tokens' rows become.
enum class Others { kNan, kLarge, kSmall };
constexpr Others kOthers[] = {Others::kNan, Others::kLarge, Others::kSmall};

/// Scores of thousands are past those that kernels scale by one operation.
std::uint16_t changed(std::uint16_t x, Dtype dtype, Others others) {
  if (others == Others::kNan) return 0xFFFF;
  return from_float(to_float(x, dtype) * (others == Others::kLarge ? 512.0F : 0.0625F), dtype);
}
std::uint8_t changed(std::uint8_t x, Others others) {
  return others == Others::kNan ? 0xFF : others == Others::kLarge ? 0x7E : x & 0x80;
}

class Rows : public Contracts {
 protected:
  static RandomCase with_others(const RandomCase& c, Others others) {
    RandomCase result = c;
    std::vector<std::uint8_t>& bytes = result.storage.emplace_back();
    ConstTensorView& q = result.inputs.q;
    const std::int64_t elements = q.shape[0] * q.shape[1] * q.shape[2] * q.shape[3];
    const auto* from = static_cast<const std::uint8_t*>(q.data);
    bytes.assign(from, from + elements * size_of(q.dtype));
    q.data = bytes.data();
    for (std::int64_t i = 0; i < elements; ++i) {
      if (i / (q.shape[2] * q.shape[3]) % q.shape[1] == kToken) continue;
      if (q.dtype == Dtype::kU8) {
        bytes[i] = changed(bytes[i], others);
      } else {
        auto* words = reinterpret_cast<std::uint16_t*>(bytes.data());
        words[i] = changed(words[i], q.dtype, others);
      }
    }
    return result;
  }

  /// out and lse of the query token that stays as it is.
  std::vector<std::uint8_t> token_of(const RandomCase& c) {
    DecodeRun run = place(c, executor_);
    EXPECT_TRUE(run.run().ok() && run.fetch().ok());
    std::vector<std::uint8_t> bits;
    const auto add = [&](const void* from, std::size_t bytes) {
      bits.insert(bits.end(), static_cast<const std::uint8_t*>(from),
                  static_cast<const std::uint8_t*>(from) + bytes);
    };
    const ConstTensorView out = run.out(), lse = run.lse();
    for (int request = 0; request < c.problem.query.batch; ++request) {
      for (int head = 0; head < c.problem.query.heads; ++head) {
        const auto* row = static_cast<const std::uint16_t*>(out.data) + request * out.strides[0] +
                          kToken * out.strides[1] + head * out.strides[2];
        add(row, c.problem.cache.v_dim * sizeof(*row));
        add(static_cast<const float*>(lse.data) + request * lse.strides[0] + head * lse.strides[1] +
                kToken * lse.strides[2],
            sizeof(float));
      }
    }
    return bits;
  }

  void expect_unfelt(const RandomCase& c, const std::string& name) {
    const std::vector<std::uint8_t> before = token_of(c);
    for (Others others : kOthers) {
      if (others != Others::kSmall && executor_.kernel == "mla_64_roles") continue;
      const std::vector<std::uint8_t> after = token_of(with_others(c, others));
      std::size_t differ = 0;
      for (std::size_t i = 0; i < before.size(); ++i) differ += before[i] != after[i];
      EXPECT_EQ(differ, 0U) << name << " " << executor_.kernel << ": bytes of " << before.size()
                            << " that differ where other tokens' rows are "
                            << (others == Others::kNan     ? "NaN"
                                : others == Others::kLarge ? "large"
                                                           : "small");
    }
  }

  /// By each kernel of the backend that takes the problem.
  void check(const CaseSpec& spec) {
    if (!taken(spec)) return;
    const RandomCase c = runtime::make_case(spec, 6);
    if (!on_gpu()) return expect_unfelt(c, spec.name);
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != GetParam() || !should_take(kernel.name, c.problem)) continue;
      executor_.kernel = kernel.name;
      EXPECT_TRUE(taken(spec));
      expect_unfelt(c, spec.name);
    }
    executor_.kernel.clear();
  }

  /// Scores that vary little, and those after which a base has to move.
  void check_tokens(CaseSpec spec, int heads) {
    spec.heads = heads;
    spec.query_tokens = 3;
    spec.causal = true;
    spec.lengths = {5, 100, 700, 1500};
    check(spec);
    spec.name += " whose scores rise";
    spec.score_steps = hard_score_steps()[1].steps;
    spec.step_tokens = ScoreSteps::kTokens;
    check(spec);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Rows, kBackends, backend_name);

CaseSpec latent(const char* name, KvFormat format, int qk_dim, Dtype dtype = Dtype::kBF16) {
  CaseSpec spec = {.name = name, .dtype = dtype, .format = format, .qk_dim = qk_dim, .v_dim = 512};
  spec.scales = format == KvFormat::kE4m3 ? 1 : 0;
  return spec;
}

TEST_P(Rows, OfPlainLatents) {
  for (int heads : {2, 5, 40}) {
    check_tokens(latent("bf16", KvFormat::kPlain, 576), heads);
    check_tokens(latent("fp16", KvFormat::kPlain, 576, Dtype::kF16), heads);
    check_tokens(latent("fp16 of 512", KvFormat::kPlain, 512, Dtype::kF16), heads);
  }
}

TEST_P(Rows, OfFp8Latents) {
  for (int heads : {5, 40}) {
    check_tokens(latent("fp8_656", KvFormat::kFp8_656, 576), heads);
    check_tokens(latent("fp8_656 without RoPE", KvFormat::kFp8_656, 512), heads);
    check_tokens(latent("fp8_584", KvFormat::kFp8_584, 512), heads);
  }
}

TEST_P(Rows, OfE4m3Latents) {
  CaseSpec products = latent("e4m3 products", KvFormat::kE4m3, 576);
  products.products = Products::kFp8;
  CaseSpec queries = latent("e4m3 queries", KvFormat::kE4m3, 512);
  queries.e4m3_query = true;
  queries.query_scales = 1;
  for (int heads : {5, 40}) {
    check_tokens(latent("e4m3", KvFormat::kE4m3, 576), heads);
    check_tokens(products, heads);
    check_tokens(queries, heads);
  }
}

TEST_P(Rows, OfSeparateKeysAndValues) {
  CaseSpec spec = {.name = "separate", .layout = KvLayout::kSeparate, .kv_heads = 2, .qk_dim = 128};
  spec.v_dim = 128;
  spec.page_size = 16;
  for (int heads : {8, 24}) {
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      spec.dtype = dtype;
      check_tokens(spec, heads);
    }
    CaseSpec e4m3 = spec;
    e4m3.name = "separate e4m3";
    e4m3.dtype = Dtype::kBF16;
    e4m3.format = KvFormat::kE4m3;
    e4m3.scales = 1;
    check_tokens(e4m3, heads);
  }
}

}  // namespace
}  // namespace flashlatent
