// Separate and packed keys and values: MHA, GQA and MQA.
#include "tools/check_cases.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

const std::vector<int> kBoundaries = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200};

CaseSpec paged(int heads, int kv_heads, int d, CaseSpec spec) {
  if (spec.layout == KvLayout::kLatent) spec.layout = KvLayout::kSeparate;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.qk_dim = spec.v_dim = d;
  return spec;
}

/// Each option once, in both layouts where the layout matters.
std::vector<CaseSpec> options_of(KvLayout layout, Dtype dtype) {
  std::vector<CaseSpec> cases = {
      paged(8, 2, 128, {.name = "paged", .page_size = 16, .lengths = kBoundaries}),
      paged(8, 8, 64, {.name = "paged mha", .page_size = 16, .lengths = {0, 1, 130, 700}}),
      paged(8, 1, 128, {.name = "paged mqa", .page_size = 64, .lengths = {1, 130, 700}}),
      paged(12, 3, 128, {.name = "paged", .page_size = 32, .lengths = {5, 300}, .alibi = true}),
      paged(6, 3, 80, {.name = "paged", .page_size = 8, .lengths = {17, 200}}),
      paged(6, 2, 128, {.name = "paged", .page_size = 16, .lengths = {40, 300}, .window = 100}),
      paged(6, 2, 128,
            {.name = "paged", .page_size = 16, .lengths = {300}, .logit_scale = 20, .soft_cap = 15}),
      paged(8, 2, 128,
            {.name = "paged",
             .query_tokens = 3,
             .page_size = 16,
             .lengths = {2, 65, 300},
             .causal = true,
             .sink = true,
             .invalid_pages = true,
             .strided = true}),
      paged(8, 2, 128,
            {.name = "paged",
             .page_size = 16,
             .lengths = {700, 0, 66, 130},
             .ragged_tokens = {2, 1, 0, 40},
             .causal = true}),
      paged(64, 64, 64, {.name = "paged many", .page_size = 16, .lengths = kBoundaries}),
      paged(8, 2, 128, {.name = "paged invariant", .lengths = {2200, 3}, .batch_invariant = true}),
      paged(8, 2, 64, {.name = "paged splits", .page_size = 16, .lengths = {5000, 3}, .sink = true}),
  };
  for (int scales : {0, 1, 4}) {
    cases.push_back(paged(16, 4, 128,
                          {.name = "paged",
                           .format = KvFormat::kE4m3,
                           .scales = scales,
                           .page_size = 16,
                           .lengths = {1, 130}}));
  }
  for (CaseSpec& spec : cases) {
    spec.layout = layout;
    spec.dtype = dtype;
  }
  return cases;
}

/// Prompts, with and without a cached prefix.
std::vector<CaseSpec> prompts(int d, int group, int page_size, Dtype dtype) {
  CaseSpec spec = paged(2 * group, 2, d, {.name = "prefill", .dtype = dtype, .query_tokens = 80});
  spec.page_size = page_size;
  spec.lengths = {80, 0, 79, 261};
  spec.causal = true;
  CaseSpec odd = spec;
  odd.lengths = {200, 90};
  odd.sink = odd.invalid_pages = odd.strided = true;
  odd.window = 70;
  CaseSpec ragged = spec;
  ragged.lengths = {300, 0, 129, 64};
  ragged.ragged_tokens = {40, 0, 129, 63};
  CaseSpec whole = spec;
  whole.lengths = {128, 30};
  whole.causal = false;
  return {spec, odd, ragged, whole};
}

/// The same from e4m3, with so many scales.
std::vector<CaseSpec> e4m3_prompts(int d, int group, int page_size, Dtype dtype, int scales) {
  std::vector<CaseSpec> cases = prompts(d, group, page_size, dtype);
  for (CaseSpec& spec : cases) {
    spec.format = KvFormat::kE4m3;
    spec.scales = scales;
  }
  return cases;
}

void append(std::vector<CaseSpec>& cases, std::vector<CaseSpec> more) {
  cases.insert(cases.end(), more.begin(), more.end());
}

/// Groups of five requests that share a prefix.
std::vector<CaseSpec> shared_prefixes(int d, Dtype dtype) {
  const CaseSpec plain = {.name = "paged prefix",
                          .dtype = dtype,
                          .page_size = 16,
                          .lengths = {300, 129, 700, 400, 256, 500, 800, 3},
                          .prefix_sharing = PrefixSharing::kAlways,
                          .sharers = 5,
                          .shared_tokens = 256};
  CaseSpec other = plain;
  other.query_tokens = 3;
  other.causal = other.sink = other.strided = true;
  return {paged(8, 2, d, plain), paged(6, 2, d, other), paged(16, 1, d, plain)};
}

/// Short requests, several a CTA, whose blocks all have tokens that some query tokens do not attend to.
CaseSpec short_drafts(Dtype dtype) {
  return paged(64, 32, 128,
               {.name = "paged drafts",
                .dtype = dtype,
                .query_tokens = 10,
                .page_size = 16,
                .lengths = {0, 1, 17, 64, 130, 193, 300, 31, 32},
                .causal = true,
                .invalid_pages = true});
}

}  // namespace

void add_small_paged_cases(std::vector<CaseSpec>& cases) {
  cases.push_back(short_drafts(Dtype::kBF16));
  append(cases, {paged(6, 2, 80, {.name = "paged", .page_size = 8, .lengths = {0, 1, 130}, .alibi = true}),
                 paged(40, 1, 64,
                       {.name = "paged",
                        .dtype = Dtype::kF16,
                        .layout = KvLayout::kPacked,
                        .query_tokens = 2,
                        .page_size = 16,
                        .lengths = {2, 130},
                        .causal = true,
                        .soft_cap = 20}),
                 paged(6, 2, 96,
                       {.name = "paged",
                        .format = KvFormat::kE4m3,
                        .scales = 2,
                        .page_size = 16,
                        .lengths = {700, 64},
                        .sink = true,
                        .strided = true,
                        .window = 300}),
                 paged(6, 2, 64,
                       {.name = "paged",
                        .format = KvFormat::kE4m3,
                        .layout = KvLayout::kPacked,
                        .scales = 1,
                        .page_size = 8,
                        .lengths = {70, 64},
                        .ragged_tokens = {3, 1},
                        .causal = true}),
                 paged(8, 2, 64,
                       {.name = "paged prefix",
                        .page_size = 16,
                        .lengths = {300, 400, 256},
                        .prefix_sharing = PrefixSharing::kAlways,
                        .sharers = 3,
                        .shared_tokens = 256}),
                 paged(4, 1, 128,
                       {.name = "prefill",
                        .page_size = 16,
                        .lengths = {150, 64},
                        .ragged_tokens = {70, 30},
                        .causal = true})});
}

void add_quick_paged_cases(std::vector<CaseSpec>& cases) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (KvLayout layout : {KvLayout::kSeparate, KvLayout::kPacked}) append(cases, options_of(layout, dtype));
    for (int d : {64, 80, 96, 112, 120, 128, 192, 256}) {
      cases.push_back(
          paged(8, 2, d, {.name = "paged dims", .dtype = dtype, .page_size = 16, .lengths = {1, 64, 130}}));
    }
    for (int group : {1, 2, 3, 4, 5, 8, 16}) {
      cases.push_back(paged(2 * group, 2, 128,
                            {.name = "paged groups", .dtype = dtype, .page_size = 16, .lengths = {33, 300}}));
    }
    for (int page_size : {1, 8, 16, 32, 64, 128, 256}) {
      cases.push_back(paged(
          8, 2, 128, {.name = "paged pages", .dtype = dtype, .page_size = page_size, .lengths = {65, 300}}));
    }
    cases.push_back(short_drafts(dtype));
    for (int d : {64, 128}) {
      append(cases, prompts(d, 4, 16, dtype));
      append(cases, e4m3_prompts(d, 4, 16, dtype, 2));
    }
    for (int d : {64, 80, 128, 256}) append(cases, shared_prefixes(d, dtype));
  }
}

void add_full_paged_cases(std::vector<CaseSpec>& cases) {
  for (int d : {64, 80, 96, 112, 120, 128, 192, 256}) {
    for (int group : {1, 3, 8})
      append(cases, prompts(d, group, d == 96 ? 24 : group == 3 ? 128 : 64, Dtype::kBF16));
    append(cases, prompts(d, 2, 8, Dtype::kF16));
    if (d % 16 == 0) append(cases, e4m3_prompts(d, 3, d < 128 ? 64 : 8, Dtype::kBF16, d < 100 ? 1 : 0));
  }
  for (KvLayout layout : {KvLayout::kSeparate, KvLayout::kPacked}) {
    for (int d : {64, 80, 96, 112, 120, 128, 192, 256}) {
      for (int group : {1, 3, 4, 8, 16}) {
        for (int page_size : {8, 16, 64}) {
          const bool odd = (d + group + page_size) % 3 == 0;
          cases.push_back(paged(2 * group, 2, d,
                                {.name = "paged sweep",
                                 .dtype = odd ? Dtype::kF16 : Dtype::kBF16,
                                 .layout = layout,
                                 .query_tokens = odd ? 3 : 1,
                                 .page_size = page_size,
                                 .lengths = kBoundaries,
                                 .causal = odd,
                                 .sink = odd,
                                 .invalid_pages = group == 4,
                                 .strided = group == 8}));
          if (d % 16 != 0) continue;  // no packed e4m3
          cases.push_back(paged(2 * group, 2, d,
                                {.name = "paged sweep",
                                 .format = KvFormat::kE4m3,
                                 .layout = layout,
                                 .scales = group == 1 ? 1 : 2,
                                 .page_size = page_size,
                                 .lengths = kBoundaries}));
        }
      }
    }
    for (int window : {1, 63, 64, 65, 1000}) {
      for (int tokens : {1, 4}) {
        cases.push_back(paged(8, 2, 128,
                              {.name = "paged everything",
                               .layout = layout,
                               .query_tokens = tokens,
                               .page_size = 16,
                               .lengths = {4, 64, 300, 4100},
                               .causal = true,
                               .sink = true,
                               .invalid_pages = true,
                               .strided = true,
                               .soft_cap = 30,
                               .alibi = true,
                               .window = window}));
      }
    }
    cases.push_back(
        paged(8, 2, 64, {.name = "paged long", .layout = layout, .page_size = 16, .lengths = {40000, 1}}));
    cases.push_back(paged(
        4, 2, 64,
        {.name = "paged many", .layout = layout, .page_size = 16, .lengths = std::vector<int>(500, 40)}));
  }
}

}  // namespace flashlatent::tools
