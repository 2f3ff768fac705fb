// Cases with e4m3 latent caches: products in bf16 and in e4m3, queries of both.
#include "tools/check_cases.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

/// The dtype of queries and products.
struct Kind {
  bool e4m3_query;
  int query_scales;  // 1, or -1: one for each head
  Products products;
};
constexpr Kind kBf16Products = {false, 0, Products::kAuto};
constexpr Kind kFp8Products = {false, 0, Products::kFp8};
constexpr Kind kE4m3Queries = {true, 1, Products::kAuto};
constexpr Kind kHeadScales = {true, -1, Products::kAuto};

CaseSpec of(CaseSpec spec, Kind kind) {
  spec.format = KvFormat::kE4m3;
  spec.e4m3_query = kind.e4m3_query;
  spec.query_scales = kind.query_scales < 0 ? spec.heads : kind.query_scales;
  spec.products = kind.products;
  if (spec.qk_dim == 576) spec.v_dim = 512;
  return spec;
}

}  // namespace

void add_small_e4m3_cases(std::vector<CaseSpec>& cases) {
  for (Kind kind : {kBf16Products, kFp8Products, kE4m3Queries}) {
    cases.push_back(of({.name = "boundaries", .scales = 1, .heads = 16, .lengths = {0, 1, 64, 65}}, kind));
    cases.push_back(of({.name = "two tiles",
                        .scales = 1,
                        .query_tokens = 2,
                        .heads = 80,
                        .page_size = 16,
                        .lengths = {130, 2},
                        .causal = true,
                        .sink = true,
                        .invalid_pages = true,
                        .strided = true},
                       kind));
    cases.push_back(of({.name = "splits", .heads = 128, .lengths = {2600, 20}, .sink = true}, kind));
  }
  cases.push_back(
      of({.name = "scales of heads", .scales = 1, .heads = 24, .lengths = {70, 700}}, kHeadScales));
  cases.push_back(of({.name = "without rope", .scales = 1, .heads = 24, .qk_dim = 512, .lengths = {70, 700}},
                     kBf16Products));
  cases.push_back(
      of({.name = "window", .scales = 1, .heads = 8, .lengths = {70, 700}, .window = 100}, kBf16Products));
}

void add_quick_e4m3_cases(std::vector<CaseSpec>& cases) {
  for (Kind kind : {kBf16Products, kFp8Products, kE4m3Queries, kHeadScales}) {
    for (int heads : {1, 16, 24, 64, 128}) {
      cases.push_back(of({.name = "boundaries",
                          .scales = 1,
                          .heads = heads,
                          .lengths = {0, 1, 15, 63, 64, 65, 128, 129, 200}},
                         kind));
    }
    for (int page_size : {1, 16, 61, 256}) {
      cases.push_back(
          of({.name = "pages", .scales = 1, .heads = 40, .page_size = page_size, .lengths = {0, 1, 64, 300}},
             kind));
    }
    for (int qk_dim : {512, 576}) {
      cases.push_back(of({.name = "everything",
                          .scales = 1,
                          .query_tokens = 3,
                          .heads = 40,
                          .qk_dim = qk_dim,
                          .page_size = 48,
                          .lengths = {0, 1, 3, 300, 64, 2600},
                          .causal = true,
                          .sink = true,
                          .invalid_pages = true,
                          .strided = true},
                         kind));
      cases.push_back(of({.name = "ragged",
                          .scales = 1,
                          .heads = 24,
                          .qk_dim = qk_dim,
                          .lengths = {300, 0, 65, 4100, 1},
                          .ragged_tokens = {2, 1, 0, 2, 1},
                          .causal = true,
                          .sink = true},
                         kind));
      cases.push_back(of({.name = "indices",
                          .scales = 1,
                          .query_tokens = 2,
                          .heads = 40,
                          .qk_dim = qk_dim,
                          .page_size = 16,
                          .lengths = {300, 65, 2000},
                          .sparse = true,
                          .topk = 333,
                          .topk_lengths = {333, 0, 70},
                          .skipped_indices = 0.3},
                         kind));
    }
    cases.push_back(
        of({.name = "large logits", .heads = 16, .lengths = {0, 1, 300}, .logit_scale = 50.0F}, kind));
    cases.push_back(
        of({.name = "invariant", .scales = 1, .heads = 16, .lengths = {2200, 3, 64}, .batch_invariant = true},
           kind));
    cases.push_back(of({.name = "window",
                        .scales = 1,
                        .query_tokens = 2,
                        .heads = 16,
                        .lengths = {0, 70, 700},
                        .causal = true,
                        .window = 100},
                       kind));
    for (int heads : {8, 80}) {
      cases.push_back(of({.name = "ragged window",
                          .scales = 1,
                          .heads = heads,
                          .qk_dim = heads == 8 ? 576 : 512,
                          .lengths = {10, 100, 64, 700, 0, 3},
                          .ragged_tokens = {1, 3, 0, 2, 1, 5},
                          .causal = true,
                          .window = 100},
                         kind));
    }
    cases.push_back(of({.name = "two caches",
                        .scales = 1,
                        .heads = 16,
                        .lengths = {0, 70, 700},
                        .extra_lengths = {100, 0, 65},
                        .extra_page_size = 16},
                       kind));
  }
}

void add_full_e4m3_cases(std::vector<CaseSpec>& cases) {
  for (Kind kind : {kBf16Products, kFp8Products, kE4m3Queries}) {
    for (int page_size : {1, 16, 64, 128}) {
      for (int heads : {4, 8, 16, 32, 40, 64, 128, 200}) {
        cases.push_back(of({.name = "sweep",
                            .scales = 1,
                            .heads = heads,
                            .page_size = page_size,
                            .lengths = {0, 1, 64, 130, 1000}},
                           kind));
      }
    }
    for (int qk_dim : {512, 576}) {
      for (int heads : {16, 64, 128}) {
        cases.push_back(of({.name = "many requests",
                            .scales = 1,
                            .heads = heads,
                            .qk_dim = qk_dim,
                            .lengths = one_long_of_many()},
                           kind));
      }
    }
    cases.push_back(of({.name = "very long", .scales = 1, .heads = 2, .lengths = {40000, 1}}, kind));
    cases.push_back(of({.name = "only padding", .heads = 16, .lengths = {0, 0, 0}}, kind));
  }
}

}  // namespace flashlatent::tools
