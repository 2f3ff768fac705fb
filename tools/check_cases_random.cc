// Cases drawn at random: combinations of shapes and options that no list has.
#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/formats/formats.h"
#include "runtime/split_query.h"
#include "tools/check_cases.h"
#include "tools/draw.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

/// Multiply-adds of a case, for which the oracle takes some tenths of a second; less in the suite of separate
/// keys and values, which has more cases.
constexpr std::int64_t kWork = 100'000'000, kSeparateWork = 25'000'000;

/// Draws the format and layout of the cache.
void draw_cache(Draw& draw, CaseSpec& spec) {
  if (draw.one_in(3)) {
    spec.layout = draw.of({KvLayout::kSeparate, KvLayout::kPacked});
    if (draw.one_in(4)) spec.format = KvFormat::kE4m3;
    spec.kv_heads = draw.of({1, 1, 2, 3, 8});
    // With fewer columns the norm of a row's error varies by more than the tolerance allows
    // (docs/roadmap.md).
    spec.qk_dim = spec.v_dim = draw.one_in(4) ? 16 * draw.from(4, 16) : draw.of({64, 128, 256});
    if (spec.format == KvFormat::kE4m3) spec.scales = draw.of({0, 1, spec.kv_heads});
  } else if (draw.one_in(2)) {
    spec.format = KvFormat::kFp8_656;
  } else {
    const auto [qk_dim, v_dim] =
        draw.of<std::pair<int, int>>({{576, 512}, {576, 512}, {512, 512}, {320, 256}});
    spec.qk_dim = qk_dim;
    spec.v_dim = v_dim;
    if (draw.one_in(5)) spec.kv_heads = draw.from(2, 4);
  }
  if (spec.format != KvFormat::kFp8_656) spec.dtype = draw.of({Dtype::kBF16, Dtype::kF16});
  spec.page_size = draw.one_in(3) ? draw.of_any_size(1, 300) : draw.of({1, 16, 32, 64, 64, 128});
  spec.invalid_pages = draw.one_in(4);
  spec.strided = draw.one_in(4);
}

void draw_query(Draw& draw, CaseSpec& spec) {
  const int group = draw.one_in(2) ? draw.of({1, 8, 16, 32, 64, 128}) : draw.of_any_size(1, 140);
  spec.heads = spec.kv_heads * std::max(1, group / spec.kv_heads);
  if (draw.one_in(3)) spec.query_tokens = draw.of_any_size(2, spec.heads > 8 ? 5 : 100);
  spec.causal = spec.query_tokens > 1 ? !draw.one_in(4) : draw.one_in(4);
  spec.sink = draw.one_in(4);
}

/// Lengths whose sum is at most `all`, some of them at boundaries of blocks.
std::vector<int> draw_lengths(Draw& draw, int batch, std::int64_t all) {
  std::vector<int> lengths(batch);
  std::int64_t left = all;
  const int kind = draw.from(0, 4), equal = draw.of_any_size(0, static_cast<int>(all / batch));
  const auto border = [&] {  // drawn one after the other, so that no compiler changes the order
    const int blocks = draw.from(0, 5);
    return 64 * blocks + draw.from(-1, 1);
  };
  for (int i = 0; i < batch; ++i) {
    const int most = static_cast<int>(std::max<std::int64_t>(left - (batch - 1 - i), 0));
    const int length = kind == 0   ? equal
                       : kind == 1 ? border()
                       : kind == 2 ? draw.of({0, 1, 64, 65, equal})
                                   : draw.of_any_size(0, most);
    lengths[i] = std::clamp(length, 0, most);
    left -= lengths[i];
  }
  for (int i = batch - 1; i > 0; --i) std::swap(lengths[i], lengths[draw.from(0, i)]);
  return lengths;
}

void draw_requests(Draw& draw, CaseSpec& spec, std::int64_t work = kWork) {
  const int batch = draw.one_in(4) ? draw.of_any_size(1, 300) : draw.from(1, 12);
  const std::int64_t a_token = std::int64_t{spec.query_tokens} * spec.heads * (spec.qk_dim + spec.v_dim);
  spec.lengths = draw_lengths(draw, batch, std::clamp<std::int64_t>(work / a_token, batch, 50'000));
  if (draw.one_in(5)) {
    for (int i = 0; i < batch; ++i) spec.ragged_tokens.push_back(draw.from(0, spec.query_tokens));
    spec.query_tokens = 1;  // not used
  }
}

/// How many of the indices count, for each request or for each query token.
std::vector<int> draw_topk_lengths(Draw& draw, const CaseSpec& spec, int topk) {
  std::vector<int> lengths(spec.lengths.size());
  if (spec.query_tokens > 1 && draw.one_in(2)) lengths.resize(lengths.size() * spec.query_tokens);
  for (int& length : lengths) length = draw.from(0, topk);
  return lengths;
}

/// Query tokens that attend to the tokens of their indices.
void draw_indices(Draw& draw, CaseSpec& spec) {
  spec.sparse = true;
  spec.causal = spec.invalid_pages = false;
  spec.ragged_tokens.clear();
  const std::int64_t a_token = static_cast<std::int64_t>(spec.lengths.size()) * spec.query_tokens *
                               spec.heads * (spec.qk_dim + spec.v_dim);
  spec.topk = draw.of_any_size(0, static_cast<int>(std::clamp<std::int64_t>(kWork / a_token, 1, 20'000)));
  spec.skipped_indices = draw.of({0.0, 0.0, 0.3, 0.9});
  if (draw.one_in(3)) spec.topk_lengths = draw_topk_lengths(draw, spec, spec.topk);
}

/// Draws the scores' deviation, and steps by which they rise and fall along a request. Not deviations of 100
/// and more: tests have these in few rows, but among many rows some sums that tensor cores truncate exceed
/// the tolerance (docs/roadmap.md).
void draw_scores(Draw& draw, CaseSpec& spec) {
  spec.logit_scale = draw.one_in(3) ? draw.of({0.0F, 0.1F, 4.0F, -2.0F}) : 1.0F;
  if (spec.logit_scale != 0 && draw.one_in(4)) {
    const int steps = draw.from(2, 12);
    for (int i = 0; i < steps; ++i) spec.score_steps.push_back(static_cast<float>(draw.from(0, 40)));
    spec.step_tokens = draw.of({1, 16, 48, 64, 100});
  }
  if (spec.layout == KvLayout::kLatent) return;
  if (draw.one_in(5)) spec.soft_cap = draw.of({5.0F, 30.0F});
  spec.alibi = draw.one_in(5);
  if (draw.one_in(4)) spec.window = draw.of_any_size(1, 2000);
}

/// Lets some requests begin with the same tokens.
void draw_prefix(Draw& draw, CaseSpec& spec) {
  if (spec.layout == KvLayout::kLatent || !draw.one_in(3)) return;
  const bool refused = spec.window != 0 || spec.alibi || spec.batch_invariant ||
                       !spec.ragged_tokens.empty() || spec.query_tokens * spec.heads / spec.kv_heads > 32;
  spec.prefix_sharing = refused ? PrefixSharing::kAuto : PrefixSharing::kAlways;
  spec.sharers = draw.from(2, 6);
  spec.shared_tokens = draw.of_any_size(1, 1000);
}

/// Draws DeepSeek V4's rows, rows without RoPE, a window, an extra cache.
void draw_second_cache(Draw& draw, CaseSpec& spec) {
  if (spec.layout != KvLayout::kLatent || spec.kv_heads != 1) return;
  if (spec.format == KvFormat::kFp8_656 && draw.one_in(2)) {
    if (draw.one_in(2)) spec.format = KvFormat::kFp8_584;
    spec.qk_dim = spec.v_dim = 512;
  }
  if (!spec.sparse && draw.one_in(5)) spec.window = draw.of_any_size(1, 300);
  if (!draw.one_in(3)) return;
  const bool ragged = !spec.ragged_tokens.empty();  // ragged: by page table, with one length a request
  const int batch = static_cast<int>(spec.lengths.size());
  const std::int64_t a_token = std::int64_t{spec.query_tokens} * spec.heads * (spec.qk_dim + spec.v_dim);
  const std::int64_t tokens = std::clamp<std::int64_t>(kWork / a_token, batch, 20'000);
  spec.extra_lengths = draw_lengths(draw, batch, tokens);
  spec.extra_page_size = draw.of({1, 2, 3, 64, 64, 256});
  spec.extra_indexed = draw.one_in(2) && !ragged;
  if (!spec.extra_indexed) {
    spec.extra_by_token = draw.one_in(2) && !ragged;
    return;
  }
  spec.extra_topk = draw.of_any_size(0, static_cast<int>(std::max<std::int64_t>(tokens / batch, 1)));
  if (draw.one_in(3)) spec.extra_topk_lengths = draw_topk_lengths(draw, spec, spec.extra_topk);
}

/// Makes plain latents e4m3.
void draw_e4m3(Draw& draw, CaseSpec& spec) {
  const bool dims = spec.v_dim == 512 && (spec.qk_dim == 576 || spec.qk_dim == 512);
  if (spec.layout != KvLayout::kLatent || spec.format != KvFormat::kPlain || spec.kv_heads != 1 || !dims)
    return;
  if (!draw.one_in(3)) return;
  spec.format = KvFormat::kE4m3;
  spec.dtype = Dtype::kBF16;
  spec.scales = draw.of({0, 1, 1});
  spec.products = draw.of({Products::kAuto, Products::kAuto, Products::kFp8});
  spec.e4m3_query = draw.one_in(3);
  if (spec.e4m3_query) spec.query_scales = draw.of({0, 1, spec.heads});
}

/// Draws speculative decoding with drafts: two to eight query tokens, all of a request's or fewer, for groups
/// of query heads. Separate keys and values: 17 to 128 query rows of a KV head.
void draw_drafts(Draw& draw, CaseSpec& spec) {
  constexpr int kLeastRows = 17, kMostRows = 128;
  if (draw.one_in(4)) {
    spec.heads = draw.of({4, 8, 12, 16, 20, 24, 32, 40, 48, 64});
    spec.query_tokens = draw.from(2, 4);
  } else {
    spec.layout = draw.one_in(3) ? KvLayout::kPacked : KvLayout::kSeparate;
    if (draw.one_in(4)) spec.format = KvFormat::kE4m3;
    spec.qk_dim = spec.v_dim = draw.of({64, 128, 128, 256, 80, 192});
    spec.query_tokens = draw.from(2, 8);
    const int group =
        draw.from((kLeastRows - 1) / spec.query_tokens + 1, std::min(16, kMostRows / spec.query_tokens));
    spec.kv_heads = draw.of({1, 1, 2, 4, 8});
    spec.heads = spec.kv_heads * group;
    if (spec.format == KvFormat::kE4m3) spec.scales = draw.of({0, 1, spec.kv_heads});
  }
  spec.dtype = draw.one_in(4) ? Dtype::kF16 : Dtype::kBF16;
  spec.page_size = draw.of({16, 32, 64, 64, 64, 128});
  spec.causal = !draw.one_in(8);
  spec.sink = draw.one_in(4);
  spec.invalid_pages = draw.one_in(8);
  spec.strided = draw.one_in(8);
  const int query_tokens = spec.query_tokens;
  draw_requests(draw, spec);
  if (!spec.ragged_tokens.empty() || !draw.one_in(3)) return;
  // Most drafts have their full length; a waiting request has none.
  for (std::size_t i = 0; i < spec.lengths.size(); ++i) {
    spec.ragged_tokens.push_back(draw.one_in(2) ? query_tokens : draw.from(0, query_tokens));
  }
  spec.query_tokens = 1;  // not used
}

/// Lets ranks share the contexts. Not with a sink, which combine() applies then, nor with indices, which name
/// a rank's own slots.
void draw_shard(Draw& draw, CaseSpec& spec) {
  if (spec.sparse) return;
  spec.sink = false;
  const int world = draw.of({2, 2, 3, 4, 8});
  spec.shard = {draw.from(0, world - 1), world, draw.of({1, 1, 2, 16, 64, 70})};
}

/// Draws how the case is run: by a plan that was made at other lengths, as a graph, by a kernel by name. Cuts
/// of batch_invariant follow from lengths, so that its plans are made at their own; graphs have no plan of
/// prefixes.
void draw_use(Draw draw, CaseSpec& spec) {
  constexpr int kMostKernels = 60;  // a multiple of most numbers of kernels that take a problem
  if (draw.one_in(4) && !spec.batch_invariant) spec.other_lengths = true;
  if (draw.one_in(6) && spec.prefix_sharing == PrefixSharing::kOff) spec.other_lengths = spec.graph = true;
  if (draw.one_in(3)) spec.kernel = draw.from(1, kMostKernels);
  if (spec.graph) {
    spec.name += " in a graph";
  } else if (spec.other_lengths) {
    spec.name += " at other lengths";
  }
  if (spec.kernel > 0) spec.name += fmt::format(" by kernel {}", spec.kernel);
}

/// True for one of four cases. The other cases of a seed are as if there were no drafts.
bool draws_drafts(std::uint64_t seed, int number) {
  return Draw(~seed, number).one_in(4);
}

CaseSpec random_case(std::uint64_t seed, int number) {
  Draw draw(seed, number);
  CaseSpec spec;
  if (draws_drafts(seed, number)) {
    draw_drafts(draw, spec);
    draw_scores(draw, spec);
    spec.batch_invariant = draw.one_in(8);
    spec.split_query = spec.layout == KvLayout::kLatent && draw.one_in(2);
    spec.name = fmt::format("random {} drafts b{} to {}", number, spec.lengths.size(),
                            *std::max_element(spec.lengths.begin(), spec.lengths.end()));
    return spec;
  }
  draw_cache(draw, spec);
  draw_query(draw, spec);
  draw_requests(draw, spec);
  if (spec.layout == KvLayout::kLatent && spec.kv_heads == 1 && draw.one_in(3)) draw_indices(draw, spec);
  draw_scores(draw, spec);
  spec.batch_invariant = draw.one_in(8);
  draw_prefix(draw, spec);
  draw_second_cache(draw, spec);
  draw_e4m3(draw, spec);
  spec.split_query = runtime::may_split_query(runtime::problem_of(spec)) && draw.one_in(3);
  draw_records(seed, number, spec);
  spec.name = fmt::format("random {} b{} to {}", number, spec.lengths.size(),
                          *std::max_element(spec.lengths.begin(), spec.lengths.end()));
  if (spec.logit_scale != 1) spec.name += fmt::format(" scores {:g}", spec.logit_scale);
  if (!spec.score_steps.empty()) spec.name += " in steps";
  return spec;
}

/// Separate keys and values, sometimes packed; 2 to 200 query rows of a KV head, mostly with several query
/// tokens.
CaseSpec random_separate_case(std::uint64_t seed, int number) {
  Draw draw(~seed, number);
  CaseSpec spec;
  spec.layout = draw.one_in(8) ? KvLayout::kPacked : KvLayout::kSeparate;
  if (draw.one_in(8)) spec.format = KvFormat::kE4m3;
  spec.dtype = draw.of({Dtype::kBF16, Dtype::kF16});
  spec.kv_heads = draw.of({1, 1, 2, 4, 8});
  spec.qk_dim = spec.v_dim = draw.one_in(3) ? 16 * draw.from(4, 16) : draw.of({64, 128, 256});
  if (spec.format == KvFormat::kE4m3) spec.scales = draw.of({0, 1, spec.kv_heads});
  spec.page_size = draw.one_in(6) ? draw.of_any_size(1, 300) : draw.of({8, 16, 32, 64, 64, 128, 256});
  spec.invalid_pages = draw.one_in(4);
  spec.strided = draw.one_in(4);
  const int group = draw.of({1, 4, 5, 7, 8, 12, 16, 16, 32, 64, 128});
  spec.heads = spec.kv_heads * group;
  spec.query_tokens = draw.one_in(6) ? draw.from(9, 40) : draw.from(1, 8);
  while (spec.query_tokens > 1 && spec.query_tokens * group > 200) --spec.query_tokens;
  spec.causal = !draw.one_in(6);
  spec.sink = draw.one_in(4);
  draw_requests(draw, spec, kSeparateWork);
  draw_scores(draw, spec);
  spec.batch_invariant = draw.one_in(8);
  spec.name = fmt::format("random separate {} b{} to {}", number, spec.lengths.size(),
                          *std::max_element(spec.lengths.begin(), spec.lengths.end()));
  return spec;
}

/// The case with a draw of how it is run. Draws of what is in the case are as if there were none.
CaseSpec used(std::uint64_t seed, int number, CaseSpec spec) {
  draw_edges(seed, number, spec);
  draw_use(Draw(~seed, ~static_cast<std::uint64_t>(number)), spec);
  return spec;
}

}  // namespace

void draw_edges(std::uint64_t seed, int number, CaseSpec& spec) {
  Draw draw(seed ^ 0x6564676573ULL, number);
  if (!draw.one_in(3) || spec.shard.world > 1) return;
  runtime::EdgeSpec& edges = spec.edges;
  const auto columns = [&](int dim) {
    const int most = std::min(dim, 1024) / 16;
    return most == 0 ? 0 : draw.one_in(2) ? std::min(64, 16 * most) : 16 * draw.from(1, most);
  };
  if (!spec.e4m3_query && spec.qk_dim % 8 == 0 && !draw.one_in(4)) {
    if (!spec.split_query && draw.one_in(2)) edges.norm = draw.of({1e-6F, 0.5F});
    if (edges.norm == 0 || !draw.one_in(4)) edges.q_columns = columns(spec.split_query ? 64 : spec.qk_dim);
  }
  if (spec.v_dim % 8 == 0 && !draw.one_in(4)) {
    if (spec.v_dim % 128 == 0 && draw.one_in(2)) {
      edges.fp8_columns = draw.of({128, 32});
      edges.fp8_groups = spec.heads % 8 == 0 && draw.one_in(2) ? 8 : 1;
      edges.keeps_out = draw.one_in(2);
    }
    if (edges.fp8_columns == 0 || !draw.one_in(4)) edges.out_columns = columns(spec.v_dim);
  }
  edges.pairs = draw.of({RotaryPairs::kNeighbours, RotaryPairs::kNeighbours, RotaryPairs::kHalves});
  edges.layout = draw.of({RotaryTable::kHalves, RotaryTable::kInterleaved});
  edges.wide_positions = draw.one_in(2);
  edges.bf16_table = draw.one_in(3);
  if (edges.present()) spec.name += " with edges";
}

void draw_records(std::uint64_t seed, int number, CaseSpec& spec) {
  const LatentFormat& format = format_of(spec.format, ScalePlace::kAuto);
  if (spec.layout != KvLayout::kLatent || spec.qk_dim != 512 || spec.v_dim != 512 || !format.is_record())
    return;
  Draw draw(seed ^ 0x7265636f7264ULL, number);
  if (draw.one_in(3)) return;
  const std::vector<const LatentFormat*> formats = value_records();
  spec = alone(*formats[draw.from(0, static_cast<int>(formats.size()) - 1)], std::move(spec));
  for (const FormatPair& pair : kFormatPairs) {
    if (spec.extra_lengths.empty() || pair.first != spec.format || spec.extra_format || draw.one_in(3))
      continue;
    spec.extra_format = pair.extra;
  }
}

std::vector<CaseSpec> random_separate_cases(int count, std::uint64_t seed) {
  std::vector<CaseSpec> cases;
  for (int i = 1; i <= count; ++i) cases.push_back(used(seed, i, random_separate_case(seed, i)));
  return cases;
}

std::vector<CaseSpec> random_cases(int count, std::uint64_t seed) {
  std::vector<CaseSpec> cases;
  for (int i = 1; i <= count; ++i) cases.push_back(used(seed, i, random_case(seed, i)));
  return cases;
}

std::vector<CaseSpec> random_shard_cases(int count, std::uint64_t seed) {
  std::vector<CaseSpec> cases;
  for (int i = 1; i <= count; ++i) {
    Draw draw(seed, ~static_cast<std::uint64_t>(i));
    // Half have separate keys and values, where windows, ALiBi and prefixes are.
    cases.push_back(i % 2 == 0 ? random_separate_case(seed, i) : random_case(seed, i));
    draw_shard(draw, cases.back());
    cases.back() = used(seed, i, std::move(cases.back()));
  }
  return cases;
}

}  // namespace flashlatent::tools
