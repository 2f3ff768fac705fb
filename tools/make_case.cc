// flashlatent make-case OUT
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "core/decode_inputs.h"
#include "core/edge_check.h"
#include "core/formats/formats.h"
#include "core/query_parts.h"
#include "core/return_if_error.h"
#include "core/rotation.h"
#include "core/token_bytes.h"
#include "cpu/parallel.h"
#include "cpu/reference.h"
#include "cpu/reference_tokens.h"
#include "io/case_check.h"
#include "io/safetensors.h"
#include "runtime/host_memory.h"
#include "runtime/prefill_run.h"
#include "runtime/random_case.h"
#include "runtime/split_query.h"
#include "tools/command.h"

namespace flashlatent::tools {

namespace {

constexpr int kLongest = 1 << 24;

struct MakeCaseOptions {
  std::string path;
  std::string dtype = "bf16";
  std::string kv = "plain", extra_kv, scale_place;
  std::string dims;
  std::string layout = "latent";
  std::string prefill;  // "rows", "pages"; empty: decode
  std::string products = "auto";
  std::string pairs = "gptj", table_layout = "halves";
  std::optional<int> page_size;
  int batch = 0;  // 0: the number of lengths
  bool no_reference = false;
  std::uint64_t seed = 0;
  runtime::CaseSpec spec = {.lengths = {0, 1, 64, 200}, .topk = -1, .extra_topk = -1};
};

/// --topk-lengths or --extra-topk-lengths: one for each request or query token, at most `topk`.
Status check_topk_lengths(const char* option, const std::vector<int>& lengths, int topk,
                          const runtime::CaseSpec& spec) {
  const std::size_t requests = spec.lengths.size(), tokens = requests * spec.query_tokens;
  const bool by_token = spec.ragged_tokens.empty() && lengths.size() == tokens;
  if (!lengths.empty() && lengths.size() != requests && !by_token) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--{}-lengths has {} numbers, but there are {} requests of {} query tokens; one for "
                        "each request is accepted, or, unless they are ragged, one for each query token",
                        option, lengths.size(), requests, spec.query_tokens)};
  }
  for (int length : lengths) {
    if (length <= topk) continue;
    return {StatusCode::kInvalidArgument, fmt::format("--{0}-lengths has {1}; 0 to --{0} {2} is accepted",
                                                      option, length, std::max(topk, 0))};
  }
  return {};
}

/// What make_case() asks of edges, and what the call would refuse.
Status finish_edges(const MakeCaseOptions& options, runtime::CaseSpec& spec) {
  runtime::EdgeSpec& edges = spec.edges;
  edges.pairs = options.pairs == "neox" ? RotaryPairs::kHalves : RotaryPairs::kNeighbours;
  edges.layout = options.table_layout == "interleaved" ? RotaryTable::kInterleaved : RotaryTable::kHalves;
  const auto refuse = [](const std::string& why) { return Status(StatusCode::kInvalidArgument, why); };
  if (edges.q_columns == 0 && edges.out_columns == 0) {
    for (const auto& [option, given] : {std::pair{"--pairs", edges.pairs != RotaryPairs::kNeighbours},
                                        {"--table-layout", edges.layout != RotaryTable::kHalves},
                                        {"--bf16-table", edges.bf16_table},
                                        {"--int64-positions", edges.wide_positions}}) {
      if (given)
        return refuse(
            fmt::format("{} is given without --q-rotate or --out-rotate, to which it belongs", option));
    }
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_epsilon("--q-norm", edges.norm));
  if (spec.split_query && edges.norm != 0) {
    return refuse(fmt::format(
        "--q-norm is {:g} and --split-query is given; a query in two parts is rotated alone", edges.norm));
  }
  const int q_columns = spec.split_query ? query_parts::kRopeDim : spec.qk_dim;
  for (const auto& [option, columns, most] : {std::tuple{"--q-rotate", edges.q_columns, q_columns},
                                              {"--out-rotate", edges.out_columns, spec.v_dim}}) {
    if (columns % 16 == 0 && columns <= most) continue;
    return refuse(fmt::format("{} is {}; a multiple of 16 up to {} is accepted", option, columns, most));
  }
  if (edges.fp8_columns == 0) return {};
  if (spec.heads % edges.fp8_groups != 0) {
    return refuse(fmt::format("--fp8-groups is {} and --heads {}; a divisor of them is accepted",
                              edges.fp8_groups, spec.heads));
  }
  if (spec.v_dim % edges::kScaleColumns == 0) return {};
  return refuse(fmt::format("--out-fp8 is given and d_v is {}; a multiple of {} is accepted", spec.v_dim,
                            edges::kScaleColumns));
}

Status finish_spec(const MakeCaseOptions& options, runtime::CaseSpec& spec) {
  spec = options.spec;
  spec.dtype = options.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  spec.format = *kv_format_from_name(options.kv);
  if (!options.extra_kv.empty()) spec.extra_format = *kv_format_from_name(options.extra_kv);
  FLASHLATENT_ASSIGN_OR_RETURN(spec.scale_place,
                               scale_place_of(options.scale_place, spec.format, options.kv));
  spec.layout = options.layout == "packed"     ? KvLayout::kPacked
                : options.layout == "separate" ? KvLayout::kSeparate
                                               : KvLayout::kLatent;
  spec.products = *products_from_name(options.products);
  spec.sparse = spec.topk >= 0;
  spec.extra_indexed = spec.extra_topk >= 0;
  if (!spec.extra_indexed) spec.extra_topk = 0;
  if (options.prefill == "rows" && options.page_size) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--page-size is {}, and --prefill is rows, which have no pages; leave it out, or "
                        "--prefill pages is accepted",
                        *options.page_size)};
  }
  spec.page_size = options.prefill == "rows" ? 1 : options.page_size.value_or(spec.page_size);
  if (options.prefill == "rows" && spec.format != KvFormat::kPlain) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--prefill is rows, which are plain, and --kv is {}; --prefill pages is accepted",
                        options.kv)};
  }
  if (!options.prefill.empty() && !spec.extra_lengths.empty() && !spec.extra_indexed) {
    return {StatusCode::kInvalidArgument,
            "--extra-lengths is given without --extra-topk; with --prefill both are expected"};
  }
  int end = 0;
  const LatentFormat& format = format_of(spec.format, spec.scale_place);
  const std::string dims = !options.dims.empty() ? options.dims
                           : format.all_value    ? fmt::format("{0}/{0}", format.dim)
                                                 : "576/512";
  const int numbers = std::sscanf(dims.c_str(), "%d/%d%n", &spec.qk_dim, &spec.v_dim, &end);
  if (numbers != 2 || static_cast<std::size_t>(end) != dims.size() || std::min(spec.qk_dim, spec.v_dim) < 1 ||
      std::max(spec.qk_dim, spec.v_dim) > 4096 ||
      (spec.layout == KvLayout::kLatent && spec.v_dim > spec.qk_dim)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--dims is '{}'; expected d_qk/d_v, each from 1 to 4096 and of a latent cache d_v <= "
                        "d_qk, such as 576/512",
                        dims)};
  }
  if (options.batch > 0) {
    const std::vector<int> pattern = spec.lengths;
    spec.lengths.resize(options.batch);
    for (int i = 0; i < options.batch; ++i) spec.lengths[i] = pattern[i % pattern.size()];
  }
  if (!spec.extra_lengths.empty()) {
    const std::vector<int> pattern = spec.extra_lengths;
    if (pattern.size() > spec.lengths.size()) {
      return {StatusCode::kInvalidArgument,
              fmt::format(
                  "--extra-lengths has {} numbers, but there are {} requests; as many or fewer, which come "
                  "over and over, are accepted",
                  pattern.size(), spec.lengths.size())};
    }
    spec.extra_lengths.resize(spec.lengths.size());
    for (std::size_t i = 0; i < spec.lengths.size(); ++i) spec.extra_lengths[i] = pattern[i % pattern.size()];
  }
  if (!spec.ragged_tokens.empty() && spec.ragged_tokens.size() != spec.lengths.size()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--ragged has {} numbers, but there are {} requests; expected one for each",
                        spec.ragged_tokens.size(), spec.lengths.size())};
  }
  FLASHLATENT_RETURN_IF_ERROR(check_topk_lengths("topk", spec.topk_lengths, spec.topk, spec));
  FLASHLATENT_RETURN_IF_ERROR(
      check_topk_lengths("extra-topk", spec.extra_topk_lengths, spec.extra_topk, spec));
  if (spec.scales > 0 && spec.format != KvFormat::kE4m3) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--scales is {}; those are for --kv e4m3, and --kv is {}", spec.scales, options.kv)};
  }
  if (spec.scales > 1 && spec.scales != spec.kv_heads) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--scales is {}; 0, 1 or --kv-heads {} is accepted", spec.scales, spec.kv_heads)};
  }
  if (spec.query_scales > 1 && spec.query_scales != spec.heads) {
    return {StatusCode::kInvalidArgument, fmt::format("--query-scales is {}; 0, 1 or --heads {} is accepted",
                                                      spec.query_scales, spec.heads)};
  }
  if (spec.split_query && !runtime::may_split_query(runtime::problem_of(spec))) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("--split-query is given, but --layout is {} and d_qk {}; a latent cache of 576 or 320 "
                    "is accepted",
                    options.layout, spec.qk_dim)};
  }
  FLASHLATENT_RETURN_IF_ERROR(finish_edges(options, spec));
  if (spec.heads % spec.kv_heads != 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--heads is {}, must be a multiple of --kv-heads {}", spec.heads, spec.kv_heads)};
  }
  return {};
}

/// A page table as the case format has it: -1 where unused. `lengths`: of requests, or of query tokens.
std::vector<std::int32_t> page_table(const ConstTensorView& entries, const ConstTensorView& lengths,
                                     int page_size) {
  const std::int64_t columns = entries.shape[1], each = lengths.rank == 2 ? lengths.shape[1] : 1;
  const auto* numbers = static_cast<const std::int32_t*>(entries.data);
  const auto* tokens = static_cast<const std::int32_t*>(lengths.data);
  std::vector<std::int32_t> table(numbers, numbers + entries.elements());
  for (std::int64_t request = 0; request < entries.shape[0]; ++request) {
    const std::int64_t most = *std::max_element(tokens + request * each, tokens + (request + 1) * each);
    const auto row = table.begin() + request * columns;
    std::fill(row + (most + page_size - 1) / page_size, row + columns, -1);
  }
  return table;
}

/// A cache as the case format has it.
ConstTensorView cache_tensor(const ConstTensorView& view, KvFormat format) {
  if (!view.present() || !io::is_pages(format)) return view;
  return {view.data, Dtype::kU8, {view.shape[0], view.strides[0]}};
}

struct References {
  std::vector<float> out;         // q's shape, with v_dim as the last dimension
  std::vector<float> lse;         // (batch, heads, query tokens)
  std::vector<float> max_logits;  // (batch, heads, query tokens)
};

References make_references(const DecodeProblem& problem, const DecodeInputs& inputs) {
  // Copies, because clang 14 cannot capture structured bindings.
  const DecodeProblem::Query query = problem.query;
  const int v_dim = problem.cache.v_dim;
  const std::int64_t tokens = query.ragged ? inputs.q.shape[0] : std::int64_t{query.batch} * query.tokens;
  const std::int64_t rows = std::int64_t{query.batch} * query.tokens * query.heads;
  References references;
  references.out.resize(tokens * query.heads * v_dim);
  references.lse.assign(rows, -std::numeric_limits<float>::infinity());
  references.max_logits = references.lse;
  const auto* begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data);
  cpu::parallel_for_dynamic(rows, cpu::hardware_threads(), [&](std::int64_t i) {
    const int head = static_cast<int>(i % query.heads);
    const int token = static_cast<int>(i / query.heads % query.tokens);
    const int request = static_cast<int>(i / query.heads / query.tokens);
    if (token >= cpu::query_tokens(problem, inputs, request)) return;
    const std::int64_t position = (query.ragged ? begins[request] : request * query.tokens) + token;
    const cpu::ReferenceRow row = cpu::reference_row(problem, inputs, request, token, head);
    std::transform(row.out.begin(), row.out.end(),
                   references.out.begin() + (position * query.heads + head) * v_dim,
                   [](double value) { return static_cast<float>(value); });
    const std::int64_t at = (std::int64_t{request} * query.heads + head) * query.tokens + token;
    references.lse[at] = static_cast<float>(row.lse);
    references.max_logits[at] = static_cast<float>(row.max_logit);
  });
  return references;
}

/// Checks the memory for the case before any is taken.
Status check_memory_for(const runtime::CaseSpec& spec, bool has_reference) {
  double pages = 0, longest = 1, tokens = 0;
  for (int length : spec.lengths) {
    const int has = length / spec.page_size + (length % spec.page_size != 0 ? 1 : 0);
    pages += has;
    longest = std::max<double>(longest, has);
  }
  const double batch = static_cast<double>(spec.lengths.size());
  tokens = batch * spec.query_tokens;
  if (!spec.ragged_tokens.empty()) {
    tokens = std::accumulate(spec.ragged_tokens.begin(), spec.ragged_tokens.end(), 0.0);
  }
  const std::string what = fmt::format("a case of {} requests of up to {} tokens", spec.lengths.size(),
                                       *std::max_element(spec.lengths.begin(), spec.lengths.end()));
  if (pages > std::numeric_limits<std::int32_t>::max() - 3.0) {
    return {StatusCode::kExhausted,
            fmt::format("{} has {:.0f} pages of {} tokens; at most 2147483647 have numbers", what, pages,
                        spec.page_size)};
  }
  const auto token = static_cast<double>(token_bytes(runtime::problem_of(spec).cache));
  for (int length : spec.extra_lengths) pages += static_cast<double>(length) / spec.page_size + 1;
  const double names = 4 * (spec.sparse ? tokens * spec.topk : 2 * batch * longest);
  const double rows = tokens * spec.heads;
  const double bytes = pages * (spec.page_size * token + 8) + names +
                       rows * (2.0 * spec.qk_dim + (has_reference ? 4.0 * spec.v_dim + 4 : 0));
  return runtime::check_host_memory(bytes, what);
}

/// The metadata of a case's edges.
void add_edges(const runtime::EdgeSpec& edges, std::map<std::string, std::string>& metadata) {
  if (edges.norm != 0) metadata["q_norm"] = fmt::format("{:.9g}", edges.norm);
  const char* pairs = edges.pairs == RotaryPairs::kHalves ? "neox" : "gptj";
  const char* layout = edges.layout == RotaryTable::kInterleaved ? "interleaved" : "halves";
  for (const auto& [rotation, columns] :
       {std::pair<std::string, int>{"q_rotate", edges.q_columns}, {"out_rotate", edges.out_columns}}) {
    if (columns == 0) continue;
    metadata[rotation + ".pairs"] = pairs;
    metadata[rotation + ".table_layout"] = layout;
  }
  if (edges.fp8_columns == 0) return;
  metadata["out_fp8.scale_columns"] = fmt::format("{}", edges.fp8_columns);
  metadata["out_fp8.groups"] = fmt::format("{}", edges.fp8_groups);
  metadata["out_fp8.keeps_out"] = edges.keeps_out ? "true" : "false";
}

int run_make_case(const MakeCaseOptions& options) {
  runtime::CaseSpec spec;
  if (Status status = finish_spec(options, spec); !status.ok()) return fail(status);
  if (Status status = validate(runtime::problem_of(spec)); !status.ok()) return fail(status);
  if (Status status = check_memory_for(spec, !options.no_reference); !status.ok()) return fail(status);
  const runtime::RandomCase random_case = runtime::make_case(spec, options.seed);
  const auto& query = random_case.problem.query;
  const auto& cache = random_case.problem.cache;

  const DecodeInputs& inputs = random_case.inputs;
  const bool prefill = !options.prefill.empty();
  std::vector<io::NamedTensor> tensors = {{"q", inputs.q}};
  if (inputs.q_rope.present()) tensors.push_back({"q_rope", inputs.q_rope});
  if (prefill) {
    for (io::NamedTensor& part : tensors) {
      part.view = {part.view.data, part.view.dtype, {query.batch, query.heads, part.view.shape[3]}};
    }
  }
  ConstTensorView rows, paged = cache_tensor(inputs.kv_cache, cache.format);
  if (options.prefill == "rows") {
    rows = {inputs.kv_cache.data, cache.dtype, {inputs.kv_cache.shape[0], 1, cache.qk_dim}};
    paged = {};
  }
  for (const io::NamedTensor& tensor :
       {io::NamedTensor{"kv_cache", paged},
        {"kv", rows},
        {"extra_kv_cache", cache_tensor(inputs.extra_kv_cache, cache.extra_format())},
        {"extra_indices", inputs.extra_indices},
        {"extra_topk_length", inputs.extra_topk_length},
        {"extra_cache_seqlens", inputs.extra_cache_seqlens},
        {"key_cache", inputs.key_cache},
        {"value_cache", inputs.value_cache},
        {"kv_scale", inputs.kv_scale},
        {"q_scale", inputs.q_scale},
        {"key_scale", inputs.key_scale},
        {"value_scale", inputs.value_scale},
        {"alibi_slopes", inputs.alibi_slopes}}) {
    if (tensor.view.present()) tensors.push_back(tensor);
  }
  std::vector<std::int32_t> table;
  if (spec.sparse) {
    tensors.push_back({"indices", inputs.indices});
    if (inputs.topk_length.present()) tensors.push_back({"topk_length", inputs.topk_length});
  } else {
    table = page_table(inputs.block_table, inputs.cache_seqlens, cache.page_size);
    tensors.push_back({"block_table", {table.data(), Dtype::kI32, {query.batch, cache.max_pages}}});
    tensors.push_back({"cache_seqlens", inputs.cache_seqlens});
  }
  std::vector<std::int32_t> extra_table;
  if (inputs.extra_block_table.present()) {
    extra_table = page_table(inputs.extra_block_table, inputs.extra_cache_seqlens, cache.extra.page_size);
    tensors.push_back(
        {"extra_block_table", {extra_table.data(), Dtype::kI32, {query.batch, cache.extra.max_pages}}});
  }
  for (const auto& [positions, table, rotation] : kRotationInputs<DecodeInputs>) {
    const Rotation& given = inputs.*rotation;
    if (!given.present()) continue;
    tensors.push_back({positions, prefill ? runtime::without_query_token(given).positions : given.positions});
    tensors.push_back({table, given.table});
  }
  if (query.ragged) tensors.push_back({"cu_seqlens_q", inputs.cu_seqlens_q});
  if (spec.sink) tensors.push_back({"attn_sink", inputs.attn_sink});
  References references;
  if (!options.no_reference) {
    references = make_references(random_case.problem, inputs);
    ConstTensorView out(references.out.data(), Dtype::kF32,
                        {query.batch, query.tokens, query.heads, cache.v_dim});
    if (query.ragged)
      out = {references.out.data(), Dtype::kF32, {inputs.q.shape[0], query.heads, cache.v_dim}};
    ConstTensorView lse(references.lse.data(), Dtype::kF32, {query.batch, query.heads, query.tokens});
    if (prefill) {
      out = {references.out.data(), Dtype::kF32, {query.batch, query.heads, cache.v_dim}};
      lse = {references.lse.data(), Dtype::kF32, {query.batch, query.heads}};
      tensors.push_back(
          {"max_logits_ref", {references.max_logits.data(), Dtype::kF32, {query.batch, query.heads}}});
    }
    tensors.push_back({"out_ref", out});
    tensors.push_back({"lse_ref", lse});
  }
  // 17 digits identify any double.
  std::map<std::string, std::string> metadata = {
      {"kind", prefill                            ? "sparse_prefill"
               : spec.layout != KvLayout::kLatent ? "paged_decode"
               : spec.sparse                      ? "sparse_decode"
                                                  : "dense_decode"},
      {"softmax_scale", fmt::format("{:.17g}", random_case.problem.options.softmax_scale)},
      {"causal", spec.causal ? "true" : "false"},
      {"head_dim_v", fmt::format("{}", spec.v_dim)}};
  if (spec.format != KvFormat::kPlain) metadata["kv_format"] = to_string(spec.format);
  if (spec.products != Products::kAuto) metadata["products"] = to_string(spec.products);
  if (spec.soft_cap != 0) metadata["soft_cap"] = fmt::format("{:.9g}", spec.soft_cap);
  if (spec.window != 0) metadata["window"] = fmt::format("{}", spec.window);
  if (has_places(spec.format)) metadata["scales"] = to_string(spec.scale_place);
  if (cache.extra.format) metadata["extra_kv_format"] = to_string(*cache.extra.format);
  if (io::is_pages(spec.format)) metadata["page_size"] = fmt::format("{}", spec.page_size);
  if (cache.extra.enabled && io::is_pages(cache.extra_format())) {
    metadata["extra_page_size"] = fmt::format("{}", spec.extra_page_size);
  }
  add_edges(spec.edges, metadata);
  if (Status status = io::write_safetensors(options.path, tensors, metadata); !status.ok()) {
    return fail(status);
  }
  fmt::print("{}: {}{}, lengths {}{}\n", options.path, prefill ? "sparse prefill as " : "",
             to_string(random_case.problem), fmt::join(spec.lengths, ","),
             options.no_reference ? ", no reference" : "");
  return kRight;
}

}  // namespace

void add_make_case(CLI::App& app, Action& action) {
  CLI::App* make = app.add_subcommand("make-case", "Write a random decode case with its reference to a file");
  auto options = std::make_shared<MakeCaseOptions>();
  runtime::CaseSpec& spec = options->spec;
  make->add_option("OUT", options->path, "The safetensors file to write")->required()->check(writable_file());
  make->add_option("--dtype", options->dtype, "bf16 or fp16")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->capture_default_str();
  make->add_option("--kv", options->kv, "Cache format; plain: elements of the dtype")
      ->check(CLI::IsMember(kv_format_names()))
      ->capture_default_str();
  add_scale_place(*make, options->scale_place);
  make->add_option("--layout", options->layout,
                   "latent (MLA), or keys and values apart: separate, or packed as vLLM has them")
      ->check(CLI::IsMember({"latent", "separate", "packed"}))
      ->capture_default_str();
  make->add_option(
          "--scales", spec.scales,
          "e4m3: scales of keys and of values, none, 1 or one a KV head; of a latent cache none or 1")
      ->check(CLI::Range(0, 4096));
  make->add_flag("--e4m3-queries", spec.e4m3_query, "Latent e4m3 caches: queries in e4m3, too");
  make->add_option("--query-scales", spec.query_scales, "Their scales: none, 1 or one a head")
      ->check(CLI::Range(0, 4096))
      ->needs("--e4m3-queries");
  make->add_flag("--split-query", spec.split_query,
                 "The query in two tensors: q_rope with its last 64 columns, q with those before");
  make->add_option("--products", options->products, "Latent e4m3 caches: what is multiplied")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->capture_default_str();
  make->add_option("--soft-cap", spec.soft_cap, "Separate, packed: soft cap of scores; 0: none")
      ->check(number_between(0, 1e9));
  make->add_flag("--alibi", spec.alibi, "Separate, packed: with ALiBi slopes");
  make->add_option("--window", spec.window, "By page table: tokens that a query token sees; 0: all")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  make->add_option("--topk", spec.topk,
                   "Make it sparse: each query token attends to so many random tokens of its request")
      ->check(CLI::Range(0, 1 << 20));
  add_list_option(*make, "--topk-lengths", spec.topk_lengths, 0, 1 << 20,
                  "Sparse: only so many indices of each request, or query token, count: a,b,c")
      ->needs("--topk");
  make->add_option("--skipped-indices", spec.skipped_indices,
                   "Sparse: this part of the indices is -1 or out of range, of each third query token all")
      ->check(number_between(0, 1))
      ->needs("--topk");
  add_list_option(
      *make, "--extra-lengths", spec.extra_lengths, 0, kLongest,
      "Tokens of each request in an extra cache, to which query tokens attend as well: a,b,c, over and over");
  make->add_option("--extra-kv", options->extra_kv,
                   "Format of the extra cache, " + pairs_text() + "; left out: that of --kv")
      ->check(CLI::IsMember(kv_format_names()))
      ->needs("--extra-lengths");
  make->add_option("--extra-page-size", spec.extra_page_size, "Tokens a page of the extra cache")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str()
      ->needs("--extra-lengths");
  make->add_option("--extra-topk", spec.extra_topk,
                   "Extra cache: so many random tokens of it; left out: all of them, by page table")
      ->check(CLI::Range(0, 1 << 20))
      ->needs("--extra-lengths");
  add_list_option(*make, "--extra-topk-lengths", spec.extra_topk_lengths, 0, 1 << 20,
                  "Extra cache: only so many indices of each request, or query token, count: a,b,c")
      ->needs("--extra-topk");
  make->add_flag("--extra-by-token", spec.extra_by_token,
                 "Extra cache by page table: each query token sees fewer of its tokens than the next one")
      ->needs("--extra-lengths")
      ->excludes("--extra-topk");
  add_list_option(*make, "--lengths", spec.lengths, 0, kLongest, "Cached tokens of each request: a,b,c");
  make->add_option("--batch", options->batch,
                   "Requests, whose lengths are --lengths over and over; left out: as many as lengths")
      ->check(CLI::Range(1, 1 << 20));
  make->add_option("--query-tokens", spec.query_tokens, "Query tokens of each request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_list_option(*make, "--ragged", spec.ragged_tokens, 0, 4096,
                  "Query tokens request by request instead: a,b,c; q is then packed, with cu_seqlens_q")
      ->excludes("--query-tokens");
  make->add_option("--heads", spec.heads, "Query heads")->check(CLI::Range(1, 4096))->capture_default_str();
  make->add_option("--kv-heads", spec.kv_heads, "KV heads; --heads must be a multiple")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  make->add_option("--dims", options->dims,
                   "d_qk/d_v; left out: 576/512, or 512/512 where the format has 512");
  make->add_option("--page-size", options->page_size, "Tokens a page")
      ->check(CLI::Range(1, 1 << 16))
      ->default_str(std::to_string(spec.page_size));
  make->add_flag("--causal", spec.causal, "Query token t of s_q sees tokens below L - s_q + t + 1");
  make->add_flag("--sink", spec.sink, "With an attention sink a head, some of them infinite");
  make->add_flag("--invalid-pages", spec.invalid_pages, "Some live entries of the page table are no pages")
      ->excludes("--topk");
  make->add_option(
          "--prefill", options->prefill,
          "Make it a sparse prefill, each request of --lengths a query token: from contiguous rows, or "
          "from pages")
      ->check(CLI::IsMember({"rows", "pages"}))
      ->needs("--topk")
      ->excludes("--query-tokens", "--ragged", "--kv-heads", "--layout", "--causal");
  runtime::EdgeSpec& edges = spec.edges;
  make->add_option("--q-norm", edges.norm, "Queries are normalised first, with this epsilon")
      ->check(number_between(0, 1e6))
      ->excludes("--e4m3-queries");
  make->add_option("--q-rotate", edges.q_columns, "Then so many of their last columns are rotated")
      ->check(CLI::Range(16, 1024))
      ->excludes("--e4m3-queries");
  make->add_option("--out-rotate", edges.out_columns, "So many last columns of outputs are turned back")
      ->check(CLI::Range(16, 1024));
  make->add_option("--pairs", options->pairs, "Of rotations: columns that turn together")
      ->check(CLI::IsMember({"gptj", "neox"}))
      ->capture_default_str();
  make->add_option("--table-layout", options->table_layout,
                   "Of rotations: how a table holds cosines and sines")
      ->check(CLI::IsMember({"halves", "interleaved"}))
      ->capture_default_str();
  make->add_flag("--bf16-table", edges.bf16_table, "Of rotations: tables are bf16, not fp32");
  make->add_flag("--int64-positions", edges.wide_positions, "Of rotations: positions are int64, not int32");
  make->add_option("--out-fp8", edges.fp8_columns,
                   "Outputs are cast to FP8, with a scale for so many columns")
      ->check(CLI::IsMember({128, 32}));
  make->add_option("--fp8-groups", edges.fp8_groups, "Groups of heads of the FP8 output")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->needs("--out-fp8");
  make->add_flag("--no-out{false}", edges.keeps_out, "Only the FP8 output is written")->needs("--out-fp8");
  make->add_option("--logit-scale", spec.logit_scale, "Standard deviation of the scores")
      ->check(number_between(0, 1e6))
      ->capture_default_str();
  make->add_flag("--no-reference", options->no_reference, "Leave out out_ref and lse_ref");
  add_seed_option(*make, options->seed);
  make->footer(
      "Pages are permuted, and memory that no request uses holds NaN and Inf. The reference is the float64\n"
      "oracle's.\n"
      "Examples: flashlatent make-case case.safetensors --lengths 0,1,300 --query-tokens 2 --causal\n"
      "          flashlatent make-case case.safetensors --kv fp8_656 --topk 96 --skipped-indices 0.3\n"
      "          flashlatent make-case case.safetensors --kv fp8_584 --topk 128 --extra-lengths 600 "
      "--extra-topk "
      "512 --sink\n"
      "          flashlatent make-case case.safetensors --kv mxfp8_528 --extra-kv nvfp4_288 --topk 128 "
      "--extra-lengths 600 --extra-topk 512\n"
      "          flashlatent make-case case.safetensors --prefill rows --topk 77 --skipped-indices 0.3 "
      "--sink\n"
      "          flashlatent make-case case.safetensors --kv fp8_584 --topk 128 --q-norm 1e-6 --q-rotate 64 "
      "--out-rotate 64 --out-fp8 128\n"
      "          flashlatent make-case case.safetensors --layout separate --heads 32 --kv-heads 8 --dims "
      "128/128 --alibi\n"
      "          flashlatent decode case.safetensors");
  make->callback([&action, options] { action = [options] { return run_make_case(*options); }; });
}

}  // namespace flashlatent::tools
