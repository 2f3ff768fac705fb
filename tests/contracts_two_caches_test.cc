// The contracts of fp8_584 caches, of two caches in one softmax and of windows, on every backend that is
// there.
#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "contracts.h"
#include "core/formats/formats.h"
#include "core/formats/fp8_584.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class TwoCaches : public Contracts {
 protected:
  /// Compares with the oracle what a kernel of this backend takes; of the GPU's each that does.
  void check(const CaseSpec& spec) {
    if (!on_gpu()) {
      if (taken(spec)) expect_right(spec);
      return;
    }
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend != GetParam()) continue;
      executor_.kernel = kernel.name;
      if (taken(spec)) expect_right(spec);
    }
    executor_.kernel.clear();
  }

  static CaseSpec v4(int heads, std::vector<int> lengths) {
    return {.name = "v4",
            .format = KvFormat::kFp8_584,
            .heads = heads,
            .qk_dim = 512,
            .v_dim = 512,
            .lengths = std::move(lengths)};
  }
  static CaseSpec indexed(CaseSpec spec, int topk) {
    spec.sparse = true;
    spec.topk = topk;
    spec.skipped_indices = 0.2;
    return spec;
  }
  static CaseSpec with_extra(CaseSpec spec, int topk, int page_size) {
    spec.extra_lengths.assign(spec.lengths.size(), 90);
    spec.extra_page_size = page_size;
    spec.extra_indexed = topk >= 0;
    spec.extra_topk = std::max(topk, 0);
    return spec;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, TwoCaches, kBackends, backend_name);

TEST_P(TwoCaches, DenseFromFp8_584) {
  for (int heads : {1, 12, 64, 128}) check(v4(heads, {0, 1, 63, 64, 65, 130, 200}));
  for (int page_size : {1, 2, 3, 64, 256}) {
    CaseSpec spec = v4(12, {1, 130, 257});
    spec.page_size = page_size;
    spec.query_tokens = 3;
    spec.causal = spec.sink = true;
    check(spec);
    spec.strided = spec.invalid_pages = true;
    spec.window = 70;
    check(spec);
  }
  CaseSpec ragged = v4(16, {5, 100, 64, 700});
  ragged.ragged_tokens = {1, 3, 0, 2};
  ragged.causal = true;
  check(ragged);
  ragged.window = 33;
  check(ragged);
}

TEST_P(TwoCaches, WindowsOfPlainCaches) {
  for (int tokens : {1, 3}) {
    CaseSpec spec = {.heads = 8, .lengths = {1, 300, 0, 64}, .causal = tokens > 1, .window = 64};
    spec.query_tokens = tokens;
    check(spec);
  }
}

TEST_P(TwoCaches, BothByIndices) {
  for (int heads : {1, 8, 12, 30, 64, 128, 130})
    check(with_extra(indexed(v4(heads, {100, 0, 70}), 128), 130, 2));
  for (int topk : {0, 1, 63, 64, 65}) {
    for (int extra : {0, 1, 64, 65}) check(with_extra(indexed(v4(8, {100, 0, 70}), topk), extra, 64));
  }
  CaseSpec spec = with_extra(indexed(v4(16, {100, 100, 100, 100, 100}), 65), 96, 3);
  spec.query_tokens = 2;
  spec.topk_lengths = {-5, 0, 1, 65, 1000};
  spec.extra_topk_lengths = {96, -1, 0, 1000, 64};
  spec.sink = spec.strided = true;
  check(spec);
  for (int heads : {8, 16, 64, 128}) {  // a length for each query token
    spec.heads = heads;
    spec.topk_lengths = {-5, 65, 0, 1, 1, 64, 65, 1000, 1000, 0};
    spec.extra_topk_lengths = {96, 1, -1, 96, 0, 0, 1000, 65, 64, 2};
    check(spec);
  }
}

TEST_P(TwoCaches, ExtraByPageTable) {
  for (int page_size : {1, 2, 64}) {
    for (int tokens : {1, 2}) {
      CaseSpec spec = with_extra(indexed(v4(16, {100, 0, 70, 1}), 128), -1, page_size);
      spec.extra_lengths = {300, 64, 0, 1};
      spec.query_tokens = tokens;
      spec.extra_by_token = tokens > 1;
      spec.invalid_pages = spec.sink = true;
      check(spec);
    }
  }
}

TEST_P(TwoCaches, WindowCacheByPageTable) {
  for (int tokens : {1, 3}) {
    for (int topk : {-1, 70}) {
      CaseSpec spec = with_extra(v4(16, {200, 0, 77, 64, 2}), topk, 2);
      spec.query_tokens = tokens;
      spec.causal = true;
      spec.window = 70;
      check(spec);
      spec.window = 0;
      check(spec);
    }
  }
}

TEST_P(TwoCaches, OtherFormats) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    CaseSpec spec = with_extra(indexed(v4(16, {100, 0, 70}), 65), 70, 61);
    spec.format = KvFormat::kPlain;
    spec.dtype = dtype;
    spec.strided = true;
    check(spec);
  }
  CaseSpec spec = with_extra(indexed(v4(16, {100, 0, 70}), 65), 70, 61);
  spec.format = KvFormat::kFp8_656;
  check(spec);
  spec.qk_dim = 576;
  check(spec);
}

/// DeepSeek V4.1: both arrangements, extra caches in either format, and each format alone.
TEST_P(TwoCaches, Records) {
  const auto in = [](CaseSpec spec, KvFormat format, ScalePlace place, bool fp4) {
    spec.format = format;
    spec.scale_place = place;
    if (fp4) spec.extra_format = KvFormat::kNvfp4_288;
    return spec;
  };
  for (const ScalePlace place : {ScalePlace::kToken, ScalePlace::kPage}) {
    for (int heads : {12, place == ScalePlace::kToken ? 64 : 128}) {
      for (const bool fp4 : {false, true}) {
        CaseSpec spec =
            in(with_extra(indexed(v4(heads, {100, 0, 70}), 128), 130, 2), KvFormat::kMxfp8_528, place, fp4);
        spec.sink = spec.strided = heads != 64;
        spec.query_tokens = heads == 12 ? 3 : 1;
        check(spec);
        spec = in(with_extra(v4(heads, {200, 0, 77, 64}), -1, 3), KvFormat::kMxfp8_528, place, fp4);
        spec.extra_lengths = {300, 64, 0, 1};
        spec.window = 70;
        spec.page_size = 5;
        spec.strided = spec.invalid_pages = true;
        check(spec);
      }
      for (const LatentFormat* format : kFormats) {
        if (!format->is_record() || !format->all_value || format->place != place) continue;
        CaseSpec spec = in(v4(heads, {0, 1, 63, 64, 65, 200}), format->format, place, false);
        check(spec);
        spec.page_size = 3;
        spec.strided = true;
        check(indexed(spec, 130));
      }
    }
    CaseSpec ragged = in(with_extra(v4(16, {5, 100, 64, 700}), -1, 2), KvFormat::kMxfp8_528, place, true);
    ragged.ragged_tokens = {1, 3, 0, 2};
    ragged.causal = true;
    check(ragged);
  }
}

/// NaN in a scale of either cache reaches the output; scales of zeros, as in a cleared cache, are right: by
/// each kernel.
TEST_P(TwoCaches, ScalesOfRecords) {
  CaseSpec spec = with_extra(indexed(v4(8, {40}), 8), 8, 3);
  spec.format = KvFormat::kMxfp8_528;
  spec.extra_format = KvFormat::kNvfp4_288;
  spec.skipped_indices = 0;
  std::vector<std::string> names = {""};  // as chosen; on the GPU also by each kernel
  for (const KernelInfo& kernel : kernels()) {
    if (on_gpu() && kernel.backend == GetParam()) names.emplace_back(kernel.name);
  }
  const std::size_t count = names.size();
  for (std::size_t i = 0; i < 4 * count; ++i) {
    spec.scale_place = i / count % 2 == 0 ? ScalePlace::kToken : ScalePlace::kPage;
    spec.heads = i / count < 2 ? 8 : 64;
    executor_.kernel = names[i % count];
    if (!taken(spec)) continue;
    const auto with = [&](auto change, const char* what) {
      RandomCase c = runtime::make_case(spec, 1);
      for (const auto& [view, format, names, page_size] :
           {std::tuple{&c.inputs.kv_cache, &format_of(c.problem.cache), &c.inputs.indices, spec.page_size},
            {&c.inputs.extra_kv_cache, &extra_format_of(c.problem.cache), &c.inputs.extra_indices, 3}}) {
        const std::int32_t slot = *static_cast<const std::int32_t*>(names->data);
        auto* page =
            static_cast<std::uint8_t*>(const_cast<void*>(view->data)) + slot / page_size * view->strides[0];
        change(*format, page + format->data_at(slot % page_size, view->strides[1]),
               page + format->scales_at(page_size, slot % page_size, view->strides[1]));
      }
      expect_right(c, what);
    };
    for (int group : {0, 7, 15}) {
      with([&](const LatentFormat&, auto*, auto* scales) { scales[group] = 0xFF; }, "NaN scale");
    }
    with([](const LatentFormat&, auto* data, auto*) { data[11] = 0x7F; }, "NaN element, or FP4's 6");
    with(
        [](const LatentFormat& format, auto* data, auto* scales) {
          std::memset(data, 0, format.elements == Elements::kE2m1 ? 256 : 512);
          std::memset(scales, 0, format.scale_bytes);
        },
        "zeros");
    with([](const LatentFormat&, auto*, auto* scales) { std::memset(scales, 1, 16); }, "least scales");
    // Units that do not follow from scales alone.
    with(
        [](const LatentFormat& format, auto* data, auto* scales) {
          const bool e2m1 = format.elements == Elements::kE2m1;
          std::memset(data + 3 * (e2m1 ? 8 : 32), 0, e2m1 ? 8 : 32);
          scales[3] = e2m1 ? 0x7E : 250;
        },
        "zeros with a large scale");
    with(
        [](const LatentFormat& format, auto*, auto* scales) {
          if (format.scales == ScaleKind::kE4m3) return;
          for (int i = 0; i < format.scale_bytes; ++i) scales[i] = i % 3 == 0 ? 124 : 101;
        },
        "scales far apart");
    with([](const LatentFormat& format, auto*,
            auto* scales) { std::memset(scales, format.scales == ScaleKind::kE4m3 ? 0x7E : 127 + 14, 16); },
         "large scales");
  }
}

TEST_P(TwoCaches, Fp8_656WithoutRope) {
  for (int heads : {1, 32, 64}) {
    CaseSpec spec = v4(heads, {100, 1, 70});
    spec.format = KvFormat::kFp8_656;
    spec.strided = true;
    check(spec);
    check(indexed(spec, 130));
  }
}

TEST_P(TwoCaches, SplitsAndFixedSplits) {
  CaseSpec spec = with_extra(indexed(v4(8, {200, 100}), 128), -1, 2);
  spec.extra_lengths = {9000, 20};
  spec.sink = true;
  check(spec);
  spec.batch_invariant = true;
  check(spec);
}

/// Few requests are shared out evenly or by length, of many some are split on a line.
TEST_P(TwoCaches, SharesAndLines) {
  for (const auto& [format, dtype, heads] : {std::tuple{KvFormat::kFp8_584, Dtype::kBF16, 5},
                                             {KvFormat::kFp8_584, Dtype::kBF16, 64},
                                             {KvFormat::kFp8_584, Dtype::kBF16, 70},
                                             {KvFormat::kFp8_656, Dtype::kBF16, 20},
                                             {KvFormat::kPlain, Dtype::kBF16, 20},
                                             {KvFormat::kPlain, Dtype::kF16, 20}}) {
    CaseSpec spec = with_extra(indexed(v4(heads, {100, 0, 100}), 128), 512, 3);
    spec.format = format;
    spec.dtype = dtype;
    spec.query_tokens = 2;
    spec.sink = spec.strided = true;
    check(spec);
    spec.topk_lengths = {128, 5, 0};
    spec.extra_topk_lengths = {300, 0, 0};
    check(spec);
    spec = with_extra(v4(heads, {500, 0, 200, 64}), -1, 2);
    spec.format = format;
    spec.dtype = dtype;
    spec.window = 100;
    spec.lengths.resize(16, 3);
    spec.extra_lengths = {1200, 1, 0, 700, 300};
    spec.extra_lengths.resize(16, 0);
    spec.invalid_pages = true;
    check(spec);
  }
  CaseSpec rope = with_extra(indexed(v4(12, {100, 100, 0}), 128), 512, 3);
  rope.format = KvFormat::kFp8_656;
  rope.qk_dim = 576;
  check(rope);
  for (const auto& [heads, requests] : {std::pair{8, 70}, {20, 70}, {66, 40}}) {
    CaseSpec spec = with_extra(indexed(v4(heads, std::vector<int>(requests, 70)), 70), -1, 2);
    for (int i = 0; i < requests; ++i) spec.extra_lengths[i] = i == 20 ? 1200 : i * i % 200;
    check(spec);
  }
}

/// A share is empty when lengths are less than those of the plan, or longer.
TEST_P(TwoCaches, SharesOfOtherLengths) {
  for (int heads : {8, 20, 66}) {
    CaseSpec spec = with_extra(indexed(v4(heads, {200, 100, 50}), 128), 512, 2), other = spec;
    if (!taken(spec)) continue;
    spec.topk_lengths = {0, 128, 0}, spec.extra_topk_lengths = {0, 65, 512};
    other.topk_lengths = {128, 0, 1}, other.extra_topk_lengths = {512, 512, 0};
    expect_right_with_plan_of(runtime::make_case(other, 1), runtime::make_case(spec, 2), "other lengths");
    expect_same_bits(spec);
    CaseSpec paged = with_extra(v4(heads, std::vector<int>(16, 90)), -1, 2);
    paged.window = 70;
    paged.extra_lengths.assign(16, 5);
    other = paged;
    paged.extra_lengths[0] = other.extra_lengths[15] = 1200;
    expect_right_with_plan_of(runtime::make_case(other, 1), runtime::make_case(paged, 2), "by length");
  }
}

/// A request's bits are the same alone as among others, with fixed splits.
TEST_P(TwoCaches, BatchInvariant) {
  CaseSpec spec = with_extra(indexed(v4(8, {200, 100}), 128), -1, 2);
  spec.extra_lengths = {5000, 20};
  spec.batch_invariant = true;
  if (!taken(spec)) return;
  const RandomCase both = runtime::make_case(spec, 3);
  RandomCase alone = runtime::make_case(spec, 3);
  alone.problem.query.batch = 1;
  for (ConstTensorView* view : {&alone.inputs.q, &alone.inputs.indices, &alone.inputs.extra_block_table,
                                &alone.inputs.extra_cache_seqlens}) {
    view->shape[0] = 1;
  }
  DecodeRun run = place(both, executor_), lone = place(alone, executor_);
  ASSERT_TRUE(run.run().ok() && lone.run().ok() && run.fetch().ok() && lone.fetch().ok());
  EXPECT_EQ(0, std::memcmp(run.out().data, lone.out().data, std::size_t{8} * 512 * 2));
}

TEST_P(TwoCaches, AnIndexNamedTwiceCountsTwice) {
  CaseSpec spec = with_extra(indexed(v4(8, {40}), 8), 8, 64);
  spec.skipped_indices = 0;
  if (!taken(spec)) return;
  RandomCase c = runtime::make_case(spec, 1);
  for (ConstTensorView* view : {&c.inputs.indices, &c.inputs.extra_indices}) {
    auto* indices = static_cast<std::int32_t*>(const_cast<void*>(view->data));
    std::fill_n(indices + 1, 3, indices[0]);
  }
  expect_right(c, "twice");
}

/// Results do not depend on when the plan was made.
TEST_P(TwoCaches, PlansOfOtherLengths) {
  CaseSpec spec = with_extra(indexed(v4(8, {200, 100, 50}), 128), -1, 2);
  spec.extra_lengths = {3000, 20, 400};
  if (!taken(spec)) return;
  CaseSpec other = spec;
  other.extra_lengths = {0, 3000, 64};
  other.topk_lengths = {0, 128, 64};
  spec.topk_lengths = {128, 1, 0};
  expect_right_with_plan_of(runtime::make_case(other, 1), runtime::make_case(spec, 2), "other lengths");
}

TEST_P(TwoCaches, PlansAreDescribed) {
  CaseSpec spec = with_extra(indexed(v4(8, {200, 100}), 128), -1, 2);
  spec.extra_lengths = {3000, 20};
  if (!taken(spec)) return;
  const RandomCase c = runtime::make_case(spec, 1);
  DecodeRun run = place(c, executor_);
  const Result<PlanDescription> plan = run.handle().describe(lengths_of(c.problem, c.inputs));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  int blocks = 0;
  for (const PlanPart& part : plan->parts) {
    for (const PlanSegment& segment : part.segments) blocks += segment.block_end - segment.block_begin;
  }
  EXPECT_EQ(blocks, 2 + 47 + 2 + 1);  // of 128 and 3,000 tokens, and of 128 and 20
}

TEST_P(TwoCaches, SameBitsEachTime) {
  const CaseSpec spec = with_extra(indexed(v4(16, {200, 0, 77}), 128), 512, 64);
  if (taken(spec)) expect_same_bits(spec);
}

/// NaN in a live scale, or what is not finite in a live element, reaches the output, by each kernel.
TEST_P(TwoCaches, NanInLiveTokensIsSeen) {
  const CaseSpec spec = with_extra(indexed(v4(8, {40}), 8), 8, 3);
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.backend != GetParam() || !should_take(kernel.name, runtime::problem_of(spec))) continue;
    executor_.kernel = kernel.name;
    auto with = [&](auto change, const char* what) {
      RandomCase c = runtime::make_case(spec, 1);
      const std::int32_t slot = *std::find_if(
          static_cast<const std::int32_t*>(c.inputs.extra_indices.data),
          static_cast<const std::int32_t*>(c.inputs.extra_indices.data) + 8,
          [&](std::int32_t index) { return index >= 0 && index < c.inputs.extra_kv_cache.shape[0] * 3; });
      auto* page = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.extra_kv_cache.data)) +
                   slot / 3 * c.inputs.extra_kv_cache.strides[0];
      change(page + fp8_584::data_offset(slot % 3), page + fp8_584::scale_offset(3, slot % 3));
      expect_right(c, what);
    };
    for (int group : {0, 3, 6}) with([&](auto*, auto* scales) { scales[group] = 0xFF; }, "NaN scale");
    with([](auto*, auto* scales) { scales[7] = 0xFF; }, "NaN in the byte that means nothing");
    for (int column : {0, 300}) with([&](auto* data, auto*) { data[column] = 0x7F; }, "NaN element");
    for (const std::uint16_t bits : {0x7FC0, 0x7F80, 0xFF80}) {  // NaN, infinity, - infinity
      with([&](auto* data, auto*) { std::memcpy(data + fp8_584::kRopeOffset + 22, &bits, 2); }, "RoPE");
    }
  }
}

/// NoPE's scales say nothing of RoPE's size, and differ from token to token, up to those that no writer
/// makes.
TEST_P(TwoCaches, ScalesOfAllSizes) {
  const CaseSpec spec = with_extra(indexed(v4(8, {200}), 128), 100, 3);
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.backend != GetParam() || !should_take(kernel.name, runtime::problem_of(spec))) continue;
    executor_.kernel = kernel.name;
    for (int widest : {3, 10, 30}) {
      RandomCase c = runtime::make_case(spec, 1);
      const auto pages = static_cast<int>(c.inputs.extra_kv_cache.shape[0]);
      for (int token = 0; token < 3 * pages; ++token) {
        auto* page = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.extra_kv_cache.data)) +
                     token / 3 * c.inputs.extra_kv_cache.strides[0];
        for (int group = 0; group < fp8_584::kGroups; ++group) {
          const bool zero = token % 7 == 3;  // as of a cache that was cleared
          page[fp8_584::scale_offset(3, token % 3) + group] =
              static_cast<std::uint8_t>(zero ? 0 : 116 - (token * 5 + group * 3) % widest);
        }
      }
      expect_right(c, "scales");
    }
  }
}

/// Nor need they say anything of codes' size: a group of zeros may have any scale.
TEST_P(TwoCaches, ScalesOfSmallCodes) {
  const CaseSpec spec = with_extra(indexed(v4(8, {200}), 128), 100, 3);
  for (const KernelInfo& kernel : kernels()) {
    const bool bytes = kernel.name == std::string_view("fp8_64") || kernel.name == std::string_view("fp8_32");
    if (kernel.backend != GetParam() || !bytes) continue;
    executor_.kernel = kernel.name;
    ASSERT_TRUE(taken(spec));
    for (const bool zeros : {true, false}) {
      RandomCase c = runtime::make_case(spec, 1);
      const auto pages = static_cast<int>(c.inputs.extra_kv_cache.shape[0]);
      for (int token = 0; token < 3 * pages; ++token) {
        auto* page = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.extra_kv_cache.data)) +
                     token / 3 * c.inputs.extra_kv_cache.strides[0];
        const int group = token % fp8_584::kGroups;
        std::uint8_t* codes = page + fp8_584::data_offset(token % 3) + group * fp8_584::kGroup;
        std::uint8_t& scale = page[fp8_584::scale_offset(3, token % 3) + group];
        for (int i = 0; i < fp8_584::kGroup; ++i) {  // three bits are a subnormal's
          codes[i] = zeros ? 0 : static_cast<std::uint8_t>((codes[i] & 0x80) | (codes[i] * 5 + i) % 8);
        }
        scale = static_cast<std::uint8_t>(zeros ? 127 + 120 : scale + 14);
      }
      expect_right(c, "small codes");
    }
  }
}

/// A cache that was cleared, and groups of zeros of any scale beside tokens that are as drawn.
TEST_P(TwoCaches, ZerosOfAnyScale) {
  const CaseSpec spec = with_extra(indexed(v4(8, {200}), 128), 100, 3);
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.backend != GetParam() || !should_take(kernel.name, runtime::problem_of(spec))) continue;
    executor_.kernel = kernel.name;
    for (const int scale : {0, 1, 46, 47, 66, 67, 86, 87, 127, 187, 188, 247, 254}) {
      for (const int every : {1, 3}) {  // so many tokens, one is changed
        RandomCase c = runtime::make_case(spec, 1);
        const auto pages = static_cast<int>(c.inputs.extra_kv_cache.shape[0]);
        for (int token = 0; token < 3 * pages; token += every) {
          auto* page = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.extra_kv_cache.data)) +
                       token / 3 * c.inputs.extra_kv_cache.strides[0];
          const int first = token % 2 * 3;  // all groups, or the last ones
          std::memset(page + fp8_584::data_offset(token % 3) + first * fp8_584::kGroup, 0,
                      (fp8_584::kGroups - first) * fp8_584::kGroup);
          std::memset(page + fp8_584::scale_offset(3, token % 3) + first, scale, fp8_584::kGroups - first);
        }
        expect_right(c, "zeros of scale " + std::to_string(scale) + ", one of " + std::to_string(every));
      }
    }
  }
}

TEST_P(TwoCaches, WrongTensorsAreNamed) {
  const CaseSpec spec = with_extra(indexed(v4(8, {40}), 8), 8, 3);
  const RandomCase good = runtime::make_case(spec, 1);
  const Executor cpu;
  auto refused = [&](auto change, const char* words) {
    RandomCase c = runtime::make_case(spec, 1);
    change(c);
    const Status status = check_inputs(good.problem, c.inputs, cpu);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  refused([](RandomCase& c) { c.inputs.kv_cache.strides[1] = 576; }, "584 bytes from token to token");
  refused([](RandomCase& c) { c.inputs.extra_kv_cache.strides[0] = 1760; }, "lie 2304 bytes apart or more");
  refused([](RandomCase& c) { c.inputs.kv_cache.strides[0] += 8; }, "a multiple of 16");
  refused([](RandomCase& c) { c.inputs.extra_indices = {}; }, "extra_indices is missing");
  refused([](RandomCase& c) { c.inputs.extra_block_table = c.inputs.extra_indices; },
          "extra_block_table is given");
  refused([](RandomCase& c) { c.inputs.extra_kv_cache.shape[3] = 656; }, "extra_kv_cache is");

  const auto& options = good.problem.options;
  Result<DecodeProblem> problem = infer_problem(good.inputs, 512, options);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(*problem, good.problem);
  DecodeInputs other = good.inputs;
  other.kv_cache.shape[3] = 640;
  EXPECT_NE(infer_problem(other, 512, options).status().message().find("which is fp8_584"),
            std::string::npos);
  // 528 and 288 bytes leave the format open.
  const auto refused_problem = [&](DecodeInputs inputs, const CacheFormat& said,
                                   std::optional<KvFormat> extra, const char* words) {
    const Status status = infer_problem(inputs, 512, options, said, extra).status();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  CaseSpec records = spec;
  records.format = KvFormat::kMxfp8_528;
  const RandomCase v41 = runtime::make_case(records, 1);
  refused_problem(v41.inputs, {}, {}, "mxfp8_528 with scales 'token' or 'page', or fp8_528 is expected");
  refused_problem(v41.inputs, {.format = KvFormat::kMxfp8_528}, {},
                  "scales is missing, and kv_cache is mxfp8_528");
  refused_problem(v41.inputs, {.format = KvFormat::kFp8_528, .scales = ScalePlace::kPage}, {},
                  "whose scales have one place");
  refused_problem(v41.inputs, {.format = KvFormat::kNvfp4_288, .scales = ScalePlace::kPage}, {},
                  "its last dimension is 288");
  refused_problem(v41.inputs, {.format = KvFormat::kMxfp8_528, .scales = ScalePlace::kToken},
                  KvFormat::kFp8_528, "nvfp4_288 beside mxfp8_528, is accepted");
  refused_problem(good.inputs, {.scales = ScalePlace::kPage}, {}, "scales is page, but kv_cache is fp8_584");
  const CacheFormat by_token{.format = KvFormat::kMxfp8_528, .scales = ScalePlace::kToken};
  problem = infer_problem(v41.inputs, 512, options, by_token);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(*problem, v41.problem);
  for (const ScalePlace place : {ScalePlace::kToken, ScalePlace::kPage}) {
    records.scale_place = place;
    const RandomCase placed = runtime::make_case(records, 1);
    for (const auto& [stride, by] : {std::pair{0, 8}, {1, -16}, {0, -528}}) {
      DecodeInputs inputs = placed.inputs;
      inputs.kv_cache.strides[stride] += by;
      EXPECT_FALSE(check_inputs(placed.problem, inputs, cpu).ok()) << to_string(place) << stride << by;
    }
  }
  records.extra_format = KvFormat::kNvfp4_288;
  records.scale_place = ScalePlace::kToken;
  const RandomCase pair = runtime::make_case(records, 1);
  problem = infer_problem(pair.inputs, 512, options, by_token);  // 288 bytes beside mxfp8_528 are nvfp4_288
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(*problem, pair.problem);
  other = good.inputs;
  other.extra_kv_cache = {};
  EXPECT_NE(infer_problem(other, 512, options).status().message().find("extra_kv_cache is missing"),
            std::string::npos);
}

TEST(TwoCachesProblem, FieldsOutOfRange) {
  const DecodeProblem good = runtime::problem_of(
      {.format = KvFormat::kFp8_584, .qk_dim = 512, .v_dim = 512, .lengths = {4}, .extra_lengths = {9}});
  EXPECT_TRUE(validate(good).ok());
  EXPECT_NE(to_string(good).find("fp8_584 page=64x3 extra_page=64x2"), std::string::npos) << to_string(good);
  auto refused = [&](auto change, const char* words) {
    DecodeProblem p = good;
    change(p);
    EXPECT_NE(validate(p).message().find(words), std::string::npos) << validate(p).message();
  };
  refused([](DecodeProblem& p) { p.cache.v_dim = 448; }, "v_dim of an fp8_584 cache is 448; it must be 512");
  refused([](DecodeProblem& p) { p.cache.qk_dim = 576; }, "qk_dim is 576; an fp8_584 cache has 512");
  refused([](DecodeProblem& p) { p.cache.dtype = Dtype::kF16; }, "with an fp8_584 cache q and out are bf16");
  refused([](DecodeProblem& p) { p.query.ragged = true, p.cache.extra.indexed = true; },
          "q is ragged; then an extra cache goes by extra_block_table");
  refused([](DecodeProblem& p) { p.cache.extra.topk = 3; }, "extra topk is 3; it must be 0");
  refused([](DecodeProblem& p) { p.cache.extra.page_size = 0; }, "extra page_size is 0");
  refused([](DecodeProblem& p) { p.cache.extra.max_pages = 1 << 28; }, "tokens that both caches'");
  refused(
      [](DecodeProblem& p) {
        p.sparse = {true, 4}, p.cache.max_pages = 0, p.options.window = 5;
      },
      "window of sparse decode is 5");
  refused([](DecodeProblem& p) { p.cache.format = KvFormat::kFp8_656, p.cache.qk_dim = p.cache.v_dim = 500; },
          "an fp8_656 cache has 576, or 512 without RoPE");
}

}  // namespace
}  // namespace flashlatent
