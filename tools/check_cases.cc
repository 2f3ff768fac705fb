#include "tools/check_cases.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/formats/formats.h"

namespace flashlatent::tools {

namespace {

using runtime::CaseSpec;

/// Lengths at the boundaries of blocks and pages, with padding.
const std::vector<int> kBoundaries = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200};
const std::vector<int> kFew = {0, 1, 64, 130};
const std::vector<int> kLong = {3000};
std::vector<int> skewed() {
  std::vector<int> lengths(150, 66);
  lengths[40] = 2500;
  return lengths;
}

std::string lengths_text(const char* name, const std::vector<int>& lengths, const CaseSpec& s) {
  if (lengths.empty()) return {};
  return fmt::format("{}{}", name, lengths.size() > s.lengths.size() ? "_by_token" : "");
}

std::string name_of(const CaseSpec& s) {
  const char* kv = s.format == KvFormat::kPlain ? to_string(s.dtype) : to_string(s.format);
  std::string name = fmt::format("{}/{}/d{}-{}/h{}-{}/sq{}/page{}", s.name, kv, s.qk_dim, s.v_dim, s.heads,
                                 s.kv_heads, s.query_tokens, s.page_size);
  if (s.layout == KvLayout::kPacked) name += "/packed";
  if (has_places(s.format)) name += fmt::format("/scales_by_{}", to_string(s.scale_place));
  if (s.format == KvFormat::kE4m3) name += fmt::format("/{}/scales{}", to_string(s.dtype), s.scales);
  if (s.e4m3_query) name += fmt::format("/q_scales{}", s.query_scales);
  if (s.products != Products::kAuto) name += fmt::format("/{}_products", to_string(s.products));
  if (s.soft_cap != 0) name += fmt::format("/cap{}", s.soft_cap);
  if (s.alibi) name += "/alibi";
  if (s.window != 0) name += fmt::format("/window{}", s.window);
  if (s.sparse) name += fmt::format("/topk{}", s.topk);
  name += lengths_text("/topk_length", s.topk_lengths, s);
  if (!s.extra_lengths.empty()) {
    name += fmt::format("/extra{}", s.extra_page_size);
    if (s.extra_format) name += fmt::format("/{}", to_string(*s.extra_format));
    if (s.extra_indexed) name += fmt::format("/topk{}", s.extra_topk);
    name += lengths_text("/extra_topk_length", s.extra_topk_lengths, s);
  }
  if (s.causal) name += "/causal";
  if (s.sink) name += "/sink";
  if (s.strided) name += "/strided";
  if (s.split_query) name += "/q_rope";
  if (s.invalid_pages) name += "/invalid_pages";
  if (s.shard.world > 1) name += fmt::format("/rank{}of{}/run{}", s.shard.rank, s.shard.world, s.shard.run);
  if (s.batch_invariant) name += "/batch_invariant";
  if (!s.ragged_tokens.empty()) name += "/ragged";
  return name;
}

}  // namespace

std::vector<const LatentFormat*> value_records() {
  std::vector<const LatentFormat*> formats;
  for (const LatentFormat* format : kFormats) {
    if (format->is_record() && format->all_value) formats.push_back(format);
  }
  return formats;
}

CaseSpec fp8(CaseSpec spec) {
  spec.format = KvFormat::kFp8_656;
  return spec;
}

CaseSpec v4(CaseSpec spec) {
  return alone(kFp8_584Format, std::move(spec));
}

CaseSpec alone(const LatentFormat& format, CaseSpec spec) {
  spec.format = format.format;
  spec.scale_place = format.place;
  spec.qk_dim = spec.v_dim = format.dim;
  return spec;
}

std::vector<int> one_long_of_many() {
  std::vector<int> lengths(70);
  for (int i = 0; i < 70; ++i) lengths[i] = i * 7 % 64;
  lengths[40] = 2000;
  return lengths;
}

namespace {

/// Many short lengths and one so long that teams divide by length.
std::vector<int> one_long_of_few() {
  std::vector<int> lengths(16, 60);
  lengths[2] = 2600;
  return lengths;
}

/// Each contract once.
std::vector<CaseSpec> small_cases() {
  return {
      {.name = "boundaries", .heads = 16, .lengths = {0, 1, 64, 65}},
      {.name = "two tiles", .heads = 80, .page_size = 32, .lengths = {130}, .causal = true},
      {.name = "splits", .heads = 4, .page_size = 16, .lengths = {700, 20}, .sink = true},
      {.name = "by token", .dtype = Dtype::kF16, .heads = 8, .page_size = 1, .lengths = {130, 1}},
      {.name = "by token", .heads = 40, .page_size = 1, .lengths = {130, 1}},
      {.name = "by token many", .heads = 12, .page_size = 5, .lengths = std::vector<int>(140, 200)},
      {.name = "by token many", .heads = 40, .page_size = 5, .lengths = std::vector<int>(140, 200)},
      {.name = "by token shared", .heads = 40, .page_size = 3, .lengths = {2600}, .invalid_pages = true},
      {.name = "one tile", .dtype = Dtype::kF16, .heads = 64, .lengths = {64, 193}},
      {.name = "causal",
       .dtype = Dtype::kF16,
       .query_tokens = 3,
       .heads = 8,
       .kv_heads = 2,
       .page_size = 64,
       .lengths = {2, 129},
       .causal = true,
       .invalid_pages = true,
       .strided = true},
      {.name = "dims", .heads = 8, .qk_dim = 512, .v_dim = 512, .lengths = {70}},
      {.name = "dims", .heads = 8, .qk_dim = 320, .v_dim = 256, .lengths = {70}},
      {.name = "many", .heads = 4, .lengths = std::vector<int>(140, 65)},
      {.name = "one long of many", .heads = 20, .lengths = one_long_of_many(), .sink = true},
      {.name = "invariant", .heads = 4, .lengths = {2200, 3}, .batch_invariant = true},
      {.name = "evenly shared", .heads = 40, .lengths = {2600}, .sink = true},
      {.name = "shared by length", .heads = 40, .lengths = one_long_of_few(), .sink = true},
      {.name = "two tiles by length", .heads = 80, .lengths = {6000, 70}, .sink = true},
      {.name = "a part each", .heads = 20, .lengths = {400, 0, 1100}, .sink = true},
      {.name = "ragged", .heads = 8, .lengths = {700, 5, 66}, .ragged_tokens = {2, 0, 1}, .causal = true},
      {.name = "ragged", .heads = 80, .lengths = {130, 64}, .ragged_tokens = {1, 2}, .causal = true},
  };
}

std::vector<CaseSpec> quick_cases() {
  std::vector<CaseSpec> cases;
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (auto [qk_dim, v_dim] : {std::pair{576, 512}, {512, 512}, {320, 256}}) {
      for (int heads : {1, 16, 128}) {
        cases.push_back({.name = "boundaries",
                         .dtype = dtype,
                         .heads = heads,
                         .qk_dim = qk_dim,
                         .v_dim = v_dim,
                         .lengths = heads == 128 ? kFew : kBoundaries});
      }
    }
    for (int page_size : {1, 16, 32, 48, 61, 128, 256}) {
      cases.push_back({.name = "pages", .dtype = dtype, .heads = 8, .page_size = page_size, .lengths = kFew});
    }
    for (int tokens : {2, 3, 5}) {
      cases.push_back({.name = "causal",
                       .dtype = dtype,
                       .query_tokens = tokens,
                       .heads = 16,
                       .lengths = kBoundaries,
                       .causal = true});
    }
    cases.push_back({.name = "long", .dtype = dtype, .heads = 4, .lengths = kLong});
    cases.push_back({.name = "skewed", .dtype = dtype, .heads = 2, .lengths = skewed()});
    cases.push_back({.name = "sink", .dtype = dtype, .heads = 8, .lengths = {0, 1, 900}, .sink = true});
    cases.push_back({.name = "invalid",
                     .dtype = dtype,
                     .query_tokens = 2,
                     .heads = 8,
                     .page_size = 16,
                     .lengths = {500, 64},
                     .causal = true,
                     .invalid_pages = true});
    cases.push_back(
        {.name = "strided", .dtype = dtype, .heads = 8, .kv_heads = 2, .lengths = kFew, .strided = true});
    cases.push_back({.name = "logits in the hundreds",
                     .dtype = dtype,
                     .heads = 8,
                     .lengths = kFew,
                     .logit_scale = 150.0F});
    cases.push_back(
        {.name = "invariant", .dtype = dtype, .heads = 4, .lengths = {2200, 3, 64}, .batch_invariant = true});
    cases.push_back({.name = "ragged",
                     .dtype = dtype,
                     .heads = 8,
                     .lengths = {10, 100, 64, 300},
                     .ragged_tokens = {1, 3, 0, 2},
                     .causal = true});
  }
  return cases;
}

/// The quick cases, and all combinations of dtypes, page sizes, heads and query tokens.
std::vector<CaseSpec> full_cases() {
  std::vector<CaseSpec> cases = quick_cases();
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (int page_size : {1, 16, 32, 64, 128, 256}) {
      for (int heads : {1, 4, 8, 16, 32, 40, 64, 128, 200}) {
        cases.push_back({.name = "sweep",
                         .dtype = dtype,
                         .heads = heads,
                         .page_size = page_size,
                         .lengths = heads > 64 ? kFew : kBoundaries});
      }
      for (auto [heads, kv_heads] : {std::pair{4, 2}, {8, 8}, {32, 2}, {12, 4}}) {
        for (int tokens : {1, 3}) {
          cases.push_back({.name = "kv heads",
                           .dtype = dtype,
                           .query_tokens = tokens,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .page_size = page_size,
                           .lengths = kFew,
                           .causal = tokens > 1});
        }
      }
      for (auto [qk_dim, v_dim] : {std::pair{576, 512}, {512, 512}, {320, 256}}) {
        cases.push_back({.name = "everything",
                         .dtype = dtype,
                         .query_tokens = 2,
                         .heads = 24,
                         .kv_heads = 3,
                         .qk_dim = qk_dim,
                         .v_dim = v_dim,
                         .page_size = page_size,
                         .lengths = {0, 1, 2, 300, 64},
                         .causal = true,
                         .sink = true,
                         .invalid_pages = true,
                         .strided = true});
        cases.push_back({.name = "splits",
                         .dtype = dtype,
                         .query_tokens = 2,
                         .heads = 8,
                         .qk_dim = qk_dim,
                         .v_dim = v_dim,
                         .page_size = page_size,
                         .lengths = {4100, 65},
                         .causal = true,
                         .sink = true});
      }
    }
    for (int heads : {8, 16, 40, 128}) {
      for (int page_size : {1, 16, 64}) {
        cases.push_back({.name = "ragged",
                         .dtype = dtype,
                         .heads = heads,
                         .kv_heads = heads == 16 ? 2 : 1,
                         .page_size = page_size,
                         .lengths = {300, 0, 65, 4100, 1, 128, 64},
                         .ragged_tokens = {2, 1, 0, 2, 1, 0, 1},
                         .causal = true,
                         .sink = true,
                         .invalid_pages = true,
                         .strided = page_size == 16});
      }
    }
    cases.push_back({.name = "many rounds",
                     .dtype = dtype,
                     .query_tokens = 3,
                     .heads = 134,
                     .kv_heads = 67,
                     .page_size = 16,
                     .lengths = {65, 20},
                     .causal = true});
    cases.push_back(
        {.name = "many requests", .dtype = dtype, .heads = 1, .lengths = std::vector<int>(1000, 40)});
    cases.push_back({.name = "very long", .dtype = dtype, .heads = 2, .lengths = {40000, 1}});
    cases.push_back({.name = "only padding", .dtype = dtype, .heads = 16, .lengths = {0, 0, 0}});
  }
  return cases;
}

}  // namespace

bool is_random_suite(const std::string& suite) {
  return suite == "random" || suite == "random_separate" || suite == "random_sparse_prefill" ||
         suite == "random_shards";
}

std::vector<CaseSpec> check_cases(const std::string& suite, int random, std::uint64_t seed) {
  std::vector<CaseSpec> cases;
  if (suite == "random") {
    cases = random_cases(random, seed);
  } else if (suite == "random_separate") {
    cases = random_separate_cases(random, seed);
  } else if (suite == "random_shards") {
    cases = random_shard_cases(random, seed);
  } else if (suite == "random_sparse_prefill") {
    cases = random_prefill_cases(random, seed);
  } else if (suite == "sparse_prefill") {
    add_small_prefill_cases(cases);
    add_full_prefill_cases(cases);
  } else if (suite == "small") {
    cases = small_cases();
    add_small_fp8_cases(cases);
    add_small_paged_cases(cases);
    add_small_two_cache_cases(cases);
    add_small_e4m3_cases(cases);
    add_small_prefill_cases(cases);
    add_small_shard_cases(cases);
  } else {
    cases = suite == "quick" ? quick_cases() : full_cases();
    add_quick_fp8_cases(cases);
    add_quick_paged_cases(cases);
    add_quick_two_cache_cases(cases);
    add_quick_e4m3_cases(cases);
    add_quick_shard_cases(cases);
  }
  if (suite == "full") {
    add_full_fp8_cases(cases);
    add_full_paged_cases(cases);
    add_full_two_cache_cases(cases);
    add_full_e4m3_cases(cases);
    add_small_prefill_cases(cases);
    add_full_prefill_cases(cases);
  }
  for (CaseSpec& spec : cases) spec.name = name_of(spec);
  return cases;
}

}  // namespace flashlatent::tools
