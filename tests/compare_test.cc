// What a result may differ by: the CPU's own passes, a damaged one does not.
#include "runtime/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/element.h"
#include "cpu/reference.h"
#include "runtime/decode_run.h"
#include "runtime/layer_edges.h"
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
  /// Scales row `row` of out, by some units of its last digit.
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

// Remembered rows are those of the same inputs only, though they lie at the same place.
TEST(Compare, RowsAreRememberedByInputs) {
  runtime::RandomCase c = runtime::make_case({.heads = 8, .lengths = {70, 130}}, 3);
  const runtime::RandomCase copy = runtime::make_case({.heads = 8, .lengths = {70, 130}}, 3);
  Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, {});
  ASSERT_TRUE(run.ok() && run->run().ok() && run->fetch().ok());
  runtime::OracleMemory memory;
  const auto wrong_rows = [&](runtime::RowSample sample = {}) {
    return runtime::compare(c.problem, c.inputs, run->out(), run->lse(), {}, {}, sample, {}, {}, &memory)
        .wrong_rows;
  };
  EXPECT_EQ(wrong_rows({.first = 0, .stride = 3}), 0);
  const auto remembered = [&](const runtime::RandomCase& of) {
    const runtime::OracleMemory::Rows& rows = memory.rows_of(of.problem, of.inputs);
    return rows.size() - static_cast<std::size_t>(std::count(rows.begin(), rows.end(), nullptr));
  };
  EXPECT_EQ(remembered(copy), 6U);
  EXPECT_EQ(wrong_rows(), 0);
  EXPECT_EQ(remembered(copy), 16U);
  auto* elements = const_cast<std::uint16_t*>(static_cast<const std::uint16_t*>(c.inputs.kv_cache.data));
  const auto* pages = static_cast<const std::int32_t*>(c.inputs.block_table.data);
  std::uint16_t& element = elements[pages[0] * c.inputs.kv_cache.strides[0] + 5];  // of the first request
  const std::uint16_t before = std::exchange(element, float_to_bf16(100));
  EXPECT_EQ(wrong_rows(), 8);
  element = before;
  EXPECT_EQ(wrong_rows(), 0);
  c.problem.options.softmax_scale *= 2;
  EXPECT_EQ(wrong_rows(), 16);
}

// The oracle reads a token once for several heads.
TEST(Compare, HeadsTogetherAreAsAlone) {
  for (const CaseSpec& spec : {CaseSpec{.heads = 6, .lengths = {70}, .sink = true},
                               {.format = KvFormat::kE4m3,
                               .scales = 1,
                               .e4m3_query = true,
                               .query_scales = 6,
                               .heads = 6,
                               .lengths = {70}},
                               {.format = KvFormat::kE4m3,
                               .layout = KvLayout::kPacked,
                               .scales = 2,
                               .heads = 12,
                               .kv_heads = 2,
                               .qk_dim = 64,
                               .v_dim = 64,
                               .lengths = {70},
                               .alibi = true}}) {
    const runtime::RandomCase c = runtime::make_case(spec, 4);
    for (int kv_head = 0; kv_head < spec.kv_heads; ++kv_head) {
      std::vector<int> heads(6);
      std::iota(heads.begin(), heads.end(), 6 * kv_head);
      const std::vector<cpu::ReferenceRow> rows = cpu::reference_rows(c.problem, c.inputs, 0, 0, heads);
      ASSERT_EQ(rows.size(), heads.size());
      for (std::size_t i = 0; i < heads.size(); ++i) {
        const cpu::ReferenceRow alone = cpu::reference_row(c.problem, c.inputs, 0, 0, heads[i]);
        EXPECT_EQ(rows[i].out, alone.out);
        EXPECT_EQ(rows[i].lse, alone.lse);
        EXPECT_EQ(rows[i].plain_out, alone.plain_out);
        EXPECT_EQ(rows[i].out_rounding, alone.out_rounding);
        EXPECT_EQ(rows[i].lse_rounding, alone.lse_rounding);
      }
    }
  }
}

/// Caches whose elements are products, which reading rounds.
std::vector<CaseSpec> specs_of_products() {
  std::vector<CaseSpec> specs;
  for (int length : {3, 60}) {
    specs.push_back({.name = "fp8_656", .format = KvFormat::kFp8_656, .lengths = {length}});
    specs.push_back({.name = "e4m3", .format = KvFormat::kE4m3, .scales = 1, .lengths = {length}});
    specs.push_back({.name = "separate e4m3",
                     .format = KvFormat::kE4m3,
                     .layout = KvLayout::kSeparate,
                     .scales = 1,
                     .qk_dim = 64,
                     .v_dim = 64,
                     .lengths = {length},
                     .sink = true});
  }
  return specs;
}

// What a row may differ by comes from what plain code's error is expected to be: that of many rows must come
// out so, few tokens or many, long rows or short ones, and where a cache's elements are rounded.
TEST(Compare, ExpectedErrorIsPlainCodes) {
  std::vector<CaseSpec> all = specs_of_products();
  for (CaseSpec& spec : specs()) {
    if (spec.lengths[0] == 1) continue;  // P is 1, and the result a value: nothing rounds
    if (spec.layout == KvLayout::kLatent) spec.qk_dim = 128, spec.v_dim = 64;
    all.push_back(std::move(spec));
  }
  for (CaseSpec& spec : all) {
    spec.heads = 32;
    double ratio2 = 0;
    int rows = 0;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const runtime::RandomCase c = runtime::make_case(spec, seed);
      for (int head = 0; head < spec.heads; ++head) {
        const cpu::ReferenceRow row = cpu::reference_row(c.problem, c.inputs, 0, 0, head);
        if (row.out_rounding == 0) continue;  // a sink of +inf
        double error2 = 0;
        for (int d = 0; d < spec.v_dim; ++d) {
          error2 += (row.plain_out[d] - row.out[d]) * (row.plain_out[d] - row.out[d]);
        }
        ratio2 += error2 / (row.out_rounding * row.out_rounding);
        ++rows;
      }
    }
    EXPECT_NEAR(std::sqrt(ratio2 / rows), 1, 0.2) << spec.name << " of " << spec.lengths[0] << " tokens";
  }
}

// Scores of hundreds that add up to little are off by what sums in fp32 lose. One number's error is no
// average: a sum in any order must be within what is allowed, as lse and as the largest score.
TEST(Compare, SumsInAnyOrderAreRight) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (float scale : {100.0F, 200.0F}) {
      CaseSpec spec = {.dtype = dtype, .heads = 64, .logit_scale = scale};
      spec.lengths.assign(64, 1);
      const runtime::RandomCase c = runtime::make_case(spec, 5);
      Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, {});
      ASSERT_TRUE(run.ok() && run->run().ok() && run->fetch().ok());
      const auto* q = static_cast<const std::uint16_t*>(c.inputs.q.data);
      const auto* cache = static_cast<const std::uint16_t*>(c.inputs.kv_cache.data);
      const auto* pages = static_cast<const std::int32_t*>(c.inputs.block_table.data);
      std::mt19937 random(7);
      std::vector<int> order(spec.qk_dim);
      std::iota(order.begin(), order.end(), 0);
      for (int i = 0; i < 4; ++i) {
        std::shuffle(order.begin(), order.end(), random);
        Results shuffled(*run);
        for (int row = 0; row < 64 * 64; ++row) {
          const auto* key =
              cache + pages[row / 64 * c.inputs.block_table.strides[0]] * c.inputs.kv_cache.strides[0];
          float sum = 0;
          for (int d : order) {
            sum += to_float(q[row * spec.qk_dim + d], dtype) * to_float(key[d], dtype);
          }
          shuffled.lse[row] = sum * c.problem.options.softmax_scale;
        }
        const runtime::Comparison comparison =
            runtime::compare(c.problem, c.inputs, shuffled.out_view, shuffled.lse_view, {}, {}, {},
                             {.got = shuffled.lse_view, .reference = {}});
        EXPECT_TRUE(comparison.ok()) << runtime::to_string(comparison);
      }
    }
  }
}

/// An output that is turned back and cast, from its run.
struct Edged {
  runtime::RandomCase made;
  std::optional<runtime::DecodeRun> run;

  explicit Edged(int scale_columns)
      : made(runtime::make_case({.name = "edges",
                                 .heads = 8,
                                 .lengths = {0, 70, 300},
                                 .edges = {.norm = 1e-6F,
                                           .q_columns = 64,
                                           .out_columns = 64,
                                           .fp8_columns = scale_columns,
                                           .fp8_groups = 2}},
                                4)) {
    Result<runtime::DecodeRun> placed = runtime::DecodeRun::create(made.problem, made.inputs, Executor{},
                                                                   {.columns = scale_columns, .groups = 2});
    if (!placed.ok()) throw std::runtime_error(placed.status().message());
    run.emplace(std::move(*placed));
    EXPECT_TRUE(run->run().ok() && run->fetch().ok());
  }
  runtime::Comparison compare(const Fp8Output& fp8) const {
    return runtime::compare(made.problem, made.inputs, run->out(), run->lse(), {}, {}, {}, {}, fp8);
  }
};

// The oracle knows edges, and finds what is wrong in an FP8 output.
TEST(Compare, OutputsWithEdges) {
  for (const int scale_columns : {128, 32}) {
    const Edged edged(scale_columns);
    const runtime::Comparison right = edged.compare(edged.run->fp8());
    EXPECT_TRUE(right.ok()) << runtime::to_string(right);

    // Row 13 is query head 5 of the second request: of the second group, the columns from 512 on.
    std::vector<std::uint8_t> bytes = edged.run->fp8_bytes();
    Fp8Output damaged = edged.run->fp8();
    const std::int64_t codes = damaged.codes.elements();
    damaged.codes.data = bytes.data();
    damaged.scales.data = bytes.data() + codes;
    std::uint8_t* row = bytes.data() + damaged.codes.strides[0] + damaged.codes.strides[1] + 512;
    for (int i = 0; i < 512; ++i) row[i] ^= 1;  // each by one step
    const runtime::Comparison steps = edged.compare(damaged);
    EXPECT_EQ(steps.wrong_rows, 1);
    EXPECT_NE(runtime::to_string(steps).find("request 1, query token 0, query head 5, column "),
              std::string::npos);
    EXPECT_NE(runtime::to_string(steps).find(": out_fp8 is "), std::string::npos)
        << runtime::to_string(steps);
    for (int i = 0; i < 512; ++i) row[i] ^= 1;
    EXPECT_TRUE(edged.compare(damaged).ok());

    // The scale of its columns 128 to 255 (32: 128 to 159), times four.
    const std::int64_t line = 512 / 128 + 1, padded = damaged.scales.shape[2];
    std::uint8_t* scale = bytes.data() + codes + 4 * ((damaged.scales.shape[1] + line) * padded + 1);
    if (scale_columns == 32) {
      *scale += 2;
    } else {
      float value;
      std::memcpy(&value, scale, 4);
      value *= 4;
      std::memcpy(scale, &value, 4);
    }
    const std::string scales = runtime::to_string(edged.compare(damaged));
    EXPECT_NE(scales.find("query head 5, column 128: out_fp8's scale is "), std::string::npos) << scales;

    // An output that is not turned back, or turned the other way.
    const runtime::RandomCase& made = edged.made;
    const Rotation rotations[] = {Rotation{}, made.inputs.q_rotate};
    for (const Rotation& rotation : rotations) {
      DecodeInputs other = made.inputs;
      other.out_rotate = rotation;
      const runtime::Comparison comparison = runtime::compare(
          made.problem, other, edged.run->out(), edged.run->lse(), {}, {}, {}, {}, edged.run->fp8());
      EXPECT_EQ(comparison.wrong_rows, 16) << runtime::to_string(comparison);  // all that are not empty
    }
  }
}

// A scale leaves out values that become infinite: here the first column pair that is turned back.
TEST(Compare, ScalesLeaveOutWhatOverflows) {
  runtime::EdgeSpec edges;
  edges.out_columns = 64;
  edges.fp8_columns = 128;
  const runtime::RandomCase made = runtime::make_case({.heads = 64, .lengths = {5, 5, 5}, .edges = edges}, 3);
  const ConstTensorView& table = made.inputs.out_rotate.table;
  auto* const angles = static_cast<float*>(const_cast<void*>(table.data));  // of make_case()'s own memory
  int infinite = 0;
  for (const float factor : {20.0F, 30.0F, 40.0F}) {
    for (std::int64_t i = 0; i < table.shape[0]; ++i) angles[i * table.strides[0]] = 1e37F * factor;
    Result<runtime::DecodeRun> run =
        runtime::DecodeRun::create(made.problem, made.inputs, {Backend::kCpu}, runtime::request_of(edges));
    ASSERT_TRUE(run.ok() && run->run().ok() && run->fetch().ok());
    const auto* out = static_cast<const std::uint16_t*>(run->out().data);
    for (std::int64_t i = 0; i < run->out().elements(); ++i) {
      infinite += std::isinf(to_float(out[i], Dtype::kBF16));
    }
    const runtime::Comparison comparison =
        runtime::compare(made.problem, made.inputs, run->out(), run->lse(), {}, {}, {}, {}, run->fp8());
    EXPECT_TRUE(comparison.ok()) << factor << ": " << runtime::to_string(comparison);
  }
  EXPECT_GT(infinite, 0);
}

// A token that indices name several times weighs as much as all of them, and its P may be rounded by half a
// unit of the last place; that of a single token is 1.
TEST(Compare, RepeatedTokensMayBeRounded) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    const float u = dtype == Dtype::kBF16 ? 0x1p-8F : 0x1p-11F;
    for (int topk : {1, 20}) {
      const CaseSpec spec = {.dtype = dtype, .heads = 8, .lengths = {1}, .sparse = true, .topk = topk};
      const runtime::RandomCase c = runtime::make_case(spec, 3);
      Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, {Backend::kCpu});
      ASSERT_TRUE(run.ok()) << run.status().message();
      ASSERT_TRUE(run->run().ok());
      ASSERT_TRUE(run->fetch().ok());
      Results rounded(*run);
      rounded.scale_row(2, 1 + 0.75F * u, spec.v_dim);
      const runtime::Comparison comparison =
          runtime::compare(c.problem, c.inputs, rounded.out_view, rounded.lse_view);
      EXPECT_EQ(comparison.wrong_rows, topk == 1 ? 1 : 0) << runtime::to_string(comparison);
    }
  }
}

// What plain code makes of lse, it makes of the sink, too: one token, whose score is off by the rounding of
// its key to bf16. What is left of its value is nearer to that than to what the right lse leaves.
TEST(Compare, PlainCodeHasItsOwnSink) {
  double from_plain2 = 0, from_right2 = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CaseSpec spec = {.format = KvFormat::kFp8_656, .heads = 3, .lengths = {1}, .logit_scale = 4};
    const runtime::RandomCase without = runtime::make_case(spec, seed);
    spec.sink = true;
    const runtime::RandomCase with = runtime::make_case(spec, seed);
    for (int head = 0; head < spec.heads; ++head) {
      const cpu::ReferenceRow whole = cpu::reference_row(without.problem, without.inputs, 0, 0, head);
      const cpu::ReferenceRow row = cpu::reference_row(with.problem, with.inputs, 0, 0, head);
      double product = 0, norm2 = 0;
      for (int i = 0; i < spec.v_dim; ++i) {
        product += double{row.plain_out[i]} * whole.plain_out[i];
        norm2 += double{whole.plain_out[i]} * whole.plain_out[i];
      }
      const double sink = static_cast<const float*>(with.inputs.attn_sink.data)[head];
      const auto left_by = [&](double lse) { return 1 / (1 + std::exp(sink - lse)); };
      const double from_plain = product / norm2 - left_by(row.plain_lse);
      const double from_right = product / norm2 - left_by(row.lse);
      from_plain2 += from_plain * from_plain;
      from_right2 += from_right * from_right;
    }
  }
  EXPECT_LT(from_plain2, 0.5 * from_right2);
}

}  // namespace
}  // namespace flashlatent
