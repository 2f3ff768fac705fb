#include "tools/tune_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "core/formats/formats.h"
#include "core/token_bytes.h"
#include "cost/model.h"
#include "tools/shape.h"

namespace flashlatent::tools {

namespace {

constexpr double kMostCacheBytes = 3e9;

/// Requests, and tokens of each.
using Batches = std::initializer_list<std::pair<int, int>>;

/// A latent cache, or with `dim` keys and values of `kv_heads` heads.
BenchCase dense_case(int batch, int tokens, int query_tokens, int heads, int kv_heads = 1, int dim = 0) {
  return case_of(Shape{.latent = dim == 0,
                       .query_tokens = query_tokens,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .dim = dim == 0 ? 576 : dim,
                       .lengths = std::vector<int>(batch, tokens)});
}

/// The cases so far.
class Cases {
 public:
  std::vector<BenchCase> take() { return std::move(cases_); }

  void add(BenchCase c, const std::string& more = {}) {
    c.name += more;
    const auto bytes = static_cast<double>(token_bytes(c.problem.cache));
    double tokens = 0;
    for (int length : c.lengths) tokens += length;
    if (bytes * tokens <= kMostCacheBytes) cases_.push_back(std::move(c));
  }

  /// Latent caches of one format.
  void add_latent(std::initializer_list<int> heads, Batches batches, int query_tokens = 1,
                  KvFormat format = KvFormat::kPlain, int page_size = 64, Dtype dtype = Dtype::kBF16,
                  bool e4m3_queries = false) {
    for (int h : heads) {
      for (auto [batch, tokens] : batches) {
        BenchCase c = dense_case(batch, tokens, query_tokens, h);
        set_format(c.problem.cache, format);
        c.problem.cache.page_size = page_size;
        c.problem.cache.dtype = dtype;
        c.problem.query.e4m3 = e4m3_queries;
        std::string more;
        if (format != KvFormat::kPlain) more += fmt::format(" {}", to_string(format));
        if (e4m3_queries) more += " q e4m3";
        if (dtype == Dtype::kF16) more += " fp16";
        if (page_size != 64) more += fmt::format(" page{}", page_size);
        add(std::move(c), more);
      }
    }
  }

  /// Indices into latent caches: requests, and indices of each.
  void add_sparse(KvFormat format, std::initializer_list<int> heads, Batches batches, int query_tokens = 1) {
    for (int h : heads) {
      for (auto [batch, topk] : batches) {
        BenchCase c = dense_case(batch, std::min(std::max(8192, 2 * topk), 1 << 21), query_tokens, h);
        set_format(c.problem.cache, format);
        c.problem.sparse = {.enabled = true, .topk = topk};
        c.problem.options.causal = false;
        c.name = name_of(c);
        add(std::move(c), fmt::format(" {}", to_string(format)));
      }
    }
  }

  /// DeepSeek V4: 128 indices, and `extra` of an extra cache; without indices its first `extra` tokens.
  void add_two_caches(KvFormat format, std::initializer_list<int> heads, Batches batches,
                      int query_tokens = 1, bool indexed = true) {
    for (int h : heads) {
      for (auto [batch, extra] : batches) {
        BenchCase c = dense_case(batch, 8192, query_tokens, h);
        set_format(c.problem.cache, format);
        c.problem.cache.page_size = 256;
        c.problem.sparse = {.enabled = true, .topk = 128};
        c.problem.options.causal = false;
        c.problem.options.attn_sink = true;
        if (extra > 0) {
          c.problem.cache.extra = {.enabled = true,
                                   .indexed = indexed,
                                   .page_size = 64,
                                   .topk = indexed ? extra : 0,
                                   .max_pages = 0};
          c.extra_tokens = indexed ? 8192 : extra;
        }
        c.name = name_of(c);
        add(std::move(c), fmt::format(" {}", to_string(format)));
      }
    }
  }

  /// Query tokens of a prompt, each with `topk` of 32,768 tokens.
  void add_prefill(KvFormat format, std::initializer_list<int> heads, int topk) {
    for (int h : heads) {
      for (int query_tokens : {132, 528, 1056}) {
        BenchCase c = dense_case(1, 32768, query_tokens, h);
        set_format(c.problem.cache, format);
        c.problem.cache.page_size = format == KvFormat::kPlain ? 1 : 64;
        c.problem.sparse = {.enabled = true, .topk = topk};
        c.problem.options.causal = false;
        c.prefill = true;
        c.max_logits = format != KvFormat::kFp8_584;  // without them kernels of lists take it, too
        c.name = "prefill " + name_of(c);
        add(std::move(c));
      }
    }
  }

  /// Keys and values apart.
  void add_separate(std::initializer_list<std::pair<int, int>> heads, std::initializer_list<int> dims,
                    Batches batches, std::initializer_list<int> query_tokens = {1},
                    KvFormat format = KvFormat::kPlain) {
    for (auto [h, kv] : heads) {
      for (int dim : dims) {
        for (auto [batch, tokens] : batches) {
          for (int s_q : query_tokens) {
            BenchCase c = dense_case(batch, tokens, s_q, h, kv, dim);
            c.problem.cache.format = format;
            add(std::move(c), format == KvFormat::kPlain ? "" : fmt::format(" {}", to_string(format)));
          }
        }
      }
    }
  }

 private:
  std::vector<BenchCase> cases_;
};

std::vector<BenchCase> all_cases() {
  Cases cases;
  // Few requests (teams, shares), fewer than multiprocessors (whole requests, blocks alone), one for each,
  // more than that, and several for each; from one block a CTA to hundreds.
  cases.add_latent({8, 16, 32, 64, 128},
                   {{1, 1024},   {1, 4096},   {1, 16384},  {1, 65536}, {2, 2048},  {2, 16384},  {4, 1024},
                    {4, 4096},   {4, 16384},  {8, 2048},   {8, 16384}, {16, 1024}, {16, 8192},  {32, 4096},
                    {48, 8192},  {64, 1024},  {64, 4096},  {96, 4096}, {128, 512}, {128, 4096}, {132, 8192},
                    {136, 4096}, {200, 1024}, {264, 2048}, {400, 512}});
  for (int query_tokens : {2, 4}) {
    cases.add_latent({8, 16, 64, 128}, {{1, 4096}, {8, 2048}, {32, 1024}, {64, 4096}, {128, 1024}},
                     query_tokens);
  }
  cases.add_latent({16, 64, 128},
                   {{1, 8192}, {4, 4096}, {32, 2048}, {64, 1024}, {128, 512}, {132, 4096}, {264, 1024}}, 1,
                   KvFormat::kPlain, 1);
  cases.add_latent({16, 64, 128}, {{1, 8192}, {4, 4096}, {8, 4096}, {32, 2048}, {132, 4096}}, 1,
                   KvFormat::kPlain, 64, Dtype::kF16);
  for (KvFormat format : {KvFormat::kFp8_656, KvFormat::kE4m3}) {
    cases.add_latent({8, 16, 32, 64, 128},
                     {{1, 2048},
                      {1, 65536},
                      {2, 8192},
                      {4, 8192},
                      {8, 8192},
                      {16, 8192},
                      {64, 2048},
                      {132, 1024},
                      {132, 8192},
                      {264, 2048}},
                     1, format);
  }
  cases.add_latent({16, 64, 128},
                   {{1, 2048},
                    {1, 16384},
                    {2, 8192},
                    {4, 4096},
                    {8, 8192},
                    {16, 1024},
                    {16, 8192},
                    {64, 2048},
                    {132, 1024},
                    {132, 8192},
                    {264, 2048}},
                   1, KvFormat::kE4m3, 64, Dtype::kBF16, true);
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    cases.add_sparse(format, {8, 16, 32, 64, 128},
                     {{1, 2048}, {4, 1024}, {32, 2048}, {132, 2048}, {256, 1024}});
  }
  cases.add_two_caches(KvFormat::kFp8_584, {8, 16, 32, 64, 128},
                       {{1, 512},
                        {2, 1024},
                        {4, 4096},
                        {8, 512},
                        {16, 8192},
                        {32, 512},
                        {66, 1024},
                        {132, 0},
                        {132, 512},
                        {132, 8192},
                        {264, 1024}});
  cases.add_two_caches(KvFormat::kFp8_584, {64, 128}, {{2, 512}, {16, 1024}, {132, 512}}, 2);
  cases.add_two_caches(KvFormat::kFp8_584, {16, 64, 128}, {{8, 4096}, {132, 2048}}, 1, false);
  cases.add_prefill(KvFormat::kPlain, {16, 64, 128}, 2048);
  cases.add_prefill(KvFormat::kPlain, {16, 64, 128}, 512);
  cases.add_prefill(KvFormat::kFp8_656, {16, 64, 128}, 2048);
  cases.add_prefill(KvFormat::kE4m3, {16, 64, 128}, 2048);
  cases.add_prefill(KvFormat::kFp8_584, {16, 64, 128}, 2048);
  cases.add_separate(
      {{32, 8}, {64, 8}, {8, 1}, {96, 8}, {32, 32}}, {64, 128, 256},
      {{1, 1024}, {1, 32768}, {4, 2048}, {8, 8192}, {16, 2048}, {64, 512}, {64, 4096}, {256, 512}});
  cases.add_separate({{32, 8}, {8, 1}}, {64, 128, 256}, {{1, 8192}, {8, 4096}, {64, 1024}, {160, 2048}},
                     {2, 8});
  cases.add_separate({{32, 8}, {32, 32}}, {64, 128, 256}, {{4, 2048}, {16, 1024}}, {256, 1024});
  cases.add_separate({{64, 8}, {8, 1}}, {64, 128}, {{4, 8192}, {32, 2048}, {64, 1024}}, {4, 8},
                     KvFormat::kE4m3);
  return cases.take();
}

/// The problem as make_bench_input() makes it; of sparse prefill each query token is a request.
DecodeProblem problem_of(const BenchCase& c) {
  DecodeProblem problem = c.problem;
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  problem.query.batch = static_cast<int>(c.lengths.size());
  const auto pages_of = [](int tokens, int page_size) { return (tokens + page_size - 1) / page_size; };
  problem.cache.max_pages =
      problem.sparse.enabled ? 0 : std::max(1, pages_of(longest, problem.cache.page_size));
  ExtraCache& extra = problem.cache.extra;
  if (extra.enabled && !extra.indexed) extra.max_pages = pages_of(c.extra_tokens, extra.page_size);
  if (c.prefill) std::swap(problem.query.batch, problem.query.tokens);
  return problem;
}

/// The calls of a case that are worth timing.
std::vector<KernelCall> calls_of(const BenchCase& c, const schedule::Workers& workers,
                                 const cost::Table& table, const std::string& filter) {
  schedule::Workers own = workers;
  own.costs = &table;
  Executor executor;
  executor.backend = Backend::kCuda;
  const Purpose in_turn = c.max_logits ? Purpose::kTurnsMaxLogits : Purpose::kTurns;
  const Purpose purpose = c.prefill ? in_turn : Purpose::kDecode;
  const DecodeProblem problem = problem_of(c);
  const Result<std::vector<Candidate>> list = candidates(problem, executor, own, purpose);
  if (!list.ok()) return {};
  const Candidate* best = cheapest(*list);
  std::vector<KernelCall> calls;
  for (const Candidate& candidate : *list) {
    if (!candidate.reason.empty() || candidate.geometry.cost.per_call >= cost::kNever.per_call) continue;
    const std::string name = candidate.kernel->name;
    if (name.find(filter) == std::string::npos) continue;
    if (static_cast<double>(candidate.times.equal) > kWorthTiming * static_cast<double>(best->times.equal))
      continue;
    calls.push_back({problem, purpose, name});
  }
  return calls;
}

/// Puts those first that tell most of what those before them do not: of each constant the first call counts
/// 1, the second a quarter, the third a ninth.
void order(std::vector<TuneCase>& cases, const schedule::Workers& workers, const cost::Table& table) {
  const std::vector<Entry> entries = entries_of(table);
  std::vector<std::vector<std::size_t>> tells(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const KernelCall& call : cases[i].calls) {
      for (const Entry& entry : entries_of_time(call, workers, table)) {
        tells[i].push_back(std::find(entries.begin(), entries.end(), entry) - entries.begin());
      }
    }
  }
  std::vector<int> told(entries.size());
  for (std::size_t done = 0; done < cases.size(); ++done) {
    std::size_t best = done;
    double most = -1;
    for (std::size_t i = done; i < cases.size(); ++i) {
      double gain = 0;
      for (std::size_t entry : tells[i]) gain += 1.0 / ((1 + told[entry]) * (1 + told[entry]));
      gain /= static_cast<double>(cases[i].calls.size());
      if (gain > most) {
        most = gain;
        best = i;
      }
    }
    for (std::size_t entry : tells[best]) ++told[entry];
    std::swap(cases[done], cases[best]);
    std::swap(tells[done], tells[best]);
  }
}

}  // namespace

std::vector<TuneCase> tune_cases(const schedule::Workers& workers, const cost::Table& table,
                                 const std::string& filter) {
  std::vector<TuneCase> cases;
  for (BenchCase& c : all_cases()) {
    TuneCase made = {.calls = calls_of(c, workers, table, filter)};
    made.bench = std::move(c);
    if (!made.calls.empty()) cases.push_back(std::move(made));
  }
  order(cases, workers, table);
  return cases;
}

std::string name_of(const TuneCase& c, const KernelCall& call) {
  return fmt::format("{} by {}", c.bench.name, call.kernel);
}

}  // namespace flashlatent::tools
