#include "tools/check_index.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "runtime/compare_index.h"
#include "tools/check_report.h"
#include "tools/command.h"
#include "tools/draw.h"

namespace flashlatent::tools {

namespace {

using runtime::IndexScores;
using runtime::IndexSpec;

constexpr IndexScores kScores[] = {IndexScores::kNormal,   IndexScores::kUnit,  IndexScores::kEqual,
                                   IndexScores::kNegative, IndexScores::kHuge,  IndexScores::kNan,
                                   IndexScores::kRising,   IndexScores::kSpread};

std::string name_of(const IndexSpec& spec) {
  int longest = 0;
  for (int length : spec.lengths) longest = std::max(longest, length);
  std::string name = fmt::format("index {}{} b{} s_q{} h{} s_k{} topk{} page{} {}", to_string(spec.format),
                                 spec.fp4_query ? " fp4_query" : "", spec.lengths.size(), spec.query_tokens,
                                 spec.heads, longest, spec.topk, spec.page_size, to_string(spec.scores));
  if (!spec.ragged_tokens.empty()) name += " ragged";
  if (spec.causal) name += " causal";
  if (spec.lengths_per_token) name += " by_token";
  if (spec.candidates > 0) name += fmt::format(" candidates{}x{}", spec.candidates, spec.candidate_block);
  if (spec.best_blocks > 0) name += fmt::format(" best{}x{}", spec.best_blocks, spec.candidate_block);
  if (spec.slot_page_size > 0) name += fmt::format(" slots{}", spec.slot_page_size);
  if (spec.invalid_pages) name += " invalid";
  if (spec.strided) name += " strided";
  return name;
}

/// Each difficulty by itself, in both formats.
std::vector<IndexSpec> listed() {
  std::vector<IndexSpec> cases;
  for (IndexFormat format : {IndexFormat::kFp8_132, IndexFormat::kMxfp4_68}) {
    const IndexSpec base = {.format = format, .lengths = {0, 1, 63, 64, 65, 300}};
    auto add = [&](auto change) {
      IndexSpec spec = base;
      change(spec);
      spec.name = name_of(spec);
      cases.push_back(std::move(spec));
    };
    for (IndexScores scores : kScores) {
      add([&](IndexSpec& s) { s.scores = scores; });
      add([&](IndexSpec& s) {
        s.scores = scores;
        s.lengths = {5000, 1000, 77};
        s.topk = 512;
        s.heads = 32;
        s.fp4_query = true;
      });
    }
    for (int topk : {1, 2, 63, 64, 65, 127, 128, 129, 300, 2048}) add([&](IndexSpec& s) { s.topk = topk; });
    for (int topk : {2047, 2048}) {
      add([&](IndexSpec& s) {
        s.topk = topk;
        s.lengths = {2046, 2047, 2048, 2049, 9000};
      });
    }
    // Query tokens that clusters of CTAs choose for, and more keys than their shared memory holds.
    for (IndexScores scores : {IndexScores::kNormal, IndexScores::kEqual, IndexScores::kRising}) {
      add([&](IndexSpec& s) {
        s.scores = scores;
        s.topk = 2048;
        s.heads = 8;
        s.lengths = {70000, 33000, 9000};
      });
      add([&](IndexSpec& s) {
        s.scores = scores;
        s.topk = 2048;
        s.lengths = {8192, 2049, 100};
      });
    }
    add([](IndexSpec& s) {
      s.topk = 2048;
      s.heads = 8;
      s.lengths = {300000};
    });
    for (int heads : {8, 16, 24, 32, 40, 48, 56, 72, 128}) add([&](IndexSpec& s) { s.heads = heads; });
    for (int page : {1, 2, 3, 7, 16, 33, 63, 100, 128, 256}) {
      add([&](IndexSpec& s) { s.page_size = page; });
    }
    for (int tokens : {2, 3, 4, 5, 8, 17}) {
      add([&](IndexSpec& s) { s.query_tokens = tokens; });
      add([&](IndexSpec& s) {
        s.query_tokens = tokens;
        s.causal = false;
        s.lengths_per_token = true;
      });
    }
    add([](IndexSpec& s) { s.causal = false; });
    add([](IndexSpec& s) { s.ragged_tokens = {3, 0, 1, 5, 2, 64}; });
    add([](IndexSpec& s) {
      s.ragged_tokens = {3, 0, 1, 5, 2, 64};
      s.causal = false;
      s.lengths_per_token = true;
    });
    add([](IndexSpec& s) {
      s.lengths = {700, 1500};
      s.ragged_tokens = {700, 300};
      s.topk = 200;
    });
    add([](IndexSpec& s) { s.invalid_pages = true; });
    add([](IndexSpec& s) {
      s.strided = true;
      s.query_tokens = 2;
    });
    for (int slot_page : {1, 2, 64}) add([&](IndexSpec& s) { s.slot_page_size = slot_page; });
    for (int blocks : {1, 5, 100, 2048}) {
      add([&](IndexSpec& s) {
        s.best_blocks = blocks;
        s.lengths = {0, 1, 8, 9, 1000, 20000};
        s.query_tokens = 2;
      });
    }
    for (IndexScores scores : {IndexScores::kEqual, IndexScores::kNan, IndexScores::kRising}) {
      add([&](IndexSpec& s) {
        s.best_blocks = 20;
        s.lengths = {1000, 3000};
        s.scores = scores;
        s.invalid_pages = true;
      });
    }
    add([](IndexSpec& s) {
      s.best_blocks = 30;
      s.candidate_block = 5;
      s.lengths = {1000, 3000};
    });
    for (int candidates : {1, 20, 300}) {
      add([&](IndexSpec& s) {
        s.candidates = candidates;
        s.lengths = {0, 1, 8, 9, 1000, 20000};
        s.query_tokens = 2;
      });
      add([&](IndexSpec& s) {
        s.candidates = candidates;
        s.candidate_block = 3;
        s.lengths = {100, 3000};
        s.invalid_pages = true;
        s.slot_page_size = 4;
      });
    }
  }
  return cases;
}

IndexSpec drawn(std::uint64_t seed, int number) {
  Draw draw(seed, static_cast<std::uint64_t>(number));
  IndexSpec spec;
  spec.format = draw.of({IndexFormat::kFp8_132, IndexFormat::kMxfp4_68});
  spec.fp4_query = draw.one_in(2);
  spec.heads = draw.one_in(2) ? draw.of({32, 64}) : 8 * draw.from(1, 16);
  spec.page_size = draw.one_in(3) ? draw.of_any_size(1, 300) : draw.of({16, 32, 64, 64, 64, 128});
  spec.topk = draw.one_in(3) ? draw.of({64, 512, 1024, 2048}) : draw.of_any_size(1, 2048);
  const int batch = draw.one_in(4) ? draw.of_any_size(1, 100) : draw.from(1, 8);
  if (draw.one_in(3)) spec.query_tokens = draw.of_any_size(2, 40);
  // The oracle multiplies about 2e8 elements a second.
  int left = std::max(batch, 100'000'000 / (128 * spec.heads * spec.query_tokens));
  spec.lengths.clear();
  for (int i = 0; i < batch; ++i) {
    const int most = std::max(1, left - (batch - 1 - i));
    const int length = draw.one_in(4)   ? 64 * draw.from(0, 5) + draw.from(-1, 1)
                       : draw.one_in(4) ? spec.topk + draw.from(-1, 1)
                                        : draw.of_any_size(0, most);
    spec.lengths.push_back(std::clamp(length, 0, most));
    left -= spec.lengths.back();
  }
  if (draw.one_in(4)) {
    spec.ragged_tokens.resize(batch);
    for (int& tokens : spec.ragged_tokens) tokens = draw.of_any_size(0, 2 * spec.query_tokens);
  }
  spec.causal = !draw.one_in(3);
  spec.lengths_per_token = !spec.causal && draw.one_in(2);
  spec.invalid_pages = draw.one_in(4);
  spec.strided = draw.one_in(4);
  if (draw.one_in(2)) spec.scores = kScores[draw.from(0, static_cast<int>(std::size(kScores)) - 1)];
  if (draw.one_in(3)) spec.candidate_block = draw.of_any_size(1, 100);
  if (draw.one_in(4)) {
    spec.best_blocks = draw.of_any_size(1, 2048);
  } else if (draw.one_in(3)) {
    spec.candidates = draw.of_any_size(1, std::max(1, 20000 / spec.candidate_block));
  }
  if (draw.one_in(3)) spec.slot_page_size = draw.of({1, 2, 64, 100});
  spec.name = fmt::format("random_index{} ", number) + name_of(spec);
  return spec;
}

constexpr int kReruns = 3;

struct IndexResult {
  Outcome outcome = Outcome::kRight;
  std::string detail = {};
};

/// Three runs from poisoned outputs, which must agree bit for bit and with the oracle; then one without the
/// optional outputs, which must choose the same.
IndexResult check_case(const IndexSpec& spec, std::uint64_t seed, const Executor& executor) {
  const runtime::RandomIndexCase made = runtime::make_index_case(spec, seed);
  auto failed = [](const Status& status) {
    const bool refused = status.code() == StatusCode::kUnsupported;
    return IndexResult{refused ? Outcome::kRefused : Outcome::kWrong, status.message()};
  };
  std::vector<std::uint8_t> bytes;
  Result<runtime::IndexRun> run = runtime::IndexRun::create(made.inputs, made.options, made.wanted, executor);
  if (!run.ok()) return failed(run.status());
  for (int i = 0; i < kReruns; ++i) {
    for (const Status& status : {run->poison(), run->run(), run->fetch()}) {
      if (!status.ok()) return failed(status);
    }
    if (i > 0 && bytes != run->bytes()) return {Outcome::kWrong, "two runs on the same inputs differ"};
    bytes = run->bytes();
  }
  const runtime::IndexComparison comparison =
      runtime::compare_index(made.inputs, made.options, run->results());
  if (!comparison.ok()) return {Outcome::kWrong, runtime::to_string(comparison)};
  runtime::IndexWanted few = made.wanted;
  few.scores = few.all_scores = false;
  Result<runtime::IndexRun> other = runtime::IndexRun::create(made.inputs, made.options, few, executor);
  if (!other.ok()) return failed(other.status());
  for (const Status& status : {other->poison(), other->run(), other->fetch()}) {
    if (!status.ok()) return failed(status);
  }
  const auto* one = static_cast<const std::int32_t*>(run->results().indices.data);
  const auto* two = static_cast<const std::int32_t*>(other->results().indices.data);
  if (!std::equal(one, one + run->results().indices.elements(), two)) {
    return {Outcome::kWrong, "without the outputs scores and all_scores other tokens are chosen"};
  }
  return {Outcome::kRight, runtime::to_string(comparison)};
}

}  // namespace

bool is_index_suite(const std::string& suite) {
  return suite == "index_topk" || suite == "random_index_topk";
}

std::vector<IndexSpec> index_cases(const std::string& suite, int count, std::uint64_t seed) {
  if (suite == "index_topk") return listed();
  std::vector<IndexSpec> cases;
  cases.reserve(count);
  for (int i = 0; i < count; ++i) cases.push_back(drawn(seed, i));
  return cases;
}

int check_index(const CheckIndexOptions& options, const Executor& executor) {
  std::vector<IndexSpec> cases = index_cases(options.choice.suite, options.cases, options.seed);
  const Status chosen = choose_cases(cases, options.choice);
  if (!chosen.ok()) return fail(chosen);
  if (options.list) {
    for (const IndexSpec& spec : cases) fmt::print("{}\n", spec.name);
    return kRight;
  }
  CheckReport report(cases.size());
  for (const IndexSpec& spec : cases) {
    if (options.names) report.announce(spec.name);
    const IndexResult result = check_case(spec, options.seed, executor);
    report.add(result.outcome, spec.name, result.detail,
               fmt::format("{} --filter '{}'", options.again, spec.name),
               {{"name", spec.name}, {"outcome", to_string(result.outcome)}, {"detail", result.detail}});
  }
  return report.finish({.suite = options.choice.suite,
                        .seed = options.seed,
                        .max_refused = options.max_refused,
                        .json = options.json},
                       executor);
}

}  // namespace flashlatent::tools
