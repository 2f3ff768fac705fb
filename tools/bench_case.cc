#include "tools/bench_case.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>

#include "core/formats/formats.h"

namespace flashlatent::tools {

namespace {

/// The x for which a standard normal number is below x with probability p; by bisection.
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return low;
}

/// DeepSeek-V3's shape: one KV head of 576/512, bf16, pages of 64, causal.
DecodeProblem deepseek(int query_tokens, int heads) {
  DecodeProblem problem;
  problem.query.tokens = query_tokens;
  problem.query.heads = heads;
  problem.options.softmax_scale = 1.0F / std::sqrt(576.0F);
  problem.options.causal = true;
  return problem;
}

BenchCase batch_case(int batch, int query_tokens, int heads, int mean, const std::string& distribution,
                     bool graph = false) {
  BenchCase result;
  result.problem = deepseek(query_tokens, heads);
  result.mean_length = mean;
  result.distribution = distribution;
  result.lengths = make_lengths(distribution, batch, mean, query_tokens);
  result.graph = graph;
  return result;
}

BenchCase list_case(const std::string& name, int heads, std::vector<int> lengths) {
  BenchCase result;
  result.name = fmt::format("{} h{}", name, heads);
  result.problem = deepseek(1, heads);
  result.distribution = "list";
  result.mean_length = static_cast<int>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) /
                                        static_cast<std::int64_t>(lengths.size()));
  result.lengths = std::move(lengths);
  result.graph = true;
  return result;
}

std::vector<int> repeated(std::initializer_list<std::pair<int, int>> count_and_length) {
  std::vector<int> lengths;
  for (auto [count, length] : count_and_length) lengths.insert(lengths.end(), count, length);
  return lengths;
}

/// The shapes for which MLA decode kernels publish times.
std::vector<BenchCase> peers() {
  std::vector<BenchCase> cases;
  for (auto [query_tokens, heads, mean] : {std::tuple{1, 16, 4096},
                                           {1, 32, 4096},
                                           {1, 64, 4096},
                                           {1, 128, 4096},
                                           {2, 128, 4096},
                                           {1, 16, 8192},
                                           {1, 64, 8192},
                                           {1, 128, 8192},
                                           {2, 128, 8192},
                                           {2, 128, 32768}}) {
    cases.push_back(batch_case(128, query_tokens, heads, mean, "uniform"));
  }
  for (auto [query_tokens, heads, mean] : {std::tuple{1, 16, 4096},
                                           {1, 32, 4096},
                                           {1, 64, 4096},
                                           {1, 128, 4096},
                                           {2, 128, 4096},
                                           {1, 128, 8192}}) {
    cases.push_back(batch_case(128, query_tokens, heads, mean, "normal"));
  }
  for (int heads : {16, 64, 128}) {
    for (auto [batch, mean] : {std::pair{1, 1024},
                               {1, 4096},
                               {1, 16384},
                               {1, 65536},
                               {1, 131072},
                               {4, 4096},
                               {4, 16384},
                               {4, 131072},
                               {8, 1024},
                               {8, 4096},
                               {8, 16384},
                               {16, 1024},
                               {16, 65536}}) {
      cases.push_back(batch_case(batch, 1, heads, mean, "uniform", true));
    }
  }
  std::vector<int> ladder;
  for (int i = 1; i <= 64; ++i) ladder.push_back(256 * i);
  for (int heads : {16, 128}) {
    cases.push_back(list_case("one of 131072, 31 of 512", heads, repeated({{1, 131072}, {31, 512}})));
    cases.push_back(list_case("four of 32768, 124 of 256", heads, repeated({{4, 32768}, {124, 256}})));
    cases.push_back(list_case("256 to 16384", heads, ladder));
  }
  return cases;
}

/// FlashMLA's table of 32 shapes.
std::vector<BenchCase> flashmla() {
  std::vector<BenchCase> cases;
  for (const char* distribution : {"uniform", "normal"}) {
    for (int mean : {4096, 8192}) {
      for (int query_tokens : {1, 2}) {
        for (int heads : {16, 32, 64, 128}) {
          cases.push_back(batch_case(128, query_tokens, heads, mean, distribution));
        }
      }
    }
  }
  return cases;
}

/// The table of the FlashMLA-ETAP paper (arXiv 2506.01969): 16 heads, fp16, unit-normal inputs, whose error
/// is published too.
std::vector<BenchCase> etap() {
  std::vector<BenchCase> cases;
  for (int batch : {16, 32}) {
    for (int tokens = 512; tokens <= 65536; tokens *= 2) {
      cases.push_back(batch_case(batch, 1, 16, tokens, "uniform"));
      cases.back().problem.cache.dtype = Dtype::kF16;
      cases.back().deviation = 1;
      cases.back().rmse = true;
    }
  }
  return cases;
}

/// Batches between small ones, which are split, and large ones: requests that stay whole or are split, on
/// some or all multiprocessors. Their neighbours are in peers().
std::vector<BenchCase> between() {
  std::vector<BenchCase> cases;
  for (auto [batch, heads, mean] : {std::tuple{6, 16, 8192},
                                    {24, 16, 2048},
                                    {32, 16, 4096},
                                    {64, 16, 4096},
                                    {80, 16, 1024},
                                    {96, 16, 4096},
                                    {64, 64, 1024},
                                    {72, 64, 1024},
                                    {96, 64, 4096},
                                    {112, 64, 4096},
                                    {24, 128, 4096},
                                    {48, 128, 4096},
                                    {96, 128, 4096}}) {
    cases.push_back(batch_case(batch, 1, heads, mean, "uniform", batch <= 64));
  }
  return cases;
}

/// Pages that are loaded token by token, by short boxes, and as whole blocks.
std::vector<BenchCase> pages() {
  std::vector<BenchCase> cases;
  for (auto [batch, heads, tokens] : {std::tuple{128, 8, 4096},
                                      {128, 16, 4096},
                                      {128, 64, 4096},
                                      {128, 128, 4096},
                                      {96, 64, 4096},
                                      {1, 16, 4096},
                                      {4, 64, 4096},
                                      {8, 128, 4096},
                                      {8, 128, 16384},
                                      {32, 128, 2048}}) {
    for (int page_size : {1, 16, 64}) {
      BenchCase c = batch_case(batch, 1, heads, tokens, "uniform", batch <= 64);
      c.problem.cache.page_size = page_size;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

/// Some seconds on a processor: compute-bound (128 heads), memory-bound (1 head), one long request.
std::vector<BenchCase> cpu() {
  std::vector<BenchCase> cases;
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (auto [batch, heads, mean] : {std::tuple{16, 1, 16384},
                                      {4, 16, 4096},
                                      {2, 128, 2048},
                                      {1, 1, 262144},
                                      {1, 16, 65536},
                                      {1, 128, 8192}}) {
      cases.push_back(batch_case(batch, 1, heads, mean, "uniform"));
      cases.back().problem.cache.dtype = dtype;
    }
  }
  return cases;
}

/// A few small calls, to see that benchmarks work.
std::vector<BenchCase> small() {
  return {batch_case(2, 1, 16, 256, "uniform"), batch_case(4, 2, 8, 200, "normal"),
          list_case("skewed", 4, repeated({{1, 1024}, {3, 16}}))};
}

/// Dense decode from an fp8_656 cache.
std::vector<BenchCase> fp8() {
  std::vector<BenchCase> cases;
  for (int heads : {16, 32, 64, 128}) cases.push_back(batch_case(128, 1, heads, 4096, "uniform"));
  for (int heads : {16, 32}) cases.push_back(batch_case(1, 1, heads, 131072, "uniform", true));
  for (BenchCase& c : cases) c.problem.cache.format = KvFormat::kFp8_656;
  return cases;
}

BenchCase sparse_case(int batch, int query_tokens, int heads, int topk, int s_k, bool graph = false) {
  BenchCase c = batch_case(batch, query_tokens, heads, s_k, "uniform", graph);
  c.problem.cache.format = KvFormat::kFp8_656;
  c.problem.sparse = {.enabled = true, .topk = topk};
  c.problem.options.causal = false;
  return c;
}

/// The shapes that are published, and the head counts of tensor parallelism.
std::vector<BenchCase> sparse_peers() {
  return {sparse_case(128, 2, 128, 2048, 32768),  sparse_case(128, 1, 128, 2048, 32768),
          sparse_case(128, 2, 64, 2048, 32768),   sparse_case(128, 1, 64, 2048, 32768),
          sparse_case(148, 2, 128, 16384, 32768), sparse_case(2, 2, 128, 2048, 32768, true),
          sparse_case(128, 1, 32, 2048, 32768),   sparse_case(128, 1, 16, 2048, 32768),
          sparse_case(128, 1, 8, 2048, 32768)};
}

/// From a plain cache, which indices read token by token.
std::vector<BenchCase> sparse_plain() {
  std::vector<BenchCase> cases = {
      sparse_case(128, 1, 8, 2048, 8192),       sparse_case(128, 1, 16, 2048, 8192),
      sparse_case(128, 1, 64, 2048, 8192),      sparse_case(128, 1, 128, 2048, 8192),
      sparse_case(64, 1, 16, 1024, 8192),       sparse_case(100, 1, 16, 512, 8192),
      sparse_case(96, 1, 64, 2048, 8192),       sparse_case(2, 1, 16, 2048, 8192, true),
      sparse_case(2, 2, 128, 2048, 8192, true), sparse_case(32, 1, 128, 2048, 8192, true)};
  for (BenchCase& c : cases) c.problem.cache.format = KvFormat::kPlain;
  return cases;
}

std::vector<BenchCase> sparse_cpu() {
  return {sparse_case(16, 1, 8, 2048, 8192), sparse_case(4, 1, 16, 2048, 8192),
          sparse_case(2, 2, 128, 2048, 8192), sparse_case(1, 1, 16, 16384, 32768)};
}

std::vector<BenchCase> sparse_small() {
  return {sparse_case(3, 2, 8, 100, 300), sparse_case(2, 1, 64, 65, 200), sparse_case(1, 1, 4, 1500, 700)};
}

/// DeepSeek V4: a window of 128 tokens in a cache of 2^20 tokens in pages of 256, and an extra cache: `topk`
/// of its tokens, or without indices all `extra_tokens` of a request.
BenchCase v4_case(int batch, int query_tokens, int heads, int topk, int page_size, int extra_pool,
                  bool indexed = true) {
  BenchCase c = sparse_case(batch, query_tokens, heads, 128, (1 << 20) / batch, true);
  set_format(c.problem.cache, KvFormat::kFp8_584);
  c.problem.cache.page_size = 256;
  c.problem.options.softmax_scale = 1.0F / std::sqrt(512.0F);
  c.problem.options.attn_sink = true;
  if (topk == 0) return c;
  c.problem.cache.extra = {.enabled = true,
                           .indexed = indexed,
                           .page_size = page_size,
                           .topk = indexed ? topk : 0,
                           .max_pages = 0};
  c.extra_tokens = indexed ? extra_pool / batch : topk;
  return c;
}

/// FlashMLA's shapes, the same with few heads, and all of an extra cache by page table.
std::vector<BenchCase> sparse_v4() {
  constexpr int kPool64 = 1 << 20, kPool2 = 1 << 18;  // tokens, in pages of 64 and of 2
  std::vector<BenchCase> cases;
  for (auto [batch, query_tokens, heads, topk] : {std::tuple{128, 2, 64, 512},
                                                  {128, 2, 128, 1024},
                                                  {64, 2, 64, 512},
                                                  {64, 2, 128, 1024},
                                                  {2, 2, 64, 512},
                                                  {2, 2, 128, 1024},
                                                  {128, 1, 8, 512},
                                                  {128, 1, 16, 512},
                                                  {128, 1, 32, 512},
                                                  {128, 1, 16, 1024},
                                                  {8, 1, 16, 512},
                                                  {8, 1, 64, 512},
                                                  {128, 1, 64, 0}}) {
    cases.push_back(v4_case(batch, query_tokens, heads, topk, 64, kPool64));
  }
  for (int heads : {64, 128}) cases.push_back(v4_case(128, 2, heads, 1024, 2, kPool2));
  for (int heads : {16, 64, 128}) {
    // Fewer tokens a request than indices, so each is named more than once, as in a pool that requests share.
    cases.push_back(v4_case(128, 1, heads, 8192, 2, kPool2));
    cases.push_back(v4_case(128, 1, heads, 8192, 2, 0, false));
  }
  return cases;
}

/// The same calls with the edges of the layer, and without.
std::vector<BenchCase> sparse_v4_edges() {
  std::vector<BenchCase> cases;
  for (int heads : {16, 64, 128}) {
    for (int batch : {1, 8, 64, 128}) {
      const BenchCase plain = v4_case(batch, 1, heads, 512, 64, 1 << 20);
      const auto add = [&](runtime::BenchEdges edges) {
        cases.push_back(plain);
        cases.back().edges = edges;
      };
      add({});
      add({.query = true, .output = true});
      if (batch != 1 && batch != 128) continue;
      add({.query = true, .output = false});
      add({.query = false, .output = true});
    }
  }
  return cases;
}

/// The same calls from DeepSeek V4.1's records: the extra cache in nvfp4_288, and then in mxfp8_528, too.
std::vector<BenchCase> sparse_v41() {
  constexpr int kPool64 = 1 << 20, kPool2 = 1 << 18;  // tokens, in pages of 64 and of 2
  std::vector<BenchCase> cases;
  for (const bool fp4 : {true, false}) {
    const auto add = [&](BenchCase c) {
      set_format(c.problem.cache, KvFormat::kMxfp8_528);
      if (fp4) c.problem.cache.extra.format = KvFormat::kNvfp4_288;
      cases.push_back(std::move(c));
    };
    for (int heads : {8, 16, 32, 64}) add(v4_case(128, 1, heads, 512, 64, kPool64));
    for (int heads : {16, 64, 128}) {
      add(v4_case(128, 1, heads, 8192, 2, kPool2));
      add(v4_case(128, 1, heads, 8192, 2, 0, false));
    }
    add(v4_case(128, 2, 128, 1024, 64, kPool64));
    add(v4_case(8, 1, 16, 512, 64, kPool64));
  }
  return cases;
}

/// The same with the edges of the layer, which are V4's but for the norm, and without.
std::vector<BenchCase> sparse_v41_edges() {
  std::vector<BenchCase> cases;
  for (int heads : {8, 16, 32, 64, 128}) {
    for (int batch : {1, 8, 64, 128}) {
      BenchCase c = v4_case(batch, 1, heads, 512, 64, 1 << 20);
      set_format(c.problem.cache, KvFormat::kMxfp8_528);
      c.problem.cache.extra.format = KvFormat::kNvfp4_288;
      cases.push_back(c);
      c.edges = {.query = true, .output = true, .norm = false};
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

/// `query_tokens` of a prompt, each with `topk` of the cache's tokens, and a sink.
BenchCase prefill_case(int query_tokens, int heads, int qk_dim, int s_kv, int topk, int page_size = 1) {
  BenchCase c = sparse_case(1, query_tokens, heads, topk, s_kv);
  c.prefill = true;
  c.problem.cache.format = KvFormat::kPlain;
  c.problem.cache.qk_dim = qk_dim;
  c.problem.cache.page_size = page_size;
  c.problem.options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(qk_dim));
  c.problem.options.attn_sink = true;
  return c;
}

/// Adds a second cache of `tokens` tokens, with `topk` indices into it.
BenchCase with_extra(BenchCase c, int topk, int tokens) {
  c.problem.cache.extra = {.enabled = true, .indexed = true, .page_size = 64, .topk = topk, .max_pages = 0};
  c.extra_tokens = tokens;
  return c;
}

/// Prompts of DeepSeek V3.2 and V4, from contiguous rows and from paged caches.
std::vector<BenchCase> sparse_prefill() {
  std::vector<BenchCase> cases = {
      prefill_case(4096, 128, 576, 8192, 2048),   prefill_case(4096, 128, 576, 32768, 2048),
      prefill_case(4096, 128, 576, 131072, 2048), prefill_case(4096, 64, 576, 32768, 2048),
      prefill_case(4096, 16, 576, 32768, 2048),   prefill_case(4096, 64, 512, 8192, 512),
      prefill_case(4096, 128, 512, 8192, 1024)};
  for (const auto& [format, extra] : {std::pair<KvFormat, std::optional<KvFormat>>{KvFormat::kFp8_584, {}},
                                      {KvFormat::kMxfp8_528, KvFormat::kNvfp4_288}}) {
    for (int heads : {128, 64, 32, 16, 8}) {
      BenchCase v4 =
          with_extra(prefill_case(4096, heads, 512, 65536, 128, 256), heads == 128 ? 1024 : 512, 65536);
      set_format(v4.problem.cache, format);
      v4.problem.cache.extra.format = extra;
      cases.push_back(v4);
      v4.max_logits = false;
      cases.push_back(v4);
      v4.edges = {.query = true, .output = true, .norm = format == KvFormat::kFp8_584};
      cases.push_back(std::move(v4));
    }
  }
  for (const KvFormat format : {KvFormat::kFp8_656, KvFormat::kE4m3}) {
    for (int heads : {128, 64, 32, 16, 8}) {
      cases.push_back(prefill_case(4096, heads, 576, 32768, 2048, 64));
      cases.back().problem.cache.format = format;
      if (format == KvFormat::kFp8_656) continue;
      cases.push_back(cases.back());
      cases.back().problem.query.e4m3 = true;
    }
  }
  cases.push_back(with_extra(prefill_case(4096, 64, 576, 32768, 1536), 512, 32768));
  return cases;
}

/// A few of them that a processor can do.
std::vector<BenchCase> sparse_prefill_small() {
  std::vector<BenchCase> cases = {prefill_case(16, 8, 576, 300, 100), prefill_case(4, 64, 512, 200, 65),
                                  with_extra(prefill_case(3, 8, 576, 300, 70), 65, 300),
                                  prefill_case(3, 8, 576, 300, 70, 64)};
  cases.back().problem.cache.format = KvFormat::kE4m3;
  return cases;
}

/// A few of them that a processor can do.
std::vector<BenchCase> sparse_v4_small() {
  std::vector<BenchCase> cases = {v4_case(2, 1, 16, 512, 64, 4096), v4_case(2, 2, 64, 512, 2, 4096),
                                  v4_case(2, 1, 16, 700, 2, 0, false)};
  for (BenchCase& c : cases) {
    c.graph = false;
    c.mean_length = 300;
    c.lengths = make_lengths("uniform", 2, 300, 1);
  }
  return cases;
}

constexpr BenchSuite kDenseSuites[] = {
    {"peers", "the shapes that MLA decode kernels publish: large, varied, small and skewed batches", peers},
    {"flashmla", "FlashMLA's table: batch 128, 16 to 128 heads, 1 and 2 query tokens, 4K and 8K", flashmla},
    {"etap", "FlashMLA-ETAP's table: batch 16 and 32, 16 heads, 512 to 64K, fp16, with the RMSE", etap},
    {"fp8", "an fp8_656 cache: batch 128, 16 to 128 heads, 4K; one request of 128K", fp8},
    {"between", "between small and large batches: 6 to 112 requests, 16 to 128 heads", between},
    {"pages", "pages of 1, 16 and 64 tokens, 8 to 128 heads, 1 to 128 requests", pages},
    {"cpu", "seconds on a processor: arithmetic-bound, memory-bound, one long request", cpu},
    {"small", "a handful of tiny shapes", small},
};

constexpr BenchSuite kSparseSuites[] = {
    {"peers", "FlashMLA's rows and 8, 16 and 32 heads: topk 2,048 and 16,384 of 32,768 tokens", sparse_peers},
    {"plain", "a bf16 cache: topk 512 to 2,048 of 8,192 tokens, 2 to 128 requests", sparse_plain},
    {"v4", "DeepSeek V4: 128 tokens of a window cache and 512 to 8,192 of an extra one, fp8_584, with a sink",
     sparse_v4},
    {"v4-edges", "DeepSeek V4 with the edges of the layer (query norm, rotations, FP8 output) and without",
     sparse_v4_edges},
    {"v41", "the same of DeepSeek V4.1: mxfp8_528, the extra cache nvfp4_288 or mxfp8_528", sparse_v41},
    {"v41-edges", "DeepSeek V4.1 with the edges of the layer (rotations, FP8 output) and without",
     sparse_v41_edges},
    {"prefill", "sparse prefill: 4,096 query tokens, topk 512 to 2,048, 16 to 128 heads, with a sink",
     sparse_prefill},
    {"cpu", "seconds on a processor", sparse_cpu},
    {"small", "a handful of tiny shapes", sparse_small},
    {"prefill-small", "the same of sparse prefill", sparse_prefill_small},
    {"v4-small", "the same of DeepSeek V4", sparse_v4_small},
};

}  // namespace

std::vector<int> make_lengths(const std::string& distribution, int batch, int mean, int least) {
  std::vector<int> lengths(batch, mean);
  if (distribution == "uniform") return lengths;
  for (int i = 0; i < batch; ++i) {
    const double z = normal_quantile((i + 0.5) / batch);
    lengths[i] = std::max(least, static_cast<int>(mean + z * mean / 2));
  }
  std::shuffle(lengths.begin(), lengths.end(), std::mt19937(0));
  return lengths;
}

std::string name_of(const BenchCase& c) {
  const auto& [query, cache, sparse, options] = c.problem;
  std::string shape = fmt::format("b{} s_q{} h{} ", c.lengths.size(), query.tokens, query.heads);
  std::string page = cache.page_size == 64 ? "" : fmt::format(" page{}", cache.page_size);
  if (c.prefill) {
    shape = fmt::format("s_q{} h{} d{} s_kv{} ", query.tokens, query.heads, cache.qk_dim, c.mean_length);
    page = cache.format == KvFormat::kPlain ? "" : fmt::format(" {}", to_string(cache.format));
  }
  if (cache.dtype == Dtype::kF16) page += " fp16";
  if (!c.prefill && has_places(cache.format)) page += fmt::format(" {}", to_string(cache.format));
  const auto& extra = cache.extra;
  if (extra.enabled) {
    page += fmt::format(" extra{}{} page{}", extra.indexed ? "" : " all ",
                        extra.indexed ? extra.topk : c.extra_tokens, extra.page_size);
    if (extra.format) page += fmt::format(" {}", to_string(*extra.format));
  }
  if (!c.max_logits) page += " without_max";
  if (c.problem.query.e4m3 && c.prefill) page += " e4m3_q";
  if (c.edges.any()) {
    page += c.edges.query && c.edges.output ? " edges" : c.edges.query ? " query edge" : " output edge";
  }
  return shape +
         (sparse.enabled ? fmt::format("topk{}", sparse.topk)
                         : fmt::format("s_k{} {}", c.mean_length, c.distribution)) +
         page;
}

std::span<const BenchSuite> dense_suites() {
  return kDenseSuites;
}

std::span<const BenchSuite> sparse_suites() {
  return kSparseSuites;
}

std::vector<std::string> suite_names(std::span<const BenchSuite> suites) {
  std::vector<std::string> list;
  for (const BenchSuite& suite : suites) list.emplace_back(suite.name);
  return list;
}

std::string describe_suites(std::span<const BenchSuite> suites) {
  std::string text;
  for (const BenchSuite& suite : suites) text += fmt::format("\n  {}: {}", suite.name, suite.what);
  return text;
}

std::vector<BenchCase> suite_cases(std::span<const BenchSuite> suites, const std::string& name) {
  for (const BenchSuite& suite : suites) {
    if (name != suite.name) continue;
    std::vector<BenchCase> cases = suite.cases();
    for (BenchCase& c : cases) {
      if (c.name.empty()) c.name = name_of(c);
    }
    return cases;
  }
  return {};
}

}  // namespace flashlatent::tools
