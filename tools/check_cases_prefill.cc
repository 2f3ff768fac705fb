// Sparse prefill: requests are query tokens.
#include <fmt/core.h>

#include <algorithm>

#include "runtime/split_query.h"
#include "tools/check_cases.h"
#include "tools/draw.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

/// Lengths of caches, one for each query token: every fourth has no tokens, some have less than a block.
std::vector<int> lengths_of(int query_tokens, int most) {
  std::vector<int> lengths;
  lengths.reserve(query_tokens);
  for (int i = 0; i < query_tokens; ++i) lengths.push_back(i % 4 == 1 ? 0 : i % 4 == 2 ? most / 9 + 1 : most);
  return lengths;
}

/// `topk` indices for each query token; 30 % of them are -1 or out of range.
CaseSpec prefill(int query_tokens, int topk, CaseSpec spec) {
  spec.prefill = spec.sparse = true;
  spec.lengths = lengths_of(query_tokens, 200);
  spec.topk = topk;
  spec.skipped_indices = 0.3;
  spec.name = spec.name.empty() ? "prefill" : "prefill " + spec.name;
  return spec;
}

/// Contiguous rows.
CaseSpec rows(int query_tokens, int topk, int qk_dim, CaseSpec spec) {
  spec.page_size = 1;
  spec.qk_dim = qk_dim;
  return prefill(query_tokens, topk, std::move(spec));
}

CaseSpec with_lengths(CaseSpec spec) {
  for (std::size_t i = 0; i < spec.lengths.size(); ++i) {
    spec.topk_lengths.push_back(i % 3 == 0 ? spec.topk : static_cast<int>(i * 37) % (spec.topk + 1));
  }
  return spec;
}

CaseSpec with_extra(int topk, int page_size, CaseSpec spec) {
  spec.extra_indexed = true;
  spec.extra_topk = topk;
  spec.extra_page_size = page_size;
  spec.extra_lengths.assign(spec.lengths.size(), 150);
  if (spec.extra_lengths.size() > 2) spec.extra_lengths[2] = 0;
  return spec;
}

/// DeepSeek V4.1's two caches.
CaseSpec v41(ScalePlace place, CaseSpec spec) {
  spec.scale_place = place;
  spec.extra_format = KvFormat::kNvfp4_288;
  return spec;
}

CaseSpec pages_of(int heads, int page_size) {
  return {.name = "pages", .heads = heads, .page_size = page_size};
}

/// e4m3 pages with e4m3 products: of e4m3 queries with so many scales, or of bf16 queries (-1).
CaseSpec e4m3_products(int query_scales, int qk_dim, int heads, int page_size) {
  CaseSpec spec = {.name = "e4m3 products",
                   .format = KvFormat::kE4m3,
                   .scales = 1,
                   .heads = heads,
                   .qk_dim = qk_dim,
                   .page_size = page_size};
  spec.products = Products::kFp8;
  spec.e4m3_query = query_scales >= 0;
  spec.query_scales = std::max(query_scales, 0);
  return spec;
}

CaseSpec paged(KvFormat format, int qk_dim, int heads, int page_size) {
  return {.name = "pages",
          .format = format,
          .scales = format == KvFormat::kE4m3 ? 1 : 0,
          .heads = heads,
          .qk_dim = qk_dim,
          .page_size = page_size};
}

}  // namespace

void add_small_prefill_cases(std::vector<CaseSpec>& cases) {
  const std::size_t first = cases.size();
  cases.push_back(with_lengths(rows(3, 77, 576, {.heads = 9, .sink = true})));
  cases.push_back(rows(2, 130, 576, {.heads = 128}));
  cases.push_back(rows(2, 65, 512, {.dtype = Dtype::kF16, .heads = 64, .strided = true}));
  cases.push_back(with_extra(130, 2, prefill(2, 128, paged(KvFormat::kFp8_584, 512, 80, 64))));
  for (const ScalePlace place : {ScalePlace::kToken, ScalePlace::kPage}) {
    cases.push_back(
        v41(place, with_extra(130, 2, prefill(2, 128, paged(KvFormat::kMxfp8_528, 512, 80, 64)))));
  }
  for (const LatentFormat* format : value_records()) {
    cases.push_back(prefill(2, 100, alone(*format, pages_of(16, 3))));
  }
  cases.push_back(prefill(2, 100, paged(KvFormat::kFp8_656, 576, 64, 3)));
  cases.push_back(with_extra(77, 5, prefill(2, 100, paged(KvFormat::kPlain, 576, 70, 3))));
  cases.push_back(prefill(2, 130, paged(KvFormat::kE4m3, 576, 33, 3)));
  for (int dim : {512, 576}) {
    cases.push_back(with_extra(65, 3, prefill(2, 77, paged(KvFormat::kE4m3, dim, 16, 7))));
    cases.push_back(prefill(3, 130, e4m3_products(1, dim, 70, 3)));
  }
  for (std::size_t i = first; i < cases.size(); ++i) cases[i].name += " small";
}

void add_full_prefill_cases(std::vector<CaseSpec>& cases) {
  for (int heads : {1, 8, 9, 16, 17, 64, 65, 128, 200}) {
    for (int topk : {65, 77, 128, 600}) {
      for (int dim : {512, 576}) {
        for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
          cases.push_back(rows(9, topk, dim, {.dtype = dtype, .heads = heads, .sink = topk != 65}));
          if (topk == 77) cases.back() = with_lengths(cases.back());
        }
      }
    }
  }
  // Several items a CTA.
  for (int heads : {8, 64, 128}) {
    for (int dim : {512, 576}) {
      CaseSpec spec = with_lengths(rows(300, 100, dim, {.name = "many", .heads = heads, .sink = true}));
      for (int& length : spec.lengths) length = length == 0 ? 0 : 40;
      cases.push_back(std::move(spec));
    }
  }
  for (int heads : {16, 64, 128}) {
    for (int page_size : {1, 7, 64}) {
      cases.push_back(prefill(9, 130, paged(KvFormat::kPlain, 576, heads, page_size)));
      cases.push_back(prefill(9, 130, paged(KvFormat::kFp8_656, 576, heads, page_size)));
      cases.push_back(prefill(9, 130, paged(KvFormat::kFp8_656, 512, heads, page_size)));
      cases.push_back(prefill(9, 130, paged(KvFormat::kE4m3, 576, heads, page_size)));
      cases.push_back(prefill(9, 130, paged(KvFormat::kE4m3, 512, heads, page_size)));
      cases.push_back(with_lengths(prefill(9, 130, e4m3_products(heads, 576, heads, page_size))));
      cases.push_back(prefill(9, 300, e4m3_products(-1, 512, heads, page_size)));
      for (const LatentFormat* format : value_records()) {
        cases.push_back(prefill(9, 130, alone(*format, pages_of(heads, page_size))));
      }
      for (const ScalePlace place : {ScalePlace::kToken, ScalePlace::kPage}) {
        cases.push_back(
            v41(place, with_lengths(with_extra(
                           65, 2, prefill(9, 128, paged(KvFormat::kMxfp8_528, 512, heads, page_size))))));
      }
    }
    for (int topk : {1, 65, 512}) {
      CaseSpec spec = paged(KvFormat::kFp8_584, 512, heads, 64);
      spec.sink = true;
      cases.push_back(with_lengths(with_extra(topk, 2, prefill(9, 128, spec))));
      cases.push_back(with_extra(topk, 64, prefill(9, 128, paged(KvFormat::kPlain, 512, heads, 64))));
      cases.push_back(with_extra(topk, 64, prefill(9, 128, paged(KvFormat::kFp8_656, 512, heads, 64))));
      cases.push_back(with_extra(topk, 64, prefill(9, 128, paged(KvFormat::kFp8_656, 576, heads, 64))));
      cases.push_back(with_extra(topk, 3, prefill(9, 128, paged(KvFormat::kPlain, 576, heads, 64))));
      cases.push_back(with_extra(topk, 64, prefill(9, 128, paged(KvFormat::kE4m3, 512, heads, 7))));
      cases.push_back(with_extra(topk, 5, prefill(9, 128, paged(KvFormat::kE4m3, 576, heads, 64))));
      CaseSpec half =
          rows(9, 128, 576, {.dtype = Dtype::kF16, .heads = heads, .sink = true, .strided = true});
      cases.push_back(with_lengths(with_extra(topk, 1, std::move(half))));
    }
  }
  // Several items a CTA; some have tokens in one cache only, or in none.
  for (auto [format, dim] :
       {std::pair{KvFormat::kPlain, 576}, {KvFormat::kE4m3, 576}, {KvFormat::kE4m3, 512}}) {
    for (int heads : {8, 64, 128}) {
      CaseSpec spec = with_extra(60, 3, prefill(300, 100, paged(format, dim, heads, 5)));
      spec.name += " many";
      for (int& length : spec.lengths) length = length == 0 ? 0 : 40;
      for (std::size_t i = 0; i < spec.lengths.size(); ++i) spec.extra_lengths[i] = i % 3 == 0 ? 0 : 30;
      cases.push_back(with_lengths(std::move(spec)));
    }
  }
  // Scores whose base must move, huge scores, and scores whose least becomes the largest.
  for (int heads : {8, 64, 128}) {
    for (float scale : {-1.0F, 0.0F, 150.0F, 3e4F}) {
      CaseSpec spec = rows(5, 600, 576, {.name = fmt::format("scores {:g}", scale), .heads = heads});
      spec.logit_scale = scale;
      cases.push_back(std::move(spec));
    }
    CaseSpec spec = rows(5, 600, 576, {.name = "steps", .heads = heads});
    spec.lengths.assign(5, 600);
    spec.score_steps = {0, 3, 6, 9, 12, 15, 18, 21, 24, 27};
    spec.step_tokens = 48;
    cases.push_back(std::move(spec));
  }
}

namespace {

/// Half of the e4m3 caches without an extra cache: products in e4m3, or queries.
void draw_e4m3_products(std::uint64_t seed, int number, CaseSpec& spec) {
  Draw draw(seed ^ 0x65346D33ULL, number);
  if (spec.format != KvFormat::kE4m3 || !spec.extra_lengths.empty() || draw.one_in(2)) return;
  spec.products = Products::kFp8;
  spec.e4m3_query = draw.one_in(2);
  if (spec.logit_scale <= 0) spec.logit_scale = 1;
  if (!spec.e4m3_query) return;
  spec.query_scales = draw.of({0, 1, spec.heads});
  // On CUDA fp8_32 alone multiplies e4m3 queries in bf16.
  const bool may_be_bf16 = spec.qk_dim == 576 && spec.heads <= 32;
  spec.products = draw.of({Products::kFp8, Products::kAuto, may_be_bf16 ? Products::kBf16 : Products::kFp8});
}

CaseSpec random_prefill_case(std::uint64_t seed, int number) {
  constexpr std::int64_t kWork = 60'000'000;
  Draw draw(seed ^ 0x5041727365ULL, number);
  CaseSpec spec;
  spec.prefill = spec.sparse = true;
  spec.heads = draw.one_in(2) ? draw.of({8, 16, 32, 64, 96, 128}) : draw.of_any_size(1, 200);
  const int kind = draw.from(0, 5);
  if (kind <= 2) {
    spec.dtype = draw.of({Dtype::kBF16, Dtype::kF16});
    spec.qk_dim = draw.of({512, 576});
    spec.page_size = kind < 2 ? 1 : draw.of({1, 3, 16, 64});
  } else {
    spec.format = kind == 3 ? KvFormat::kFp8_656 : kind == 4 ? KvFormat::kFp8_584 : KvFormat::kE4m3;
    spec.qk_dim = kind == 4 ? 512 : draw.of({512, 576});
    spec.scales = kind == 5 ? draw.from(0, 1) : 0;
    spec.page_size = draw.of({1, 2, 3, 64, 64, 256});
  }
  const int query_tokens = draw.one_in(3) ? draw.of_any_size(1, 400) : draw.from(1, 12);
  const std::int64_t a_token = std::int64_t{query_tokens} * spec.heads * (spec.qk_dim + 512);
  const int most = static_cast<int>(std::clamp<std::int64_t>(kWork / a_token, 1, 5'000));
  spec.lengths.clear();  // the default ones
  for (int i = 0; i < query_tokens; ++i) {
    spec.lengths.push_back(draw.one_in(6) ? 0 : draw.of_any_size(1, 300));
  }
  spec.topk = draw.of_any_size(0, most);
  spec.skipped_indices = draw.of({0.0, 0.0, 0.3, 0.9});
  if (draw.one_in(2)) {
    for (int i = 0; i < query_tokens; ++i) spec.topk_lengths.push_back(draw.from(0, spec.topk));
  }
  spec.sink = draw.one_in(2);
  spec.strided = draw.one_in(4);
  spec.logit_scale = draw.one_in(3) ? draw.of({0.0F, 0.1F, 4.0F, -2.0F}) : 1.0F;
  if (spec.logit_scale != 0 && draw.one_in(4)) {
    const int steps = draw.from(2, 12);
    for (int i = 0; i < steps; ++i) spec.score_steps.push_back(static_cast<float>(draw.from(0, 40)));
    spec.step_tokens = draw.of({1, 16, 48, 64, 100});
  }
  if (draw.one_in(2)) {
    for (int i = 0; i < query_tokens; ++i) {
      spec.extra_lengths.push_back(draw.one_in(6) ? 0 : draw.of_any_size(1, 300));
    }
    spec.extra_page_size = draw.of({1, 2, 3, 64, 64, 256});
    spec.extra_indexed = true;
    spec.extra_topk = draw.of_any_size(0, most);
    if (draw.one_in(2)) {
      for (int i = 0; i < query_tokens; ++i) spec.extra_topk_lengths.push_back(draw.from(0, spec.extra_topk));
    }
  }
  draw_e4m3_products(seed, number, spec);
  spec.split_query = runtime::may_split_query(runtime::problem_of(spec)) && draw.one_in(3);
  draw_records(seed, number, spec);
  spec.name = fmt::format("random prefill {} s_q{}", number, query_tokens);
  draw_edges(seed, number, spec);
  return spec;
}

}  // namespace

std::vector<CaseSpec> random_prefill_cases(int count, std::uint64_t seed) {
  std::vector<CaseSpec> cases;
  for (int i = 1; i <= count; ++i) cases.push_back(random_prefill_case(seed, i));
  return cases;
}

}  // namespace flashlatent::tools
