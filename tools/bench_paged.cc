// flashlatent bench paged: decode from separate keys and values (MHA, GQA, MQA).
#include <fmt/core.h>

#include <cmath>

#include "tools/bench_decode.h"

namespace flashlatent::tools {

namespace {

/// One shape.
struct PagedShape {
  int batch = 64;
  int mean_length = 4096;
  std::string distribution = "uniform";
  int query_tokens = 1;
  int heads = 32;
  int kv_heads = 8;
  int dim = 128;
  int page_size = 64;
  KvLayout layout = KvLayout::kSeparate;
  KvFormat format = KvFormat::kPlain;
  Dtype dtype = Dtype::kBF16;
  int shared_tokens = 0;
  PrefixSharing sharing = PrefixSharing::kAuto;  // of the shared tokens
};

BenchCase case_of(const PagedShape& s) {
  BenchCase c;
  DecodeProblem& p = c.problem;
  p.query.tokens = s.query_tokens;
  p.query.heads = s.heads;
  p.cache = {.format = s.format,
             .dtype = s.dtype,
             .heads = s.kv_heads,
             .qk_dim = s.dim,
             .v_dim = s.dim,
             .page_size = s.page_size,
             .max_pages = 0,
             .layout = s.layout};
  p.options.softmax_scale = 1.0F / std::sqrt(static_cast<float>(s.dim));
  p.options.causal = true;
  c.mean_length = s.mean_length;
  c.distribution = s.distribution;
  c.lengths = make_lengths(s.distribution, s.batch, s.mean_length, s.query_tokens);
  c.graph = s.batch == 1;
  c.shared_tokens = s.shared_tokens;
  if (s.shared_tokens > 0) p.options.prefix_sharing = s.sharing;
  c.name = fmt::format("b{} h{}-{} d{} s_k{} {}", s.batch, s.heads, s.kv_heads, s.dim, s.mean_length,
                       s.distribution);
  if (s.query_tokens > 1) c.name += fmt::format(" s_q{}", s.query_tokens);
  if (s.format == KvFormat::kE4m3) c.name += " e4m3";
  if (s.layout == KvLayout::kPacked) c.name += " packed";
  if (s.shared_tokens > 0) {
    c.name += fmt::format(" shared {}", s.shared_tokens);
    if (s.sharing != PrefixSharing::kAuto) c.name += fmt::format(" ({})", to_string(s.sharing));
  }
  if (s.dtype == Dtype::kF16) c.name += " fp16";
  if (s.page_size != 64) c.name += fmt::format(" page{}", s.page_size);
  return c;
}

/// Batches of GQA, MHA and few KV heads; long and short requests, varied lengths, an FP8 cache.
std::vector<BenchCase> table(int page_size, KvLayout layout) {
  std::vector<PagedShape> shapes = {
      {},
      {.heads = 64},
      {.mean_length = 2048, .kv_heads = 32},
      {.batch = 128, .mean_length = 2048, .kv_heads = 4},
      {.batch = 16, .kv_heads = 32, .dim = 64},
      {.batch = 8, .mean_length = 16384, .heads = 64},
      {.batch = 1, .mean_length = 32768},
      {.batch = 1, .mean_length = 1024},
      {.distribution = "normal"},
      {.format = KvFormat::kE4m3},
  };
  std::vector<BenchCase> cases;
  for (PagedShape& shape : shapes) {
    shape.page_size = page_size;
    shape.layout = layout;
    cases.push_back(case_of(shape));
  }
  return cases;
}

/// Requests that share a prefix, with groups and without.
std::vector<BenchCase> prefixes() {
  std::vector<BenchCase> cases;
  for (const PagedShape& shape : {PagedShape{.batch = 64, .mean_length = 8704, .shared_tokens = 8192},
                                  {.batch = 16, .mean_length = 2560, .shared_tokens = 2048},
                                  {.batch = 256, .mean_length = 1536, .shared_tokens = 1024},
                                  {.batch = 64, .mean_length = 8704, .heads = 64, .shared_tokens = 8192}}) {
    for (PrefixSharing sharing : {PrefixSharing::kAuto, PrefixSharing::kOff}) {
      PagedShape other = shape;
      other.sharing = sharing;
      cases.push_back(case_of(other));
    }
  }
  return cases;
}

/// Small ones, for some seconds on a processor.
std::vector<BenchCase> cpu() {
  std::vector<BenchCase> cases;
  for (KvLayout layout : {KvLayout::kSeparate, KvLayout::kPacked}) {
    for (KvFormat format : {KvFormat::kPlain, KvFormat::kE4m3}) {
      for (const PagedShape& shape : {PagedShape{.batch = 4},
                                      {.batch = 4, .mean_length = 1024, .kv_heads = 32},
                                      {.batch = 4, .kv_heads = 1},
                                      {.batch = 1, .mean_length = 32768}}) {
        PagedShape other = shape;
        other.layout = layout;
        other.format = format;
        cases.push_back(case_of(other));
      }
    }
  }
  return cases;
}

/// Prompts into pages: MHA and GQA, from one long prompt to many short ones, and chunks behind a cached
/// prefix.
std::vector<BenchCase> prefill() {
  std::vector<BenchCase> cases;
  for (int dim : {128, 64}) {
    for (auto [batch, tokens] : {std::pair{8, 1024}, {8, 2048}, {4, 4096}, {2, 8192}, {1, 16384}}) {
      cases.push_back(case_of({.batch = batch, .mean_length = tokens, .query_tokens = tokens, .dim = dim}));
    }
    cases.push_back(
        case_of({.batch = 4, .mean_length = 4096, .query_tokens = 4096, .kv_heads = 32, .dim = dim}));
  }
  for (int page_size : {16, 128}) {
    cases.push_back(case_of({.batch = 4, .mean_length = 4096, .query_tokens = 4096, .page_size = page_size}));
  }
  cases.push_back(case_of({.batch = 8, .mean_length = 8192, .query_tokens = 512}));
  cases.push_back(case_of({.batch = 1, .mean_length = 32768, .query_tokens = 2048}));
  for (int dim : {80, 192, 256}) {
    cases.push_back(case_of({.batch = 4, .mean_length = 4096, .query_tokens = 4096, .dim = dim}));
  }
  for (const PagedShape& shape : {PagedShape{.batch = 8, .mean_length = 1024, .query_tokens = 1024},
                                  {.batch = 4, .mean_length = 4096, .query_tokens = 4096},
                                  {.batch = 4, .mean_length = 4096, .query_tokens = 4096, .dim = 64},
                                  {.batch = 8, .mean_length = 8192, .query_tokens = 512}}) {
    PagedShape from_e4m3 = shape;
    from_e4m3.format = KvFormat::kE4m3;
    cases.push_back(case_of(from_e4m3));
  }
  return cases;
}

std::vector<BenchCase> small() {
  return {case_of({.batch = 2, .mean_length = 256, .heads = 8, .kv_heads = 2}),
          case_of({.batch = 3,
                   .mean_length = 200,
                   .distribution = "normal",
                   .heads = 4,
                   .kv_heads = 4,
                   .dim = 80,
                   .page_size = 8}),
          case_of({.batch = 1,
                   .mean_length = 300,
                   .query_tokens = 2,
                   .heads = 8,
                   .kv_heads = 2,
                   .page_size = 16,
                   .layout = KvLayout::kPacked,
                   .format = KvFormat::kE4m3}),
          case_of({.batch = 8, .mean_length = 256, .heads = 8, .kv_heads = 2, .shared_tokens = 192})};
}

constexpr BenchSuite kSuites[] = {
    {"peers", "MHA, GQA and few KV heads, large, varied and small batches, FP8; pages of 64",
     [] { return table(64, KvLayout::kSeparate); }},
    {"page16", "the same with pages of 16", [] { return table(16, KvLayout::kSeparate); }},
    {"packed", "the same in the packed layout, with pages of 16",
     [] { return table(16, KvLayout::kPacked); }},
    {"prefix", "requests that share a prefix, attended to by groups (auto) and without (off)", prefixes},
    {"prefill", "prompts of 1K to 16K tokens, whole and in chunks, at d 64 and 128; other d; from e4m3",
     prefill},
    {"cpu", "seconds on a processor: both layouts, bf16 and e4m3", cpu},
    {"small", "a handful of tiny shapes", small},
};

struct BenchPagedOptions {
  BenchOptions bench;
  PagedShape shape;
  std::string layout = "separate", kv = "plain", dtype = "bf16", sharing = "auto";
};

int run_bench_paged(const BenchPagedOptions& options) {
  PagedShape shape = options.shape;
  shape.layout = options.layout == "packed" ? KvLayout::kPacked : KvLayout::kSeparate;
  shape.format = *kv_format_from_name(options.kv);
  shape.sharing = *prefix_sharing_from_name(options.sharing);
  shape.dtype = options.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  std::vector<BenchCase> cases = options.bench.suite.empty() ? std::vector<BenchCase>{case_of(shape)}
                                                             : suite_cases(kSuites, options.bench.suite);
  for (const BenchCase& c : cases) {
    if (const Status status = validate(c.problem); !status.ok()) return fail(status);
  }
  return run_bench_decode("paged", std::move(cases), options.bench);
}

void add_shape_options(CLI::App& app, BenchPagedOptions& options) {
  PagedShape& shape = options.shape;
  auto add = [&](const char* flag, int& value, const char* help, int most) {
    app.add_option(flag, value, help)->check(CLI::Range(1, most))->capture_default_str()->group("Shape");
  };
  auto choose = [&](const char* flag, std::string& value, const char* help, std::vector<std::string> from) {
    app.add_option(flag, value, help)
        ->check(CLI::IsMember(std::move(from)))
        ->capture_default_str()
        ->group("Shape");
  };
  add("--batch", shape.batch, "Requests", 1 << 20);
  add("--tokens", shape.mean_length, "Mean length, s_k", 1 << 30);
  choose("--lengths", shape.distribution, "uniform, or normal with deviation s_k/2", {"uniform", "normal"});
  add("--query-tokens", shape.query_tokens, "s_q, causal", 1 << 16);
  add("--heads", shape.heads, "h_q", 1 << 16);
  add("--kv-heads", shape.kv_heads, "h_kv", 1 << 16);
  add("--dim", shape.dim, "Elements of a key, and of a value", 4096);
  add("--page-size", shape.page_size, "Tokens a page", 1 << 20);
  choose("--layout", options.layout, "Keys and values separate, or packed as vLLM has them",
         {"separate", "packed"});
  choose("--kv", options.kv, "Cache format: plain (of the dtype) or e4m3", {"plain", "e4m3"});
  app.add_option("--shared-tokens", shape.shared_tokens, "At the begin of all requests, on the same pages")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str()
      ->group("Shape");
  choose("--prefix-sharing", options.sharing, "Are those attended to by groups?", {"off", "auto", "always"});
  app.get_option("--prefix-sharing")->needs("--shared-tokens");
  choose("--dtype", options.dtype, "bf16 or fp16", {"bf16", "fp16"});
  exclude_suite(app);
}

}  // namespace

void add_bench_paged(CLI::App& bench, Action& action) {
  CLI::App* paged =
      bench.add_subcommand("paged", "Decode from separate keys and values: MHA, GQA and MQA models");
  auto options = std::make_shared<BenchPagedOptions>();
  add_bench_options(*paged, kSuites, options->bench);
  add_shape_options(*paged, *options);
  paged->footer(
      "floor ms is the time that keys and values, read once, or operations (of a prompt those on tokens that "
      "are attended to) need at the measured roof; roof% is the floor over the time taken.\n"
      "Example: flashlatent bench paged --suite peers --backend cuda --with-cold --json paged.json");
  paged->callback([&action, options] { action = [options] { return run_bench_paged(*options); }; });
}

}  // namespace flashlatent::tools
