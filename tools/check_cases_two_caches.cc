// Caches whose row is all value, two caches in one softmax, windows of latent caches, and fp8_656 without
// RoPE.
#include <utility>

#include "tools/check_cases.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

/// DeepSeek V4.1's rows: mxfp8_528, with an extra cache of it or of nvfp4_288.
CaseSpec v41(ScalePlace place, bool fp4, CaseSpec spec) {
  spec.format = KvFormat::kMxfp8_528;
  spec.scale_place = place;
  if (fp4) spec.extra_format = KvFormat::kNvfp4_288;
  spec.qk_dim = spec.v_dim = 512;
  return spec;
}

/// GLM-5.3-Flash's rows.
CaseSpec no_rope(CaseSpec spec) {
  spec = fp8(std::move(spec));
  spec.qk_dim = spec.v_dim = 512;
  return spec;
}

CaseSpec plain(CaseSpec spec) {
  spec.qk_dim = spec.v_dim = 512;
  return spec;
}

/// Four requests, one without tokens. 30 % of the indices, and all of some rows, are -1 or out of range.
CaseSpec indexed(int topk, CaseSpec spec) {
  spec.sparse = true;
  spec.topk = topk;
  spec.skipped_indices = 0.3;
  spec.lengths = {200, 0, 77, 64};
  return spec;
}

/// Adds an extra cache by indices; one request has no tokens there.
CaseSpec extra_indexed(int topk, int page_size, CaseSpec spec) {
  spec.extra_indexed = true;
  spec.extra_topk = topk;
  spec.extra_page_size = page_size;
  spec.extra_lengths.assign(spec.lengths.size(), 150);
  if (spec.extra_lengths.size() > 2) spec.extra_lengths[2] = 0;
  spec.skipped_indices = 0.2;
  return spec;
}

/// Adds an extra cache by page table.
CaseSpec extra_paged(std::vector<int> lengths, int page_size, CaseSpec spec) {
  spec.extra_lengths = std::move(lengths);
  spec.extra_page_size = page_size;
  spec.extra_by_token = spec.query_tokens > 1;
  return spec;
}

constexpr int kManyRequests = 75;

/// Many short requests.
CaseSpec in_turn(CaseSpec spec) {
  spec.lengths.assign(kManyRequests, 70);
  if (!spec.extra_lengths.empty()) spec.extra_lengths.assign(kManyRequests, 70);
  return spec;
}

/// The window cache by page table.
CaseSpec windowed(int window, CaseSpec spec) {
  spec.lengths = {200, 0, 77, 64};
  spec.window = window;
  spec.causal = spec.query_tokens > 1;
  return spec;
}

/// Requests of none to five query tokens, with a window.
CaseSpec ragged(int window, CaseSpec spec) {
  spec.lengths = {10, 100, 64, 700, 0, 3};
  spec.ragged_tokens = {1, 3, 0, 2, 1, 5};
  spec.causal = true;
  spec.window = window;
  return spec;
}

}  // namespace

void add_small_two_cache_cases(std::vector<CaseSpec>& cases) {
  for (CaseSpec& spec : std::vector<CaseSpec>{
           v4({.name = "v4 dense",
               .query_tokens = 2,
               .heads = 12,
               .page_size = 3,
               .lengths = {0, 1, 700},
               .causal = true}),
           v4({.name = "v4 window", .heads = 80, .lengths = {1, 300}, .window = 70}),
           v4(indexed(130,
                      {.name = "v4 sparse", .heads = 64, .page_size = 2, .sink = true, .strided = true})),
           v4(extra_indexed(130, 2,
                            indexed(128, {.name = "v4 two", .query_tokens = 2, .heads = 16, .sink = true}))),
           v4(extra_indexed(300, 64,
                            indexed(66, {.name = "v4 team",
                                        .query_tokens = 2,
                                        .heads = 12,
                                        .sink = true,
                                        .topk_lengths = {66, 0, 5, 64},
                                        .extra_topk_lengths = {300, 0, 0, 65}}))),
           v4(extra_paged({90, 300, 0, 1}, 2, indexed(128, {.name = "v4 pages", .heads = 8}))),
           v4(extra_paged({90, 300, 0, 1}, 3,
                          windowed(70, {.name = "v4 window", .query_tokens = 2, .heads = 66}))),
           v41(ScalePlace::kToken, true,
               extra_indexed(300, 2,
                             indexed(128, {.name = "v41 two",
                                          .query_tokens = 2,
                                          .heads = 16,
                                          .sink = true,
                                          .strided = true,
                                          .topk_lengths = {128, 0, 5, 64, 1, 127, 0, 63},
                                          .extra_topk_lengths = {300, 0, 0, 65, 64, 1, 299, 0}}))),
           v41(ScalePlace::kPage, true,
               extra_paged(
                   {90, 300, 0, 1}, 3,
                   windowed(70, {.name = "v41 window", .query_tokens = 2, .heads = 66, .strided = true}))),
           v41(ScalePlace::kPage, false,
               extra_indexed(130, 64, indexed(128, {.name = "v41 two", .heads = 128}))),
           v41(ScalePlace::kToken, false,
               ragged(130, {.name = "v41 ragged window", .heads = 12, .sink = true})),
           plain(extra_indexed(
               70, 61, indexed(65, {.name = "two", .dtype = Dtype::kF16, .heads = 4, .strided = true}))),
           no_rope(indexed(130, {.name = "no rope", .heads = 32, .strided = true})),
           v4(ragged(130, {.name = "v4 ragged window", .heads = 12, .sink = true})),
           plain(extra_paged({90, 300, 0, 1, 64, 7}, 3, ragged(70, {.name = "two ragged", .heads = 70})))}) {
    cases.push_back(std::move(spec));
  }
  for (const LatentFormat* format : value_records()) {
    cases.push_back(alone(*format, indexed(130, {.name = "alone", .heads = 64, .strided = true})));
    cases.push_back(alone(*format, {.name = "alone",
                                    .query_tokens = 2,
                                    .heads = 8,
                                    .page_size = 3,
                                    .lengths = {0, 1, 300},
                                    .causal = true}));
  }
}

void add_quick_two_cache_cases(std::vector<CaseSpec>& cases) {
  // As many requests as half of an H200's multiprocessors: two shares each.
  for (int heads : {16, 32}) {
    CaseSpec pairs = v4(indexed(128, {.name = "v4 pairs", .heads = heads}));
    pairs.lengths.assign(66, 200);
    cases.push_back(extra_indexed(1024, 64, std::move(pairs)));
  }
  for (int heads : {1, 8, 12, 64, 128}) {
    cases.push_back(v4({.name = "v4 dense", .heads = heads, .lengths = {0, 1, 63, 64, 65, 130, 200}}));
    for (int tokens : {1, 2}) {
      cases.push_back(v4(
          extra_indexed(130, 64, indexed(128, {.name = "v4 two", .query_tokens = tokens, .heads = heads}))));
      cases.push_back(v4(extra_paged(
          {90, 300, 0, 1}, 2,
          indexed(128, {.name = "v4 pages", .query_tokens = tokens, .heads = heads, .sink = true}))));
      cases.push_back(no_rope(indexed(130, {.name = "no rope", .query_tokens = tokens, .heads = heads})));
    }
  }
  for (int page_size : {1, 2, 3, 64, 256}) {
    cases.push_back(v4({.name = "v4 dense",
                        .query_tokens = 2,
                        .heads = 12,
                        .page_size = page_size,
                        .lengths = {0, 1, 64, 130},
                        .causal = true,
                        .sink = true,
                        .invalid_pages = true,
                        .strided = true,
                        .window = page_size == 3 ? 33 : 0}));
    cases.push_back(v4(extra_indexed(96, page_size,
                                     indexed(65, {.name = "v4 two",
                                                  .query_tokens = 2,
                                                  .heads = 16,
                                                  .page_size = page_size,
                                                  .sink = true,
                                                  .strided = true,
                                                  .topk_lengths = {65, 5, 0, 33},
                                                  .extra_topk_lengths = {96, 0, 1, 64}}))));
    cases.push_back(v4(extra_paged({300, 64, 65, 0}, page_size,
                                   windowed(70, {.name = "v4 window",
                                                 .query_tokens = 2,
                                                 .heads = 16,
                                                 .page_size = page_size,
                                                 .sink = true,
                                                 .invalid_pages = true,
                                                 .strided = true}))));
  }
  for (int topk : {0, 1, 63, 64, 65}) {
    for (int extra : {0, 1, 64, 65}) {
      cases.push_back(v4(extra_indexed(extra, 2, indexed(topk, {.name = "v4 topk", .heads = 8}))));
      cases.push_back(v41(ScalePlace::kToken, true,
                          extra_indexed(extra, 2, indexed(topk, {.name = "v41 topk", .heads = 8}))));
    }
  }
  for (const ScalePlace place : {ScalePlace::kToken, ScalePlace::kPage}) {
    for (int heads : {1, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
      for (const bool fp4 : {true, false}) {
        cases.push_back(v41(place, fp4,
                            extra_indexed(130, 64,
                                          indexed(128, {.name = "v41 two",
                                                        .query_tokens = heads % 16 == 0 ? 2 : 1,
                                                        .heads = heads,
                                                        .sink = heads > 8}))));
        cases.push_back(v41(place, fp4,
                            extra_paged({90, 300, 0, 1}, 2,
                                        windowed(128, {.name = "v41 window",
                                                       .query_tokens = heads % 16 == 0 ? 2 : 1,
                                                       .heads = heads,
                                                       .page_size = 5,
                                                       .sink = true,
                                                       .invalid_pages = true,
                                                       .strided = heads % 3 == 0}))));
      }
    }
    cases.push_back(v41(place, true,
                        extra_paged({90, 300, 0, 1, 64, 7}, 3,
                                    ragged(65, {.name = "v41 ragged", .heads = 16, .sink = true}))));
    cases.push_back(
        v41(place, true,
            extra_paged({5000}, 2, {.name = "v41 splits", .heads = 16, .lengths = {130}, .sink = true})));
    cases.push_back(v41(
        place, true,
        extra_paged({2500, 3}, 2,
                    {.name = "v41 invariant", .heads = 4, .lengths = {64, 2200}, .batch_invariant = true})));
    cases.push_back(in_turn(
        v41(place, true,
            extra_indexed(130, 64, indexed(66, {.name = "v41 many", .query_tokens = 2, .heads = 8})))));
  }
  for (const LatentFormat* format : value_records()) {
    for (int heads : {1, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
      cases.push_back(
          alone(*format, {.name = "alone", .heads = heads, .lengths = {0, 1, 63, 64, 65, 130, 200}}));
      cases.push_back(alone(*format, indexed(130, {.name = "alone", .query_tokens = 2, .heads = heads})));
    }
    for (int heads : {8, 64, 128}) {
      cases.push_back(alone(*format, indexed(130, {.name = "alone", .heads = heads})));
      cases.push_back(alone(
          *format, {.name = "alone", .heads = heads, .page_size = 3, .lengths = {0, 1, 130}, .window = 70}));
    }
  }
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    cases.push_back(plain(extra_indexed(
        70, 61, indexed(130, {.name = "two", .dtype = dtype, .query_tokens = 2, .heads = 16}))));
    cases.push_back(plain(
        extra_paged({300, 64, 65, 0}, 64, windowed(128, {.name = "two", .dtype = dtype, .heads = 64}))));
  }
  CaseSpec v32 = extra_indexed(70, 64, indexed(130, {.name = "two", .heads = 16}));
  v32.format = KvFormat::kFp8_656;
  cases.push_back(v32);
  cases.push_back(
      v4(extra_paged({5000}, 2, {.name = "v4 splits", .heads = 16, .lengths = {130}, .sink = true})));
  cases.push_back(v4(extra_paged(
      {2500, 3}, 2, {.name = "v4 invariant", .heads = 4, .lengths = {64, 2200}, .batch_invariant = true})));
  cases.push_back(v4({.name = "v4 ragged",
                      .heads = 8,
                      .lengths = {10, 100, 64, 300},
                      .ragged_tokens = {1, 3, 0, 2},
                      .causal = true,
                      .window = 50}));
  for (int heads : {8, 64, 128}) {
    for (int window : {0, 65}) {
      cases.push_back(
          v4(extra_paged({90, 300, 0, 1, 64, 7}, 2,
                         ragged(window, {.name = "v4 ragged two", .heads = heads, .sink = true}))));
    }
  }
  cases.push_back(
      no_rope({.name = "no rope", .query_tokens = 2, .heads = 32, .lengths = {0, 1, 130}, .causal = true}));
  // Few requests: teams of one block a CTA, and of two; one request has no tokens, one in either list only.
  for (int heads : {12, 64, 128}) {
    CaseSpec team = v4(extra_indexed(512, 64,
                                     indexed(128, {.name = "v4 team",
                                                   .query_tokens = 2,
                                                   .heads = heads,
                                                   .sink = true,
                                                   .strided = heads == 12,
                                                   .topk_lengths = {128, 0, 65, 0},
                                                   .extra_topk_lengths = {512, 0, 0, 449}})));
    cases.push_back(team);
    for (std::vector<int>* of :
         {&team.lengths, &team.extra_lengths, &team.topk_lengths, &team.extra_topk_lengths}) {
      of->resize(1);
    }
    cases.push_back(team);
    team.name = "v4 team of two";
    team.extra_topk = 1024;
    team.extra_topk_lengths = {1000};
    cases.push_back(std::move(team));
  }
  for (int topk : {64, 700, 2048}) {
    cases.push_back(v4(indexed(topk, {.name = "v4 team of one list", .heads = 64, .sink = true})));
  }
  // More items than multiprocessors: by kTurns where no lengths are given, and whole where all is one block.
  for (int heads : {16, 64, 128}) {
    cases.push_back(in_turn(v4(extra_indexed(
        130, 64, indexed(66, {.name = "v4 turns", .query_tokens = 2, .heads = heads, .sink = true})))));
    CaseSpec whole = in_turn(v4(indexed(64, {.name = "v4 whole", .heads = heads})));
    for (int i = 0; i < kManyRequests; ++i) whole.topk_lengths.push_back(i * 7 % 65);
    cases.push_back(whole);
    // Several items a CTA; the first may be empty.
    whole.name = "v4 rounds";
    whole.query_tokens = 2;
    cases.push_back(std::move(whole));
  }
  cases.push_back(in_turn(
      plain(extra_indexed(70, 61, indexed(130, {.name = "two turns", .query_tokens = 2, .heads = 20})))));
  cases.push_back(in_turn(no_rope(indexed(130, {.name = "no rope turns", .query_tokens = 2, .heads = 64}))));
}

void add_full_two_cache_cases(std::vector<CaseSpec>& cases) {
  for (int heads : {1, 16, 80}) {
    for (int window : {1, 64, 200}) {
      const CaseSpec spec = ragged(window, {.name = "ragged window",
                                            .heads = heads,
                                            .page_size = window == 64 ? 3 : 64,
                                            .invalid_pages = window == 1,
                                            .strided = window == 64});
      CaseSpec fp16 = plain(spec), v32 = spec;
      fp16.dtype = Dtype::kF16;
      v32.format = KvFormat::kFp8_656;
      for (const CaseSpec& of : {plain(spec), fp16, v32, no_rope(spec), v4(spec)}) {
        cases.push_back(of);
        if (heads == 16) cases.push_back(extra_paged({90, 300, 0, 1, 64, 7}, 2, of));
      }
    }
  }
  CaseSpec splits = ragged(4000, {.name = "ragged splits", .heads = 4});
  splits.lengths = {10, 5000, 64, 700, 0, 3};
  for (bool invariant : {false, true}) {
    splits.batch_invariant = invariant;
    for (const CaseSpec& of : {plain(splits), no_rope(splits), v4(splits)}) cases.push_back(of);
  }
  CaseSpec prompt = ragged(128, {.name = "ragged prompt", .heads = 8});
  prompt.lengths.assign(60, 300);
  prompt.ragged_tokens.assign(60, 1);
  prompt.ragged_tokens[17] = 100;
  cases.push_back(v4(prompt));
  for (int heads : {1, 8, 12, 16, 24, 64, 128}) {
    for (int page_size : {2, 64, 256}) {
      for (int tokens : {1, 2}) {
        const bool two = tokens == 2;
        CaseSpec spec = {.name = "v4 sweep",
                         .query_tokens = tokens,
                         .heads = heads,
                         .page_size = 64,
                         .sink = two,
                         .strided = two};
        if (two) spec.topk_lengths = {128, 64, 1, 0}, spec.extra_topk_lengths = {0, 1, 300, 512};
        cases.push_back(v4(extra_indexed(512, page_size, indexed(128, std::move(spec)))));
        cases.push_back(v4(extra_paged({700, 1, 0, 64}, page_size,
                                       windowed(128, {.name = "v4 sweep",
                                                      .query_tokens = tokens,
                                                      .heads = heads,
                                                      .sink = two,
                                                      .invalid_pages = two}))));
      }
    }
  }
  cases.push_back(
      v4(extra_indexed(130, 64, indexed(66, {.name = "v4 many", .query_tokens = 2, .heads = 8}))));
  cases.back().lengths.assign(150, 70);
  cases.back().extra_lengths.assign(150, 70);
  cases.push_back(v4(extra_indexed(8192, 2, indexed(128, {.name = "v4 long", .heads = 16}))));
  // More requests than would have two parts each, of varied lengths, so they lie on a line.
  for (int heads : {16, 64, 128}) {
    CaseSpec spec = v4(extra_paged({}, 2, indexed(100, {.name = "v4 line", .heads = heads, .sink = true})));
    spec.lengths.assign(90, 70);
    for (int i = 0; i < 90; ++i) spec.extra_lengths.push_back(i % 30 == 0 ? 1200 : i * i % 300);
    cases.push_back(std::move(spec));
  }
}

}  // namespace flashlatent::tools
