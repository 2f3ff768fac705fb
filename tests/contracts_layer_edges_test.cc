// The edges of a layer as options of decode: what the three public functions give one after another, on every
// backend and by every kernel.
#include <cmath>
#include <functional>
#include <tuple>

#include "contracts.h"
#include "dispatch/layer_edges.h"
#include "runtime/layer_edges.h"
#include "v4_case.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::EdgeSpec;
using runtime::RandomCase;

// Beside kV4, which has all edges.
constexpr EdgeSpec kQueries = {.norm = 1e-6F, .q_columns = 64};
constexpr EdgeSpec kOutputs = {.out_columns = 64};

class LayerEdgesOf : public Contracts {
 protected:
  static void run(DecodeRun& run) {
    for (const Status& status : {run.run(), run.fetch()}) EXPECT_TRUE(status.ok()) << status.message();
  }

  void check(const CaseSpec& spec) {
    RandomCase with = case_of(spec, 5);
    const RandomCase without = runtime::without_edges(with);
    if (!taken(without.problem)) return;
    Result<DecodeRun> made =
        DecodeRun::create(with.problem, with.inputs, executor_, runtime::request_of(spec.edges));
    ASSERT_TRUE(made.ok()) << made.status().message();
    DecodeRun& edged = *made;
    const Result<Selection> selection = select(with.problem, executor_);
    ASSERT_TRUE(selection.ok());
    Executor same = executor_;  // edges may change what is picked
    same.kernel = selection->kernel->name;
    DecodeRun plain = place(without, same);
    run(plain);
    const FusedEdges fused = fused_edges(*selection, with.problem, edged.inputs(), edged.outputs());
    std::vector<std::uint8_t> first;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(edged.poison().ok());
      run(edged);
      const std::string why =
          runtime::compare_edges(with.inputs, {edged.out(), edged.lse(), edged.fp8()},
                                 {plain.out(), plain.lse(), {}}, /*same_bits=*/!fused.output);
      EXPECT_EQ(why, "") << spec.name << " " << to_string(with.problem) << " by " << selection->kernel->name;
      if (i == 0) {
        first = edged.fp8_bytes();
        const runtime::Comparison beside_oracle =
            runtime::compare(with.problem, with.inputs, edged.out(), edged.lse(), {}, {}, {.stride = 5}, {},
                             edged.fp8(), &oracle_);
        EXPECT_TRUE(beside_oracle.ok())
            << spec.name << " " << to_string(with.problem) << ": " << runtime::to_string(beside_oracle);
      }
      EXPECT_EQ(first, edged.fp8_bytes()) << spec.name;
    }
  }
  /// By every kernel that should take the case; on the CPU once.
  void check_all(const CaseSpec& spec) {
    if (!on_gpu()) return check(spec);
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != Backend::kCuda) continue;
      executor_.kernel = kernel.name;
      CaseSpec plain = spec;
      plain.edges = {};
      if (should_take(kernel.name, runtime::problem_of(plain))) check(spec);
      executor_.kernel = "";
    }
  }
};

CaseSpec v4(int heads, std::vector<int> lengths, int query_tokens = 1) {
  CaseSpec spec = v4_case(heads, std::move(lengths), 600, 200);
  spec.query_tokens = query_tokens;
  return spec;
}

TEST_P(LayerEdgesOf, DeepSeekV4) {
  for (int heads : {8, 16, 20, 32, 64, 80, 128}) {
    for (int columns : {128, 32}) {
      for (bool keeps_out : {true, false}) {
        CaseSpec spec = v4(heads, {0, 1, 64, 300}, 2);
        spec.edges.fp8_columns = columns;
        spec.edges.keeps_out = keeps_out;
        spec.edges.fp8_groups = heads % 8 == 0 ? 8 : 1;
        check_all(spec);
      }
    }
  }
}

// Enough items that they stay whole, and so few that they are shared out.
TEST_P(LayerEdgesOf, ManyAndFewRequests) {
  for (int heads : {16, 64, 128}) {
    for (int batch : {1, 3, 150}) {
      CaseSpec spec = v4(heads, std::vector<int>(batch, 200));
      spec.edges.fp8_groups = 8;
      check(spec);
      spec.edges.keeps_out = false;
      check(spec);
    }
  }
  CaseSpec spec = v4(64, std::vector<int>(70, 200), 3);
  spec.batch_invariant = true;
  check(spec);
}

// Items of one or two blocks, some without tokens: several a CTA.
TEST_P(LayerEdgesOf, ShortItems) {
  for (int heads : {16, 64, 128}) {
    CaseSpec spec = v4(heads, std::vector<int>(140, 70));
    spec.topk = 64;
    spec.extra_topk = 20;
    for (int i = 0; i < 140; ++i) {
      spec.topk_lengths.push_back(i % 3 == 0 ? 0 : 40 + i % 20);
      spec.extra_topk_lengths.push_back(i % 6 < 4 ? 0 : 20);
    }
    check(spec);
  }
}

TEST_P(LayerEdgesOf, Alone) {
  for (int heads : {16, 64}) {
    for (const EdgeSpec& edges :
         {kQueries, kOutputs, EdgeSpec{.q_columns = 64}, EdgeSpec{.norm = 0.5F}, EdgeSpec{.fp8_columns = 32},
          EdgeSpec{.fp8_columns = 128, .keeps_out = false}}) {
      CaseSpec spec = v4(heads, std::vector<int>(20, 150));
      spec.edges = edges;
      check(spec);
      spec.strided = true;
      check(spec);
    }
  }
}

TEST_P(LayerEdgesOf, RotationsOfAllKinds) {
  for (int heads : {16, 64}) {
    for (const RotaryPairs pairs : {RotaryPairs::kNeighbours, RotaryPairs::kHalves}) {
      for (const RotaryTable layout : {RotaryTable::kHalves, RotaryTable::kInterleaved}) {
        for (bool wide : {false, true}) {
          for (int columns : {64, 128}) {
            CaseSpec spec = v4(heads, std::vector<int>(9, 150), 2);
            spec.edges.pairs = pairs;
            spec.edges.layout = layout;
            spec.edges.wide_positions = wide;
            spec.edges.bf16_table = !wide;
            spec.edges.q_columns = spec.edges.out_columns = columns;
            check(spec);
          }
        }
      }
    }
  }
}

// Records, by the kernels that have edges of their own for them: whole items, shares of items, and teams.
// Norms are a launch before, but for teams. Every twelfth query token has nothing to attend to.
TEST_P(LayerEdgesOf, DeepSeekV41) {
  struct By {
    const char* kernel;
    std::vector<int> heads;
    int batch;
    float norm = 0;
  };
  const std::vector<By> ways = {{"fp8_32", {8, 12, 16, 24, 32, 64}, 13},
                                {"fp8_32", {8, 24}, 140},
                                {"fp8_32", {16}, 140},
                                {"fp8_32", {16}, 13, 1e-6F},
                                {"fp8_64", {40, 64, 128}, 13},
                                {"fp8_64", {64}, 70},
                                {"fp8_64", {64}, 3, 1e-6F},
                                {"mla_64_team", {12, 64}, 5},
                                {"mla_64_team", {128}, 2},
                                {"mla_64_team", {20}, 3, 1e-6F}};
  for (const By& way : ways) {
    if (on_gpu()) executor_.kernel = way.kernel;
    for (const int heads : way.heads) {
      for (const KvFormat extra : {KvFormat::kMxfp8_528, KvFormat::kNvfp4_288}) {
        for (const ScalePlace place : {ScalePlace::kToken, ScalePlace::kPage}) {
          CaseSpec spec = v4(heads, std::vector<int>(on_gpu() ? way.batch : 2, 130));
          spec.lengths[1] = 0;
          spec.format = KvFormat::kMxfp8_528;
          spec.extra_format = extra;
          spec.scale_place = place;
          spec.extra_topk = 70;
          spec.edges.norm = way.norm;
          spec.edges.fp8_groups = heads % 8 == 0 ? 8 : 1;
          spec.edges.keeps_out = place == ScalePlace::kPage;
          check(spec);
        }
      }
    }
  }
}

// Options that kernels of records leave to launches, queries alone, which leave items split, and angles of
// all kinds.
TEST_P(LayerEdgesOf, RotationsOfRecords) {
  for (const char* kernel : {"fp8_32", "mla_64_team"}) {
    if (on_gpu()) executor_.kernel = kernel;
    for (const EdgeSpec& edges :
         {EdgeSpec{.q_columns = 64, .layout = RotaryTable::kInterleaved, .wide_positions = true},
          EdgeSpec{.out_columns = 64, .layout = RotaryTable::kInterleaved, .bf16_table = true},
          EdgeSpec{.q_columns = 128, .out_columns = 64, .fp8_columns = 128},
          EdgeSpec{.q_columns = 64, .out_columns = 64, .pairs = RotaryPairs::kHalves, .fp8_columns = 128},
          EdgeSpec{.q_columns = 64, .out_columns = 64, .fp8_columns = 32, .keeps_out = false},
          EdgeSpec{.fp8_columns = 128, .keeps_out = false}}) {
      CaseSpec spec = v4(16, std::vector<int>(5, 130));
      spec.format = KvFormat::kMxfp8_528;
      spec.extra_format = KvFormat::kNvfp4_288;
      spec.extra_topk = 70;
      spec.strided = true;
      spec.edges = edges;
      check(spec);
    }
  }
}

TEST_P(LayerEdgesOf, OtherFormats) {
  for (KvFormat format : {KvFormat::kMxfp8_528, KvFormat::kNvfp4_288, KvFormat::kFp8_528}) {
    for (int heads : {16, 64}) {
      CaseSpec spec = v4(heads, {0, 5, 300});
      spec.format = format;
      spec.edges.norm = 0;
      check(spec);
    }
  }
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656, KvFormat::kE4m3}) {
    for (int heads : {8, 16, 64}) {
      check_all({.name = "latent", .format = format, .heads = heads, .lengths = {0, 1, 700}, .edges = kV4});
    }
  }
  check({.name = "fp16",
         .dtype = Dtype::kF16,
         .heads = 24,
         .qk_dim = 320,
         .v_dim = 256,
         .lengths = {70, 700},
         .edges = kV4});
}

TEST_P(LayerEdgesOf, QueriesInTwoParts) {
  for (bool strided : {false, true}) {
    check({.name = "parts",
           .query_tokens = 2,
           .heads = 16,
           .lengths = {4, 700},
           .causal = true,
           .strided = strided,
           .split_query = true,
           .edges = {.q_columns = 64, .out_columns = 0}});
  }
}

TEST_P(LayerEdgesOf, RaggedAndSeparate) {
  check({.name = "ragged",
         .heads = 16,
         .lengths = {0, 5, 64, 700},
         .ragged_tokens = {0, 3, 1, 2},
         .causal = true,
         .edges = kV4});
  for (KvLayout layout : {KvLayout::kSeparate, KvLayout::kPacked}) {
    check({.name = "separate",
           .layout = layout,
           .query_tokens = 2,
           .heads = 16,
           .kv_heads = 4,
           .qk_dim = 128,
           .v_dim = 128,
           .lengths = {5, 700},
           .causal = true,
           .edges = {.norm = 1e-6F,
                     .q_columns = 128,
                     .out_columns = 32,
                     .pairs = RotaryPairs::kHalves,
                     .fp8_columns = 32}});
  }
}

TEST_P(LayerEdgesOf, WorkspaceDependsOnShapesAlone) {
  const DecodeProblem with = runtime::problem_of(v4(64, std::vector<int>(5, 100)));
  DecodeProblem plain = with;
  plain.options.q_edge = plain.options.out_edge = false;
  const auto bytes = [&](const DecodeProblem& problem) {
    return workspace_bytes(problem, executor_).value();
  };
  EXPECT_GE(bytes(with), bytes(plain) + 2 * 5 * 64 * 512 * 2);
  EXPECT_EQ(plan_bytes(with, executor_).value(), plan_bytes(plain, executor_).value());
}

// What does not fit is refused by name, and nothing is written.
TEST_P(LayerEdgesOf, Refusals) {
  CaseSpec spec = v4(16, {100, 200});
  const RandomCase made = runtime::make_case(spec, 1);
  const auto refused = [&](const std::string& word, const std::function<void(DecodeRun&)>& change,
                           const std::function<void(DecodeProblem&)>& other = nullptr) {
    DecodeProblem problem = made.problem;
    DecodeInputs inputs = made.inputs;
    if (other != nullptr) other(problem);
    Result<DecodeRun> run = DecodeRun::create(problem, inputs, executor_, runtime::request_of(spec.edges));
    ASSERT_TRUE(run.ok()) << run.status().message();
    ASSERT_TRUE(run->plan().ok());
    change(*run);
    const Status status = run->decode();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << word << ": " << status.message();
    EXPECT_EQ(status.message().rfind(word, 0), 0U) << status.message();
    ASSERT_TRUE(run->fetch().ok());
    for (const std::uint8_t byte : run->lse_bytes()) ASSERT_EQ(byte, 0xFF);
  };
  refused("q_norm is -1", [](DecodeRun& run) { run.inputs().q_norm = -1; });
  refused("q_norm is inf", [](DecodeRun& run) { run.inputs().q_norm = INFINITY; });
  refused("q_norm and q_rotate are missing", [](DecodeRun& run) {
    run.inputs().q_norm = 0;
    run.inputs().q_rotate = {};
  });
  refused("q_rotate.table is missing", [](DecodeRun& run) { run.inputs().q_rotate.table = {}; });
  refused("out_rotate.positions is missing", [](DecodeRun& run) { run.inputs().out_rotate.positions = {}; });
  refused("q_rotate.positions is ", [](DecodeRun& run) { run.inputs().q_rotate.positions.shape[1] = 2; });
  refused("out_rotate.table is ", [](DecodeRun& run) { run.inputs().out_rotate.table.shape[1] = 24; });
  refused("out_fp8.codes is ", [](DecodeRun& run) { run.outputs().out_fp8.codes.shape[2] -= 1; });
  refused("out_fp8.scales is missing", [](DecodeRun& run) { run.outputs().out_fp8.scales = {}; });
  refused("out is missing", [](DecodeRun& run) {
    run.outputs().out = {};
    run.outputs().out_fp8 = {};
  });
  refused("out_rotate and out_fp8 are missing", [](DecodeRun& run) {
    run.inputs().out_rotate = {};
    run.outputs().out_fp8 = {};
  });
  refused("out_fp8.codes is ",
          [](DecodeRun& run) { run.outputs().out_fp8.codes.data = run.workspace_memory().data; });
  refused(
      "q_norm is given, but the options have q_edge off", [](DecodeRun&) {},
      [](DecodeProblem& problem) { problem.options.q_edge = false; });
  refused(
      "out_fp8 is given, but the options have out_edge off", [](DecodeRun&) {},
      [](DecodeProblem& problem) { problem.options.out_edge = false; });
  if (on_gpu()) return;
  refused("out_rotate.positions has 97 for token 1; out_rotate.table has ", [](DecodeRun& run) {
    const auto* positions = static_cast<const std::int32_t*>(run.inputs().out_rotate.positions.data);
    const_cast<std::int32_t*>(positions)[1] = 97;
  });
}

TEST(LayerEdgeProblems, AreValidatedByName) {
  const auto message_of = [](const std::function<void(DecodeProblem&)>& change) {
    DecodeProblem problem = runtime::problem_of(v4(16, {100}));
    change(problem);
    return validate(problem).message();
  };
  EXPECT_EQ(message_of([](DecodeProblem&) {}), "");
  EXPECT_NE(message_of([](DecodeProblem& p) {
              p.sparse = {};
              p.cache.extra = {};
              p.options.attn_sink = false;
              p.options.shard = {.rank = 0, .world = 2, .run = 1};
            }).find("out_edge is set (by out_rotate or out_fp8) and shard world is 2"),
            std::string::npos);
  EXPECT_NE(message_of([](DecodeProblem& p) {
              p.cache.format = KvFormat::kPlain;
              p.cache.qk_dim = 100;
              p.cache.v_dim = 96;
            }).find("q_edge is set (by q_norm or q_rotate) and qk_dim is 100"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Backends, LayerEdgesOf, kBackends, backend_name);

}  // namespace
}  // namespace flashlatent
