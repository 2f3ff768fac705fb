// The edges of a layer as options of sparse prefill: what the three public functions give one after another.
#include <functional>

#include "dispatch/sparse_prefill.h"
#include "prefill_rows.h"
#include "runtime/layer_edges.h"
#include "v4_case.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::EdgeSpec;
using runtime::RandomCase;

/// A query token for each length.
CaseSpec v4(int heads, std::vector<int> lengths) {
  CaseSpec spec = v4_case(heads, std::move(lengths), 300, 100);
  spec.prefill = true;
  return spec;
}

CaseSpec rows(int qk_dim, Dtype dtype, const EdgeSpec& edges) {
  CaseSpec spec = v4(16, {0, 5, 300, 64, 1});
  spec.dtype = dtype;
  spec.format = KvFormat::kPlain;
  spec.qk_dim = qk_dim;
  spec.page_size = 1;
  spec.extra_lengths.clear();
  spec.extra_indexed = false;
  spec.extra_topk = 0;
  spec.edges = edges;
  return spec;
}

class SparsePrefillEdges : public SparsePrefill {
 protected:
  Result<PrefillRun> create(const RandomCase& made, const EdgeSpec& edges, bool max_logits = true) const {
    SparsePrefillOptions options = runtime::prefill_options(made.problem);
    options.max_logits = max_logits;
    return PrefillRun::create(runtime::prefill_inputs(made.inputs), options, executor_,
                              runtime::request_of(edges));
  }

  void check(const CaseSpec& spec) {
    check(spec, true);
    check(spec, false);
  }

  void check(const CaseSpec& spec, bool max_logits) {
    RandomCase with = runtime::make_case(spec, 5);
    const RandomCase without = runtime::without_edges(with);
    Result<PrefillRun> edged = create(with, spec.edges, max_logits);
    ASSERT_TRUE(edged.ok()) << edged.status().message();
    SparsePrefillOptions options = runtime::prefill_options(with.problem);
    options.max_logits = max_logits;
    const Executor before = executor_;  // edges may change what is picked
    executor_.kernel = *sparse_prefill_kernel(edged->inputs(), edged->outputs(), options, executor_);
    Result<PrefillRun> plain = create(without, {}, max_logits);
    const FusedEdges fused = *sparse_prefill_edges(edged->inputs(), edged->outputs(), options, executor_);
    executor_ = before;
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    for (PrefillRun* run : {&*edged, &*plain}) {
      for (const Status& status : {run->run(), run->fetch()}) ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(runtime::compare_prefill_edges(with.inputs, edged->results(), plain->results(), !fused.output),
              "")
        << spec.name << " " << to_string(with.problem);
    const Result<runtime::Comparison> beside_oracle = runtime::compare_prefill(
        runtime::prefill_inputs(with.inputs), runtime::prefill_options(with.problem), edged->results());
    ASSERT_TRUE(beside_oracle.ok()) << beside_oracle.status().message();
    EXPECT_TRUE(beside_oracle->ok()) << spec.name << ": " << runtime::to_string(*beside_oracle);
    const std::vector<std::uint8_t> bytes = edged->bytes(), fp8 = edged->fp8_bytes();
    for (const Status& status : {edged->poison(), edged->run(), edged->fetch()}) ASSERT_TRUE(status.ok());
    EXPECT_EQ(edged->bytes(), bytes);
    EXPECT_EQ(edged->fp8_bytes(), fp8);
  }
};

TEST_P(SparsePrefillEdges, DeepSeekV4) {
  for (int heads : {8, 20, 64, 128}) {
    for (int columns : {128, 32}) {
      for (bool keeps_out : {true, false}) {
        CaseSpec spec = v4(heads, {0, 1, 64, 300, 128});
        spec.edges.fp8_columns = columns;
        spec.edges.keeps_out = keeps_out;
        spec.edges.fp8_groups = heads % 8 == 0 ? 8 : 1;
        check(spec);
      }
    }
  }
}

TEST_P(SparsePrefillEdges, EachAlone) {
  for (const EdgeSpec& edges :
       {EdgeSpec{.q_columns = 64}, EdgeSpec{.norm = 0.5F}, EdgeSpec{.out_columns = 64},
        EdgeSpec{.fp8_columns = 32}, EdgeSpec{.fp8_columns = 128, .keeps_out = false}}) {
    for (bool strided : {false, true}) {
      CaseSpec spec = v4(64, {150, 0, 70});
      spec.edges = edges;
      spec.strided = strided;
      check(spec);
      spec = rows(512, Dtype::kF16, edges);
      spec.strided = strided;
      check(spec);
    }
  }
}

TEST_P(SparsePrefillEdges, RotationsOfAllKinds) {
  for (const RotaryPairs pairs : {RotaryPairs::kNeighbours, RotaryPairs::kHalves}) {
    for (const RotaryTable layout : {RotaryTable::kHalves, RotaryTable::kInterleaved}) {
      for (bool wide : {false, true}) {
        EdgeSpec edges = kV4;
        edges.pairs = pairs;
        edges.layout = layout;
        edges.wide_positions = wide;
        edges.bf16_table = !wide;
        edges.q_columns = edges.out_columns = wide ? 128 : 64;
        check(rows(576, Dtype::kBF16, edges));
      }
    }
  }
}

TEST_P(SparsePrefillEdges, QueriesInTwoParts) {
  for (bool strided : {false, true}) {
    CaseSpec spec = rows(576, Dtype::kBF16, {.q_columns = 64, .fp8_columns = 128});
    spec.split_query = true;
    spec.strided = strided;
    check(spec);
  }
}

TEST_P(SparsePrefillEdges, Workspace) {
  const auto bytes = [&](const EdgeSpec& edges) {
    CaseSpec spec = v4(64, std::vector<int>(5, 100));
    spec.edges = edges;
    return create(runtime::make_case(spec, 1), edges)->workspace().bytes;
  };
  constexpr std::size_t kRows = 5 * 64 * 512 * 2;
  const std::size_t plain = bytes({});
  EXPECT_TRUE(plain == 0 || !on_gpu());
  EXPECT_GE(bytes({.norm = 1e-6F}), plain + kRows);
  EXPECT_GE(bytes({.fp8_columns = 128}), plain + kRows);
  EXPECT_GE(bytes(kV4), plain + 2 * kRows);
}

// What a kernel does in its own passes needs no room, and a call asks for no more than its tensors need.
TEST_P(SparsePrefillEdges, WorkspaceOfACall) {
  CaseSpec spec = v4(64, std::vector<int>(5, 100));
  spec.edges = kV4;
  const RandomCase made = runtime::make_case(spec, 1);
  for (bool max_logits : {true, false}) {
    Result<PrefillRun> run = create(made, spec.edges, max_logits);
    ASSERT_TRUE(run.ok()) << run.status().message();
    SparsePrefillOptions options = runtime::prefill_options(made.problem);
    options.max_logits = max_logits;
    const Result<std::size_t> bytes =
        sparse_prefill_workspace_bytes(run->inputs(), run->outputs(), options, executor_);
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    EXPECT_LE(*bytes, run->workspace().bytes);
    if (on_gpu() && !max_logits) EXPECT_EQ(*bytes, 0U);
    const Memory memory{run->workspace().data, *bytes};
    EXPECT_TRUE(sparse_prefill(run->inputs(), run->outputs(), options, memory, executor_).ok());
    if (*bytes == 0) continue;
    const Memory less{memory.data, *bytes - 1};
    EXPECT_EQ(sparse_prefill(run->inputs(), run->outputs(), options, less, executor_).code(),
              StatusCode::kExhausted);
  }
}

// In decode's words, and nothing is written.
TEST_P(SparsePrefillEdges, Refusals) {
  const CaseSpec spec = v4(16, {100, 200, 5});
  const RandomCase made = runtime::make_case(spec, 1);
  const auto refused = [&](const std::string& words, const std::function<void(PrefillRun&)>& change,
                           const std::function<void(SparsePrefillOptions&)>& other = nullptr) {
    Result<PrefillRun> run = create(made, spec.edges);
    ASSERT_TRUE(run.ok()) << run.status().message();
    change(*run);
    SparsePrefillOptions options = runtime::prefill_options(made.problem);
    if (other != nullptr) other(options);
    const Status status = sparse_prefill(run->inputs(), run->outputs(), options, run->workspace(), executor_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words << ": " << status.message();
    EXPECT_EQ(status.message().rfind(words, 0), 0U) << status.message();
    ASSERT_TRUE(run->fetch().ok());
    for (const std::uint8_t byte : run->bytes()) ASSERT_EQ(byte, 0xFF) << words;
  };
  refused("q_norm is -1", [](PrefillRun& run) { run.inputs().q_norm = -1; });
  refused("q_rotate.table is missing", [](PrefillRun& run) { run.inputs().q_rotate.table = {}; });
  refused("q_rotate.positions is int32 (2) ",
          [](PrefillRun& run) { run.inputs().q_rotate.positions.shape[0] = 2; });
  refused("out_rotate.positions is missing", [](PrefillRun& run) { run.inputs().out_rotate.positions = {}; });
  refused("out_rotate.positions is int32 (2) ",
          [](PrefillRun& run) { run.inputs().out_rotate.positions.shape[0] = 2; });
  refused("out_rotate.table is ", [](PrefillRun& run) { run.inputs().out_rotate.table.shape[1] = 24; });
  refused("out_fp8.codes is ", [](PrefillRun& run) { run.outputs().out_fp8.codes.shape[2] -= 1; });
  refused("out_fp8.scales is missing", [](PrefillRun& run) { run.outputs().out_fp8.scales = {}; });
  refused("out is missing", [](PrefillRun& run) {
    run.outputs().out = {};
    run.outputs().out_fp8 = {};
  });
  refused("out_fp8.codes is ",
          [](PrefillRun& run) { run.outputs().out_fp8.codes.data = run.workspace().data; });
  refused("lse is ", [](PrefillRun& run) {  // it overlaps the table
    run.outputs().lse.data = const_cast<void*>(run.inputs().out_rotate.table.data);
  });
  refused(
      "out_fp8 is given, but the options have out_edge off",
      [](PrefillRun& run) { run.inputs().out_rotate = {}; },
      [](SparsePrefillOptions& options) { options.out_edge = false; });
  refused("out_rotate and out_fp8 are missing, but the options have out_edge", [](PrefillRun& run) {
    run.inputs().out_rotate = {};
    run.outputs().out_fp8 = {};
  });
  if (on_gpu()) return;
  refused("out_rotate.positions has 97 for token 1; out_rotate.table has ", [](PrefillRun& run) {
    const auto* positions = static_cast<const std::int32_t*>(run.inputs().out_rotate.positions.data);
    const_cast<std::int32_t*>(positions)[1] = 97;
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, SparsePrefillEdges, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace flashlatent
