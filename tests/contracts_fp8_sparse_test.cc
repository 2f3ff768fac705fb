// The contracts of the fp8_656 cache and of sparse decode, on every backend that is there.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "contracts.h"
#include "core/formats/fp8_656.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class Fp8AndSparse : public Contracts {
 protected:
  static CaseSpec fp8(int heads, std::vector<int> lengths) {
    return {.name = "fp8", .format = KvFormat::kFp8_656, .heads = heads, .lengths = std::move(lengths)};
  }
  /// Three requests, one without tokens; a third of the indices name no token.
  static CaseSpec sparse(int heads, int topk, KvFormat format = KvFormat::kFp8_656) {
    return {.name = "sparse",
            .format = format,
            .heads = heads,
            .lengths = {200, 0, 77},
            .sparse = true,
            .topk = topk,
            .skipped_indices = 0.3};
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Fp8AndSparse, kBackends, backend_name);

TEST_P(Fp8AndSparse, DenseLengthsAndHeads) {
  expect_right(fp8(16, {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 193}));
  for (int heads : {1, 3, 8, 12, 40, 64, 65, 128}) expect_right(fp8(heads, {33, 130}));
}

TEST_P(Fp8AndSparse, DensePageSizesAndStrides) {
  for (int page_size : {1, 16, 61, 64, 256}) {
    CaseSpec spec = fp8(8, {1, 130, 257});
    spec.page_size = page_size;
    expect_right(spec);
    spec.strided = spec.invalid_pages = true;
    expect_right(spec);
  }
}

TEST_P(Fp8AndSparse, DenseQueryTokensSplitsAndSinks) {
  CaseSpec spec = fp8(12, {1, 2, 66, 300});
  spec.query_tokens = 3;
  spec.causal = spec.sink = true;
  expect_right(spec);
  spec = fp8(4, {9000, 20});
  spec.sink = true;
  expect_right(spec);
  spec = fp8(16, {5, 100, 64, 700});
  spec.ragged_tokens = {1, 3, 0, 2};
  spec.causal = true;
  expect_right(spec);
}

TEST_P(Fp8AndSparse, RisingAndFallingScores) {
  for (const auto& [name, steps] : hard_score_steps()) {
    for (int heads : {4, 32}) {
      CaseSpec spec = fp8(heads, {1500, 300});
      spec.name = name;
      spec.score_steps = steps;
      spec.step_tokens = ScoreSteps::kTokens;
      expect_right(spec);
    }
  }
}

TEST_P(Fp8AndSparse, SparseTopkAndHeads) {
  for (int topk : {0, 1, 63, 64, 65, 96, 500}) expect_right(sparse(8, topk));
  for (int heads : {1, 3, 12, 16, 40, 64, 128, 130}) expect_right(sparse(heads, 70));
}

TEST_P(Fp8AndSparse, SparsePageSizesAndStrides) {
  for (int page_size : {1, 16, 61, 64}) {
    CaseSpec spec = sparse(8, 100);
    spec.page_size = page_size;
    spec.strided = true;
    expect_right(spec);
  }
}

TEST_P(Fp8AndSparse, SparseQueryTokensHaveTheirOwnIndices) {
  for (int tokens : {2, 5}) {  // of each third one no index names a token
    CaseSpec spec = sparse(16, 130);
    spec.query_tokens = tokens;
    spec.sink = true;
    expect_right(spec);
  }
}

TEST_P(Fp8AndSparse, SparseTopkLength) {
  CaseSpec spec = sparse(8, 130);
  spec.query_tokens = 2;
  spec.lengths = {100, 100, 100, 100, 100, 100, 100};
  spec.topk_lengths = {-5, 0, 1, 64, 65, 130, 1000};
  expect_right(spec);
}

TEST_P(Fp8AndSparse, SparseTopkLengthOfEachQueryToken) {
  for (const KvFormat format : {KvFormat::kFp8_656, KvFormat::kPlain}) {
    for (int heads : {8, 16, 66, 128}) {
      CaseSpec spec = sparse(heads, 130, format);
      spec.query_tokens = 2;
      spec.lengths = {100, 100, 100, 100};
      spec.topk_lengths = {-5, 130, 0, 1, 65, 64, 1000, 63};
      expect_right(spec);
      spec.batch_invariant = true;
      expect_right(spec);
    }
  }
  // More items than segment lists load lengths of at once, and one item that is split.
  CaseSpec spec = sparse(16, 2500);
  spec.query_tokens = 3;
  spec.lengths.assign(40, 70);
  for (int i = 0; i < 120; ++i) spec.topk_lengths.push_back(i * 37 % 131);
  spec.topk_lengths[61] = 2500;
  expect_right(spec);
}

TEST_P(Fp8AndSparse, APlanOutlivesTheTopkLengthsOfQueryTokens) {
  CaseSpec spec = sparse(8, 2100);
  spec.query_tokens = 2;
  spec.lengths = {300, 100};
  spec.topk_lengths = {2100, 3, 700, 0};
  const RandomCase planned = runtime::make_case(spec, 2);
  RandomCase used = planned;
  const std::int32_t lengths[] = {0, 2000, 64, 2};
  used.inputs.topk_length.data = lengths;
  // Indices past topk_length are poison in `planned`: make them skips.
  auto* indices = static_cast<std::int32_t*>(const_cast<void*>(used.inputs.indices.data));
  std::fill(indices + 2100 + 3, indices + 2 * 2100, -1);
  std::fill(indices + 3 * 2100, indices + 4 * 2100, -1);
  expect_right_with_plan_of(planned, used, "other lengths");
}

TEST_P(Fp8AndSparse, SparsePlainCaches) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    CaseSpec spec = sparse(16, 130, KvFormat::kPlain);
    spec.dtype = dtype;
    const RandomCase c = runtime::make_case(spec, 1);
    expect_right(c, spec.name);
    if (on_gpu()) continue;
    spec.heads = 24;
    spec.kv_heads = 3;
    spec.qk_dim = 100;
    spec.v_dim = 72;
    spec.strided = true;
    expect_right(spec);
  }
}

TEST_P(Fp8AndSparse, SparseSplits) {
  CaseSpec spec = sparse(4, 9000);
  spec.query_tokens = 2;
  spec.lengths = {3000};
  spec.sink = true;
  expect_right(spec);
  // Many query tokens, one of them with far more indices than the others.
  spec = sparse(2, 2500);
  spec.lengths.assign(150, 70);
  spec.topk_lengths.assign(150, 66);
  spec.topk_lengths[40] = 2500;
  expect_right(spec);
}

TEST_P(Fp8AndSparse, APlanOutlivesItsTopkLengths) {
  CaseSpec spec = sparse(8, 2100);
  spec.lengths = {300, 100, 50};
  spec.topk_lengths = {2100, 3, 700};
  const RandomCase planned = runtime::make_case(spec, 2);
  RandomCase used = planned;
  const std::int32_t lengths[] = {0, 2000, 64};
  used.inputs.topk_length.data = lengths;
  // Indices past topk_length are poison in `planned`: make them skips.
  auto* indices = static_cast<std::int32_t*>(const_cast<void*>(used.inputs.indices.data));
  std::fill(indices + 2100 + 3, indices + 2 * 2100, -1);
  expect_right_with_plan_of(planned, used, "other lengths");
}

// Without topk_length requests that stay whole need no plan, whatever was planned.
TEST_P(Fp8AndSparse, TopkLengthComesAndGoesAfterThePlan) {
  for (const auto& [format, heads] : {std::pair{KvFormat::kFp8_656, 8},
                                      {KvFormat::kFp8_656, 64},
                                      {KvFormat::kPlain, 16},
                                      {KvFormat::kPlain, 128}}) {
    CaseSpec spec = sparse(heads, 200, format);
    spec.lengths.assign(30, 70);
    const RandomCase all = runtime::make_case(spec, 2);
    std::vector<std::int32_t> lengths(30, 1);
    lengths[0] = 200;
    RandomCase some = all;
    some.inputs.topk_length = {lengths.data(), Dtype::kI32, {30}};
    const std::string name = std::to_string(heads) + " heads, ";
    expect_right_with_plan_of(some, all, name + "no topk_length");
    expect_right_with_plan_of(all, some, name + "topk_length");
    expect_right_with_plan_of(all, all, name + "neither");
  }
  CaseSpec spec = sparse(8, 200);
  spec.query_tokens = 2;
  spec.lengths.assign(20, 70);
  const RandomCase all = runtime::make_case(spec, 2);
  std::vector<std::int32_t> lengths(40, 1);
  lengths[0] = 200;
  RandomCase by_token = all, by_request = all;
  by_token.inputs.topk_length = {lengths.data(), Dtype::kI32, {20, 2}};
  by_request.inputs.topk_length = {lengths.data(), Dtype::kI32, {20}};
  expect_right_with_plan_of(by_token, all, "none, planned for query tokens");
  expect_right_with_plan_of(by_token, by_request, "of requests, planned for query tokens");
  expect_right_with_plan_of(by_request, by_token, "of query tokens, planned for requests");
}

TEST_P(Fp8AndSparse, LiveNanReachesTheRowsThatSeeIt) {
  // One place of request 0's token 3 at a time: its bytes, its scale, its RoPE part.
  for (auto [offset, bytes] : {std::pair{7, 1}, {fp8_656::kScaleOffset + 4, 4}, {fp8_656::kRopeOffset, 2}}) {
    RandomCase dense = runtime::make_case(fp8(8, {70, 130}), 4);
    const auto* pages = static_cast<const std::int32_t*>(dense.inputs.block_table.data);
    auto* kv = static_cast<std::uint8_t*>(const_cast<void*>(dense.inputs.kv_cache.data));
    std::memset(kv + (std::int64_t{pages[0]} * 64 + 3) * fp8_656::kTokenBytes + offset, 0xFF, bytes);
    expect_right(dense, "live NaN, dense");

    CaseSpec spec = sparse(8, 70);
    spec.query_tokens = 2;
    RandomCase c = runtime::make_case(spec, 4);
    const auto* indices = static_cast<const std::int32_t*>(c.inputs.indices.data);
    const int live = *std::find_if(indices, indices + 70, [](int i) { return i >= 0 && i < 64 * 5; });
    kv = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.kv_cache.data));
    std::memset(kv + std::int64_t{live} * fp8_656::kTokenBytes + offset, 0xFF, bytes);
    expect_right(c, "live NaN, sparse");
  }
}

// All three query tokens see the first of request 0's last three tokens, one sees the last.
TEST_P(Fp8AndSparse, LiveNanThatSomeRowsSee) {
  for (const auto& [heads, kernel] :
       {std::pair{4, "fp8_32"}, {4, "fp8_16_team8"}, {9, "fp8_32"}, {8, ""}, {40, ""}, {40, "fp8_64"}}) {
    if (on_gpu()) executor_.kernel = kernel;
    for (int back : {1, 2, 3}) {
      for (auto [offset, bytes] :
           {std::pair{7, 1}, {511, 1}, {fp8_656::kScaleOffset + 4, 4}, {fp8_656::kRopeOffset, 2}}) {
        CaseSpec spec = fp8(heads, {60, 130});
        spec.query_tokens = 3;
        spec.causal = true;
        RandomCase c = runtime::make_case(spec, 4);
        const auto* pages = static_cast<const std::int32_t*>(c.inputs.block_table.data);
        auto* kv = static_cast<std::uint8_t*>(const_cast<void*>(c.inputs.kv_cache.data));
        std::memset(kv + (std::int64_t{pages[0]} * 64 + 60 - back) * fp8_656::kTokenBytes + offset, 0xFF,
                    bytes);
        expect_right(c, "live NaN under a causal mask");
      }
    }
  }
}

// The dispatcher would pick one of them.
TEST_P(Fp8AndSparse, KernelsByName) {
  if (!on_gpu()) GTEST_SKIP() << "one kernel";
  for (const char* kernel : {"mla_16_transposed", "mla_64_pingpong", "fp8_32", "fp8_16_team8", "fp8_64"}) {
    executor_.kernel = kernel;
    for (int heads : {1, 5, 16, 17, 32, 64, 130}) {
      for (const CaseSpec& spec : {fp8(heads, {33, 0, 130, 64, 1, 700}), sparse(heads, 130)}) {
        if (taken(spec)) expect_right(spec);
      }
    }
    CaseSpec spec = fp8(5, {9000, 1, 20, 300, 0});
    spec.query_tokens = 3;
    spec.causal = spec.sink = true;
    expect_right(spec);
    spec.page_size = 61;
    expect_right(spec);
    if (HasFailure()) FAIL() << kernel;
  }
}

// The first 40 of 80 heads: a request's rows do not follow one another then.
TEST_P(Fp8AndSparse, SomeOfTheHeads) {
  for (const char* kernel : {"", "fp8_64", "mla_64_pingpong"}) {
    if (on_gpu()) executor_.kernel = kernel;
    for (CaseSpec spec : {fp8(80, {33, 0, 700}), sparse(80, 130)}) {
      spec.query_tokens = 2;
      RandomCase c = runtime::make_case(spec, 3);
      c.problem.query.heads = 40;
      c.inputs.q.shape[2] = 40;
      expect_right(c, spec.name + " " + kernel);
    }
  }
}

// Q is brought to fp16 by the tile's largest value, and the tile's last rows may be another request's.
TEST_P(Fp8AndSparse, LoudNeighbours) {
  for (const char* kernel : {"", "fp8_64", "mla_64_pingpong"}) {
    if (on_gpu()) executor_.kernel = kernel;
    CaseSpec spec = fp8(40, {700, 300, 64});
    spec.ragged_tokens = {1, 3, 1};
    spec.causal = true;
    const RandomCase c = runtime::make_case(spec, 3);
    auto first_request = [&] {
      DecodeRun run = place(c, executor_);
      EXPECT_TRUE(run.run().ok());
      EXPECT_TRUE(run.fetch().ok());
      const auto begin = run.out_bytes().begin();
      return std::vector<std::uint8_t>(begin, begin + 40 * fp8_656::kLatentDim * 2);
    };
    const auto before = first_request();
    const ConstTensorView& q = c.inputs.q;
    auto* elements = static_cast<std::uint16_t*>(const_cast<void*>(q.data));
    std::fill(elements + q.strides[0], elements + 5 * q.strides[0], std::uint16_t{0x7000});  // 2^97
    EXPECT_EQ(first_request(), before) << kernel;
  }
}

TEST_P(Fp8AndSparse, RerunsAreIdentical) {
  CaseSpec spec = fp8(32, {3000, 1, 0, 64, 500});
  spec.query_tokens = 2;
  expect_same_bits(spec);
  spec = sparse(32, 1500);
  spec.query_tokens = 2;
  expect_same_bits(spec);
}

TEST_P(Fp8AndSparse, BatchInvariance) {
  for (int heads : {16, 64}) {
    CaseSpec spec = fp8(heads, {2500, 64, 0, 300});
    spec.batch_invariant = true;
    expect_batch_invariant(spec);
    spec = sparse(heads, 2500);
    spec.lengths = {300, 50, 0, 200};
    spec.topk_lengths = {2500, 7, 3, 2100};
    spec.query_tokens = 2;
    spec.batch_invariant = true;
    expect_batch_invariant(spec);
  }
}

// Pools beyond 2^31 bytes.
TEST_P(Fp8AndSparse, OffsetsOf64Bits) {
  if (!on_gpu()) GTEST_SKIP() << "needs a device with 2.2 GB of memory to spare";
  constexpr std::int64_t kPages = (1LL << 31) / (64 * fp8_656::kTokenBytes) + 100;
  constexpr std::int64_t kPageBytes = 64 * fp8_656::kTokenBytes;
  Result<runtime::Buffer> pool = runtime::Buffer::allocate(executor_, kPages * kPageBytes);
  if (!pool.ok()) GTEST_SKIP() << pool.status().message();
  const RandomCase c = runtime::make_case(sparse(16, 100), 6);
  DecodeRun run = place(c, executor_);
  const std::int64_t first = kPages - c.inputs.kv_cache.shape[0];  // the case's pages move to the end
  ASSERT_TRUE(runtime::copy_to_device(static_cast<char*>(pool->data()) + first * kPageBytes,
                                      c.inputs.kv_cache.data, c.inputs.kv_cache.elements(), executor_)
                  .ok());
  const auto* from = static_cast<const std::int32_t*>(c.inputs.indices.data);
  std::vector<std::int32_t> indices(from, from + c.inputs.indices.elements());
  for (std::int32_t& index : indices) {
    const bool live = index >= 0 && index < c.inputs.kv_cache.shape[0] * 64;
    index = live ? static_cast<std::int32_t>(index + first * 64) : -1;
  }
  ASSERT_TRUE(runtime::copy_to_device(const_cast<void*>(run.inputs().indices.data), indices.data(),
                                      indices.size() * 4, executor_)
                  .ok());
  run.inputs().kv_cache.data = pool->data();
  run.inputs().kv_cache.shape[0] = kPages;
  ASSERT_TRUE(run.run().ok());
  ASSERT_TRUE(run.fetch().ok());
  const auto result = runtime::compare(c.problem, c.inputs, run.out(), run.lse());
  EXPECT_TRUE(result.ok()) << runtime::to_string(result);
}

TEST_P(Fp8AndSparse, WrongArgumentsAreNamed) {
  using Change = std::function<void(DecodeInputs&)>;
  CaseSpec spec = sparse(8, 70);
  spec.topk_lengths = {1, 2, 3};
  const RandomCase sparse_case = runtime::make_case(spec, 9);
  const RandomCase dense_case = runtime::make_case(fp8(8, {100}), 9);
  spec.query_tokens = 2;
  spec.topk_lengths = {1, 2, 3, 4, 5, 6};
  const RandomCase by_token = runtime::make_case(spec, 9);
  const std::tuple<const char*, const RandomCase*, Change> changes[] = {
      {"kv_cache", &sparse_case, [](auto& in) { in.kv_cache.shape[3] = 576; }},
      {"kv_cache", &sparse_case, [](auto& in) { in.kv_cache.dtype = Dtype::kBF16; }},
      {"indices", &sparse_case, [](auto& in) { in.indices = {}; }},
      {"indices", &sparse_case, [](auto& in) { in.indices.shape[2] = 64; }},
      {"indices", &sparse_case, [](auto& in) { in.indices.dtype = Dtype::kI64; }},
      {"topk_length", &sparse_case, [](auto& in) { in.topk_length.shape[0] = 2; }},
      {"topk_length", &by_token, [](auto& in) { in.topk_length.shape[1] = 1; }},
      {"topk_length", &by_token, [](auto& in) { in.topk_length.strides[0] = 3; }},
      {"block_table", &sparse_case, [](auto& in) { in.block_table = in.topk_length; }},
      {"cache_seqlens", &sparse_case, [](auto& in) { in.cache_seqlens = in.topk_length; }},
      {"kv_cache", &dense_case, [](auto& in) { in.kv_cache.shape[3] = 640; }},
      {"indices", &dense_case, [](auto& in) { in.indices = in.block_table; }},
      {"topk_length", &dense_case, [](auto& in) { in.topk_length = in.cache_seqlens; }},
  };
  for (const auto& [name, c, change] : changes) {
    DecodeRun run = place(*c, executor_);
    ASSERT_TRUE(run.plan().ok());
    change(run.inputs());
    const Status status = run.decode();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find(name), 0U) << status.message();
  }
}

TEST_P(Fp8AndSparse, ImpossibleProblemsAreRefused) {
  using Change = std::function<void(DecodeProblem&)>;
  const std::pair<const char*, Change> changes[] = {
      {"dtype is fp16", [](auto& p) { p.cache.dtype = Dtype::kF16; }},
      {"h_kv", [](auto& p) { p.cache.heads = 2; }},
      {"qk_dim", [](auto& p) { p.cache.qk_dim = 520; }},
      {"causal", [](auto& p) { p.options.causal = true; }},
      {"q is ragged", [](auto& p) { p.query.ragged = true; }},
      {"topk", [](auto& p) { p.sparse.topk = -1; }},
      {"max_pages", [](auto& p) { p.cache.max_pages = 3; }},
  };
  for (const auto& [name, change] : changes) {
    DecodeProblem problem = runtime::make_case(sparse(8, 70), 1).problem;
    ASSERT_TRUE(plan_bytes(problem, executor_).ok());
    change(problem);
    const Status status = plan_bytes(problem, executor_).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find(name), 0U) << status.message();
  }
}

}  // namespace
}  // namespace flashlatent
