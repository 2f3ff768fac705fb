// flashlatent make-index-case OUT
#include <fmt/core.h>

#include <algorithm>

#include "core/index_check.h"
#include "cpu/index_reference.h"
#include "cpu/parallel.h"
#include "io/safetensors.h"
#include "runtime/random_index_case.h"
#include "tools/command.h"

namespace flashlatent::tools {

namespace {

struct MakeIndexOptions {
  std::string path;
  std::string format = "fp8_132";
  std::string scores = "normal";
  bool no_reference = false;
  bool block_given = false;
  std::uint64_t seed = 0;
  runtime::IndexSpec spec = {.lengths = {0, 1, 64, 300}, .causal = false};
};

constexpr runtime::IndexScores kScores[] = {runtime::IndexScores::kNormal, runtime::IndexScores::kUnit,
                                            runtime::IndexScores::kEqual,  runtime::IndexScores::kNegative,
                                            runtime::IndexScores::kHuge,   runtime::IndexScores::kNan,
                                            runtime::IndexScores::kRising, runtime::IndexScores::kSpread};

std::vector<float> reference_of(const IndexCall& call) {
  std::vector<float> scores(call.rows() * call.span);
  cpu::parallel_for_dynamic(call.rows(), cpu::hardware_threads(), [&](std::int64_t row) {
    const std::vector<cpu::IndexScore> found = cpu::index_scores(call, row);
    for (int i = 0; i < call.span; ++i) {
      scores[row * call.span + i] = found[i].exists ? static_cast<float>(found[i].score) : score_of(kNoToken);
    }
  });
  return scores;
}

int run_make_index_case(const MakeIndexOptions& options) {
  runtime::IndexSpec spec = options.spec;
  if (options.block_given && spec.candidates == 0 && spec.best_blocks == 0) {
    return fail(
        {StatusCode::kInvalidArgument,
         fmt::format(
             "--candidate-block is {}; it is for --candidates and --best-blocks, and neither is given",
             spec.candidate_block)});
  }
  spec.format = *index_format_from_name(options.format);
  for (runtime::IndexScores scores : kScores) {
    if (options.scores == runtime::to_string(scores)) spec.scores = scores;
  }
  if (!spec.ragged_tokens.empty() && spec.ragged_tokens.size() != spec.lengths.size()) {
    return fail({StatusCode::kInvalidArgument,
                 fmt::format("--ragged has {} numbers, but there are {} requests; expected one for each",
                             spec.ragged_tokens.size(), spec.lengths.size())});
  }
  const runtime::RandomIndexCase made = runtime::make_index_case(spec, options.seed);
  Result<runtime::IndexRun> shapes =
      runtime::IndexRun::create(made.inputs, made.options, made.wanted, Executor{});
  if (!shapes.ok()) return fail(shapes.status());
  const Result<IndexCall> call = index_call(made.inputs, shapes->outputs(), made.options, Device{});
  if (!call.ok()) return fail(call.status());
  std::vector<io::NamedTensor> tensors;
  for (const io::NamedTensor& tensor : {io::NamedTensor{"q", made.inputs.q},
                                        {"q_scale", made.inputs.q_scale},
                                        {"weights", made.inputs.weights},
                                        {"index_cache", made.inputs.index_cache},
                                        {"block_table", made.inputs.block_table},
                                        {"cache_seqlens", made.inputs.cache_seqlens},
                                        {"cu_seqlens_q", made.inputs.cu_seqlens_q},
                                        {"candidates", made.inputs.candidates},
                                        {"slot_table", made.inputs.slot_table}}) {
    if (tensor.view.present()) tensors.push_back(tensor);
  }
  std::vector<float> reference;
  if (!options.no_reference) {
    reference = reference_of(*call);
    ConstTensorView view(reference.data(), Dtype::kF32, {call->batch, call->tokens, call->span});
    if (call->ragged) view = {reference.data(), Dtype::kF32, {call->tokens, call->span}};
    tensors.push_back({"scores_ref", view});
  }
  std::map<std::string, std::string> metadata = {{"kind", "index_topk"},
                                                 {"topk", fmt::format("{}", spec.topk)},
                                                 {"causal", spec.causal ? "true" : "false"},
                                                 {"index_format", options.format},
                                                 {"page_size", fmt::format("{}", spec.page_size)}};
  if (spec.candidates > 0 || spec.best_blocks > 0) {
    metadata["candidate_block"] = fmt::format("{}", spec.candidate_block);
  }
  if (spec.slot_page_size > 0) metadata["slot_page_size"] = fmt::format("{}", spec.slot_page_size);
  if (spec.best_blocks > 0) metadata["best_blocks"] = fmt::format("{}", spec.best_blocks);
  if (Status status = io::write_safetensors(options.path, tensors, metadata); !status.ok())
    return fail(status);
  fmt::print("{}: index_topk of {} query tokens, {} heads, topk {}, {}{}\n", options.path, call->rows(),
             spec.heads, spec.topk, options.format, options.no_reference ? ", no reference" : "");
  return kRight;
}

}  // namespace

void add_make_index_case(CLI::App& app, Action& action) {
  CLI::App* make =
      app.add_subcommand("make-index-case", "Write a random case of the indexer with its scores to a file");
  auto options = std::make_shared<MakeIndexOptions>();
  runtime::IndexSpec& spec = options->spec;
  make->add_option("OUT", options->path, "The safetensors file to write")->required()->check(writable_file());
  make->add_option("--format", options->format, "Of the index keys")
      ->check(CLI::IsMember({"fp8_132", "mxfp4_68"}))
      ->capture_default_str();
  make->add_flag("--fp4-queries", spec.fp4_query, "Queries in e2m1 with scales; left out: e4m3");
  make->add_option("--scores", options->scores, "What scores look like")
      ->check(CLI::IsMember({"normal", "unit", "equal", "negative", "huge", "nan", "rising", "spread"}))
      ->capture_default_str();
  add_list_option(*make, "--lengths", spec.lengths, 0, 1 << 24, "Cached tokens of each request: a,b,c");
  make->add_option("--query-tokens", spec.query_tokens, "Query tokens of each request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_list_option(*make, "--ragged", spec.ragged_tokens, 0, 4096,
                  "Query tokens request by request instead: a,b,c; q is then packed, with cu_seqlens_q")
      ->excludes("--query-tokens");
  make->add_flag("--causal", spec.causal, "Query token t of s_q sees tokens below L - s_q + t + 1");
  make->add_flag("--by-token", spec.lengths_per_token, "What each query token sees is a number of its own")
      ->excludes("--causal");
  make->add_option("--heads", spec.heads, "Heads, a multiple of 8")
      ->check(CLI::Range(8, 128))
      ->capture_default_str();
  make->add_option("--topk", spec.topk, "Tokens to choose")
      ->check(CLI::Range(1, kMaxIndexTopk))
      ->capture_default_str();
  make->add_option("--page-size", spec.page_size, "Index keys a page")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  make->add_option("--candidates", spec.candidates, "Blocks that each query token looks at; 0: all tokens")
      ->check(CLI::Range(0, 1 << 20));
  make->add_option("--best-blocks", spec.best_blocks, "Blocks to choose as well; 0: none")
      ->check(CLI::Range(0, kMaxIndexTopk))
      ->excludes("--candidates");
  const CLI::Option* block = make->add_option("--candidate-block", spec.candidate_block,
                                              "Tokens a block of --candidates or --best-blocks")
                                 ->check(CLI::Range(1, 1024))
                                 ->capture_default_str();
  make->add_option("--slot-page-size", spec.slot_page_size,
                   "Results are slots of a cache of so many tokens a page; 0: positions")
      ->check(CLI::Range(0, 1 << 16));
  make->add_flag("--invalid-pages", spec.invalid_pages, "Some live entries of the page table are no pages");
  make->add_flag("--no-reference", options->no_reference, "Leave out scores_ref");
  add_seed_option(*make, options->seed);
  make->footer(
      "Pages are permuted, and memory that no request uses holds NaN. The scores are the float64 oracle's.\n"
      "Examples: flashlatent make-index-case case.safetensors --lengths 300,70 --topk 128 --causal\n"
      "          flashlatent make-index-case case.safetensors --format mxfp4_68 --fp4-queries "
      "--slot-page-size 2\n"
      "          flashlatent decode case.safetensors");
  make->callback([&action, options, block] {
    options->block_given = block->count() > 0;
    action = [options] { return run_make_index_case(*options); };
  });
}

}  // namespace flashlatent::tools
