// fp8_656 caches and sparse decode.
#include <utility>

#include "tools/check_cases.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

/// Four requests, one without tokens. 30 % of the indices, and all of some rows, are -1 or out of range.
CaseSpec sparse(int topk, CaseSpec spec) {
  spec = fp8(std::move(spec));
  spec.sparse = true;
  spec.topk = topk;
  spec.skipped_indices = 0.3;
  spec.lengths = {200, 0, 77, 64};
  return spec;
}

/// The same from a plain cache.
CaseSpec plain(int topk, CaseSpec spec) {
  spec = sparse(topk, std::move(spec));
  spec.format = KvFormat::kPlain;
  return spec;
}

}  // namespace

void add_small_fp8_cases(std::vector<CaseSpec>& cases) {
  for (CaseSpec& spec : std::vector<CaseSpec>{
           fp8({.name = "fp8", .query_tokens = 2, .heads = 4, .lengths = {0, 1, 700}, .causal = true}),
           fp8({.name = "fp8", .query_tokens = 2, .heads = 8, .lengths = {0, 1, 700}, .causal = true}),
           fp8({.name = "fp8", .query_tokens = 3, .heads = 7, .lengths = {0, 1, 700}, .causal = true}),
           fp8({.name = "fp8", .heads = 80, .page_size = 61, .lengths = {130}, .strided = true}),
           fp8({.name = "fp8 one long of many", .heads = 4, .lengths = one_long_of_many()}),
           fp8({.name = "fp8 one long of many", .heads = 16, .lengths = one_long_of_many()}),
           fp8({.name = "fp8 one long of many", .heads = 32, .lengths = one_long_of_many()}),
           fp8({.name = "fp8 one long of many", .heads = 66, .lengths = one_long_of_many()}),
           // Parts of several blocks, for every tile size of `fp8_32`.
           fp8({.name = "fp8 invariant", .heads = 8, .lengths = {300, 3}, .batch_invariant = true}),
           fp8({.name = "fp8 invariant", .heads = 16, .lengths = {300, 3}, .batch_invariant = true}),
           fp8({.name = "fp8 invariant", .heads = 32, .lengths = {300, 3}, .batch_invariant = true}),
           sparse(96, {.name = "sparse", .heads = 8, .page_size = 61, .sink = true}),
           sparse(130, {.name = "sparse", .query_tokens = 2, .heads = 64, .strided = true}),
           sparse(65, {.name = "sparse", .heads = 128, .topk_lengths = {65, 1, 0, 33}}),
           sparse(130, {.name = "sparse by token",
                       .query_tokens = 2,
                       .heads = 66,
                       .topk_lengths = {130, 1, 0, 64, 65, 0, 63, 130}}),
           plain(700, {.name = "sparse plain by token",
                      .query_tokens = 2,
                      .heads = 12,
                      .topk_lengths = {700, 699, 0, 1, 333, 65, 64, 0}}),
           sparse(700, {.name = "sparse splits", .heads = 4}),
           sparse(700, {.name = "sparse splits", .heads = 24}),
           plain(700, {.name = "sparse plain", .heads = 16}),
           plain(700, {.name = "sparse plain", .heads = 40, .topk_lengths = {700, 1, 0, 333}})}) {
    cases.push_back(std::move(spec));
  }
}

void add_quick_fp8_cases(std::vector<CaseSpec>& cases) {
  for (int heads : {1, 8, 12, 16, 40, 64, 128}) {
    cases.push_back(fp8({.name = "fp8", .heads = heads, .lengths = {0, 1, 63, 64, 65, 130, 200}}));
    for (int tokens : {1, 2}) {
      cases.push_back(sparse(130, {.name = "sparse", .query_tokens = tokens, .heads = heads}));
    }
  }
  for (int page_size : {1, 16, 61}) {
    cases.push_back(fp8({.name = "fp8",
                         .query_tokens = 2,
                         .heads = 12,
                         .page_size = page_size,
                         .lengths = {0, 1, 64, 130},
                         .causal = true,
                         .sink = true,
                         .invalid_pages = true,
                         .strided = true}));
    cases.push_back(sparse(96, {.name = "sparse",
                                .query_tokens = 2,
                                .heads = 12,
                                .page_size = page_size,
                                .sink = true,
                                .strided = true,
                                .topk_lengths = {96, 5, 0, 65}}));
  }
  for (int topk : {0, 1, 63, 64, 65, 2048}) {
    for (int heads : {8, 64}) cases.push_back(sparse(topk, {.name = "topk", .heads = heads}));
  }
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (int heads : {1, 8, 16, 40, 64, 128}) {
      for (int topk : {130, 2048}) {
        const int tokens = topk == 130 ? 2 : 1;
        cases.push_back(
            plain(topk, {.name = "sparse plain", .dtype = dtype, .query_tokens = tokens, .heads = heads}));
      }
    }
  }
  cases.push_back(fp8({.name = "fp8 splits", .heads = 16, .lengths = {4100, 65}, .sink = true}));
  cases.push_back(fp8({.name = "fp8 invariant", .heads = 4, .lengths = {2200, 3}, .batch_invariant = true}));
  cases.push_back(sparse(2500, {.name = "sparse invariant", .heads = 4, .batch_invariant = true}));
  cases.push_back(fp8({.name = "fp8 ragged",
                       .heads = 8,
                       .lengths = {10, 100, 64, 300},
                       .ragged_tokens = {1, 3, 0, 2},
                       .causal = true}));
}

void add_full_fp8_cases(std::vector<CaseSpec>& cases) {
  for (int heads : {1, 8, 12, 16, 40, 64, 128}) {
    for (int page_size : {16, 61, 64}) {
      for (int tokens : {1, 2}) {
        const bool two = tokens == 2;
        cases.push_back(fp8({.name = "fp8 sweep",
                             .query_tokens = tokens,
                             .heads = heads,
                             .page_size = page_size,
                             .lengths = {0, 1, 2, 300, 64},
                             .causal = two,
                             .sink = two,
                             .invalid_pages = two,
                             .strided = two}));
        for (int topk : {1, 63, 64, 65, 96, 2048}) {
          if (topk == 2048 && page_size != 64) continue;
          CaseSpec spec = {.name = "sparse sweep",
                           .query_tokens = tokens,
                           .heads = heads,
                           .page_size = page_size,
                           .sink = two,
                           .strided = two};
          if (two) spec.topk_lengths = {topk, topk / 2, 1, 0};
          cases.push_back(sparse(topk, std::move(spec)));
        }
      }
    }
  }
  cases.push_back(sparse(66, {.name = "sparse many", .query_tokens = 2, .heads = 8}));
  cases.back().lengths.assign(150, 70);
  cases.push_back(cases.back());
  for (int i = 0; i < 300; ++i) cases.back().topk_lengths.push_back(i * 29 % 67);
  cases.push_back(sparse(16384, {.name = "sparse long", .query_tokens = 2, .heads = 16}));
  cases.push_back(fp8({.name = "fp8 very long", .heads = 2, .lengths = {40000, 1}}));
}

}  // namespace flashlatent::tools
