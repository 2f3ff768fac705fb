// What a result may differ by: the CPU's own passes, a damaged one does not.
#include "runtime/compare.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/element.h"
#include "runtime/decode_run.h"
#include "runtime/random_case.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;

/// Results that can be changed.
struct Results {
  explicit Results(const runtime::DecodeRun& run)
      : out_view(run.out()), lse_view(run.lse()), out(run.out().elements()), lse(run.lse().elements()) {
    std::memcpy(out.data(), out_view.data, out.size() * sizeof(out[0]));
    std::memcpy(lse.data(), lse_view.data, lse.size() * sizeof(lse[0]));
    out_view.data = out.data();
    lse_view.data = lse.data();
  }
  /// Of row `row` of out, by some units of its last digit.
  void scale_row(std::int64_t row, float factor, int v_dim) {
    for (std::int64_t i = row * v_dim; i < (row + 1) * v_dim; ++i) {
      out[i] = from_float(to_float(out[i], out_view.dtype) * factor, out_view.dtype);
    }
  }

  ConstTensorView out_view, lse_view;
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};

/// One token, few and many; values long and short; few columns.
std::vector<CaseSpec> specs() {
  std::vector<CaseSpec> specs;
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (bool sink : {false, true}) {
      for (int length : {1, 3, 500}) {
        specs.push_back({.name = "latent", .dtype = dtype, .heads = 8, .lengths = {length}, .sink = sink});
        specs.push_back({.name = "separate",
                         .dtype = dtype,
                         .layout = KvLayout::kSeparate,
                         .heads = 8,
                         .qk_dim = 16,
                         .v_dim = 16,
                         .lengths = {length},
                         .sink = sink});
      }
    }
  }
  return specs;
}

TEST(Compare, ADamagedRowIsFound) {
  for (const CaseSpec& spec : specs()) {
    const runtime::RandomCase c = runtime::make_case(spec, 3);
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, {});
    ASSERT_TRUE(run.ok() && run->run().ok() && run->fetch().ok());
    const auto judged = [&](const Results& r) {
      return runtime::compare(c.problem, c.inputs, r.out_view, r.lse_view);
    };
    EXPECT_TRUE(judged(Results(*run)).ok()) << spec.name << runtime::to_string(judged(Results(*run)));
    const float eps = spec.dtype == Dtype::kBF16 ? 0x1p-9F : 0x1p-12F;
    // A head whose sink is +inf has nothing but zeros.
    for (int row : {0, 7}) {
      Results out(*run);
      out.scale_row(row, 1 + 4 * eps, spec.v_dim);
      EXPECT_EQ(judged(out).wrong_rows, 1) << to_string(c.problem) << ", row " << row;
      Results lse(*run);
      lse.lse[row] += 1e-3F;
      EXPECT_EQ(judged(lse).wrong_rows, 1) << to_string(c.problem) << ", row " << row;
      Results column(*run);
      column.out[row * spec.v_dim + 5] = from_float(1000, spec.dtype);
      EXPECT_EQ(judged(column).wrong_rows, 1) << to_string(c.problem) << ", row " << row;
    }
  }
}

// By rounding alone a score of some 1e5 is off by some hundredths, its softmax by as much, and what a sink
// leaves of out: by another order of summation than the plain computation's, which may be off by less.
TEST(Compare, RoundedScoresAreNoErrors) {
  for (bool sink : {false, true}) {
    const runtime::RandomCase c =
        runtime::make_case({.heads = 64, .lengths = {5, 40}, .sink = sink, .logit_scale = 1e5F}, 3);
    Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, {});
    ASSERT_TRUE(run.ok() && run->run().ok() && run->fetch().ok());
    const auto result = runtime::compare(c.problem, c.inputs, run->out(), run->lse());
    EXPECT_TRUE(result.ok()) << runtime::to_string(result);
  }
}

}  // namespace
}  // namespace flashlatent
