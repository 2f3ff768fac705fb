// The sample of rows that benchmarks are judged by.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/element.h"
#include "runtime/bench_check.h"
#include "runtime/read_cache.h"

namespace flashlatent::runtime {
namespace {

class BenchCheck : public testing::Test {
 protected:
  /// Decodes `lengths` with 2 query tokens of 8 heads.
  BenchInput decoded(const std::vector<int>& lengths, int page_size) {
    DecodeProblem problem;
    problem.cache.dtype = Dtype::kF16;
    problem.options.causal = true;
    return decoded(problem, lengths, page_size);
  }
  BenchInput decoded(DecodeProblem problem, const std::vector<int>& lengths, int page_size) {
    problem.query.tokens = 2;
    problem.query.heads = 8;
    problem.cache.page_size = page_size;
    problem.options.softmax_scale = 1.0F / 24;
    BenchInput input = std::move(*make_bench_input(problem, lengths, 1.0F, 3, executor_));
    const Buffer plan_memory = std::move(*Buffer::allocate(executor_, *plan_bytes(input.problem, executor_)));
    const Buffer workspace =
        std::move(*Buffer::allocate(executor_, *workspace_bytes(input.problem, executor_)));
    EXPECT_TRUE(plan(input.problem, input.inputs.cache_seqlens, plan_memory.memory(), executor_).ok());
    EXPECT_TRUE(decode(input.problem, input.inputs, input.outputs, plan_memory.memory(), workspace.memory(),
                       executor_)
                    .ok());
    return input;
  }

  Executor executor_;
};

TEST_F(BenchCheck, RightResultsPass) {
  for (int page_size : {1, 48, 64}) {
    const BenchInput input = decoded({130, 0, 64, 257}, page_size);
    const Result<Comparison> all = compare_sample(input, 1000, executor_);
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_TRUE(all->ok()) << to_string(*all);
    EXPECT_EQ(all->rows, 2 * 2 * 8);
    EXPECT_GT(all->rmse, 0);
    EXPECT_LT(all->rmse, 1e-3);
    const Result<Comparison> some = compare_sample(input, 10, executor_);
    ASSERT_TRUE(some.ok());
    EXPECT_EQ(some->rows, 11);  // every third
  }
  const Result<Comparison> one = compare_sample(decoded({5}, 64), 1000, executor_);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->rows, 2 * 8);
}

TEST_F(BenchCheck, SparseAndFp8) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    for (bool sparse : {true, false}) {
      DecodeProblem problem;
      problem.cache.format = format;
      if (sparse) problem.sparse = {.enabled = true, .topk = 90};
      const BenchInput input = decoded(problem, {130, 64, 257}, 61);
      const Result<Comparison> all = compare_sample(input, 1000, executor_);
      ASSERT_TRUE(all.ok()) << all.status().message();
      EXPECT_TRUE(all->ok()) << to_string(*all);
      EXPECT_EQ(all->rows, 2 * 2 * 8);
      auto* out = static_cast<std::uint16_t*>(input.outputs.out.data);
      out[input.outputs.out.elements() - 100] = 0x4000;  // 2 in the last row
      EXPECT_EQ(compare_sample(input, 1000, executor_)->wrong_rows, 1);
      if (!sparse) continue;
      // A query token's indices are different as long as its request has tokens.
      const auto* indices = static_cast<const std::int32_t*>(input.inputs.indices.data);
      EXPECT_EQ(std::set<std::int32_t>(indices, indices + 90).size(), 90U);
      EXPECT_EQ(std::set<std::int32_t>(indices + 2 * 90, indices + 3 * 90).size(), 64U);
    }
  }
}

TEST_F(BenchCheck, AWrongValueIsFoundAndCounted) {
  const BenchInput input = decoded({130, 20, 257}, 64);
  auto* out = static_cast<std::uint16_t*>(input.outputs.out.data);
  // The last row, some column.
  std::uint16_t& value = out[input.outputs.out.elements() - 100];
  value = from_float(to_float(value, Dtype::kF16) + 0.5F, Dtype::kF16);
  const Result<Comparison> found = compare_sample(input, 1000, executor_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->wrong_rows, 1);
  EXPECT_EQ(found->worst.head, 7);
  EXPECT_EQ(found->worst.token, 1);
  EXPECT_NEAR(found->rmse, 0.5 / std::sqrt(2 * 2 * 8 * 512.0), 1e-4);
  // Requests between the first and the last are not looked at.
  out[input.outputs.out.elements() / 2] = 0x7E00;
  EXPECT_EQ(compare_sample(input, 1000, executor_)->wrong_rows, 1);
}

/// Bytes of all pieces, none of which lies outside of the caches or is there twice.
std::uint64_t bytes_of(const std::vector<Piece>& pieces, const BenchInput& input) {
  std::uint64_t bytes = 0;
  std::set<std::uint64_t> begins;
  for (const Piece& piece : pieces) {
    auto lies_in = [&](const Buffer& buffer) {
      const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data());
      return piece.address >= begin && piece.address + piece.bytes <= begin + buffer.size();
    };
    EXPECT_TRUE(lies_in(input.kv_cache) || lies_in(input.value_cache));
    EXPECT_TRUE(begins.insert(piece.address).second);
    EXPECT_LE(piece.bytes, std::uint64_t{Piece::kMostBytes});
    bytes += piece.bytes;
  }
  return bytes;
}

TEST(CachePieces, AreWhatACallReads) {
  const Executor executor;
  auto pieces_of = [&](const DecodeProblem& problem, const std::vector<int>& lengths, int shared_tokens = 0) {
    const BenchInput input = std::move(*make_bench_input(problem, lengths, 1.0F, 3, executor, shared_tokens));
    Result<std::vector<Piece>> pieces = cache_pieces(input);
    EXPECT_TRUE(pieces.ok()) << pieces.status().message();
    return bytes_of(*pieces, input);
  };
  DecodeProblem latent;
  EXPECT_EQ(pieces_of(latent, {130, 0, 64, 257}), (130 + 64 + 257) * 1152U);
  // Two shared pages once; a page's part that any request has.
  EXPECT_EQ(pieces_of(latent, {130, 200, 128}, 128), (128 + 2 + 72) * 1152U);
  DecodeProblem sparse = latent;
  sparse.cache.format = KvFormat::kFp8_656;
  sparse.sparse = {.enabled = true, .topk = 90};
  EXPECT_EQ(pieces_of(sparse, {130, 164}), 2 * 90 * 656U);
  DecodeProblem packed;
  packed.cache.layout = KvLayout::kPacked;
  packed.cache.format = KvFormat::kE4m3;
  packed.cache.heads = 2;
  packed.cache.qk_dim = packed.cache.v_dim = 128;
  packed.cache.page_size = 16;
  EXPECT_EQ(pieces_of(packed, {17, 16}), 3 * 16 * 2 * 2 * 128U);  // whole pages
  DecodeProblem odd;
  odd.cache.qk_dim = 9;
  odd.cache.v_dim = 8;
  const BenchInput input = std::move(*make_bench_input(odd, {3}, 1.0F, 3, executor));
  EXPECT_EQ(cache_pieces(input).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace flashlatent::runtime
