// check_inputs(), on every backend that is there: what is an offence, which one is reported, and what is
// legal.
#include "flashlatent/check_inputs.h"

#include <initializer_list>
#include <random>

#include "contracts.h"

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;
using runtime::RandomCase;

class CheckInputs : public Contracts {
 protected:
  /// What the backend finds; the host finds the same.
  Status check(const RandomCase& c) const {
    Status here = place(c, executor_).check_inputs();
    const Status on_host = check_inputs(c.problem, c.inputs, Executor{});
    EXPECT_EQ(here.code(), on_host.code()) << here.message();
    EXPECT_EQ(here.message(), on_host.message());
    return here;
  }

  void expect_none(const RandomCase& c) const { EXPECT_EQ(check(c).message(), ""); }
  void expect_offence(const RandomCase& c, std::initializer_list<const char*> words) const {
    const Status status = check(c);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    for (const char* word : words) {
      EXPECT_NE(status.message().find(word), std::string::npos) << word << " in: " << status.message();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, CheckInputs, kBackends, backend_name);

/// The case's own integers, to change.
std::int32_t* integers(ConstTensorView& view) {
  return static_cast<std::int32_t*>(const_cast<void*>(view.data));
}
std::int32_t& entry(RandomCase& c, int request, int column) {
  ConstTensorView& table = c.inputs.block_table;
  return integers(table)[request * table.strides[0] + column];
}

CaseSpec separate(std::vector<int> lengths) {
  return {.layout = KvLayout::kSeparate,
          .heads = 8,
          .kv_heads = 2,
          .qk_dim = 128,
          .v_dim = 128,
          .page_size = 16,
          .lengths = std::move(lengths)};
}

// Tables have garbage past each request's pages, and lengths of 0.
TEST_P(CheckInputs, RightCallsHaveNone) {
  for (const CaseSpec& spec :
       {CaseSpec{.lengths = {0, 1, 64, 65, 500}}, CaseSpec{.page_size = 1, .lengths = {0, 3, 200}},
        CaseSpec{.query_tokens = 2, .lengths = {1, 300}, .causal = true},
        CaseSpec{.lengths = {7, 100, 0}, .ragged_tokens = {1, 3, 0}, .causal = true},
        CaseSpec{.lengths = {7, 100}, .ragged_tokens = {0, 0}},
        CaseSpec{.format = KvFormat::kFp8_656, .lengths = {0, 130}}, separate({0, 16, 17, 300})}) {
    expect_none(runtime::make_case(spec, 1));
  }
}

TEST_P(CheckInputs, LengthsFromZeroToTheTablesReach) {
  for (bool apart : {false, true}) {
    RandomCase c = runtime::make_case(apart ? separate({5, 100, 30}) : CaseSpec{.lengths = {5, 100, 30}}, 2);
    const int reach = c.problem.cache.max_pages * c.problem.cache.page_size;
    std::int32_t& length = integers(c.inputs.cache_seqlens)[1];
    for (int column = 0; column < c.problem.cache.max_pages; ++column) entry(c, 1, column) = 0;
    length = reach;
    expect_none(c);
    length = reach + 1;
    expect_offence(c, {"cache_seqlens[1] is", std::to_string(reach + 1).c_str(), "request 1",
                       ("0 to " + std::to_string(reach) + " tokens").c_str(), "block_table"});
    length = -1;
    expect_offence(c, {"cache_seqlens[1] is -1", "request 1"});
    length = INT32_MAX;
    expect_offence(c, {"cache_seqlens[1] is 2147483647"});
    length = INT32_MIN;
    expect_offence(c, {"cache_seqlens[1] is -2147483648"});
  }
}

TEST_P(CheckInputs, ATableOfAsManyTokensAsTheBackendCounts) {
  RandomCase c = runtime::make_case({.heads = 1, .page_size = 256, .lengths = {5}}, 2);
  const int columns = on_gpu() ? (1 << 23) - 64 : 1 << 23;  // 2^31 - 2^14 tokens, 2^31 tokens
  std::vector<std::int32_t> table(columns, 0);
  c.problem.cache.max_pages = columns;
  c.inputs.block_table = {table.data(), Dtype::kI32, {1, columns}};
  integers(c.inputs.cache_seqlens)[0] = on_gpu() ? columns * 256 : INT32_MAX;
  expect_none(c);
  table.back() = 1 << 20;
  const std::string entry = "block_table[0, " + std::to_string(columns - 1) + "] is 1048576";
  expect_offence(c, {entry.c_str()});
}

TEST_P(CheckInputs, LivePagesTooLargeForTheCache) {
  for (bool apart : {false, true}) {
    RandomCase c = runtime::make_case(
        apart ? separate({5, 100, 32}) : CaseSpec{.page_size = 16, .lengths = {5, 100, 32}}, 3);
    const auto pages = static_cast<std::int32_t>((apart ? c.inputs.key_cache : c.inputs.kv_cache).shape[0]);
    std::int32_t& last = entry(c, 1, 6);  // of 100 tokens
    last = pages - 1;
    expect_none(c);
    last = pages;
    expect_offence(c, {"block_table[1, 6] is", std::to_string(pages).c_str(), "request 1", "the cache has"});
    last = -1;  // a hole
    expect_none(c);
    last = INT32_MIN;
    expect_none(c);
    last = 0;
    entry(c, 1, 7) = INT32_MAX;  // past the request's pages
    entry(c, 2, 2) = INT32_MAX;  // 32 tokens fill two
    expect_none(c);
    integers(c.inputs.cache_seqlens)[2] = 33;
    expect_offence(c, {"block_table[2, 2] is 2147483647", "request 2"});
  }
}

TEST_P(CheckInputs, StridesOfTheTable) {
  RandomCase c = runtime::make_case({.lengths = {5, 100, 30}}, 4);
  const int columns = c.problem.cache.max_pages, stride = columns + 3;
  std::vector<std::int32_t> wide(3 * stride, INT32_MAX);
  for (int i = 0; i < 3; ++i) std::copy_n(&entry(c, i, 0), columns, wide.begin() + i * stride);
  c.inputs.block_table.data = wide.data();
  c.inputs.block_table.strides[0] = stride;
  expect_none(c);
  wide[2 * stride] = 12345;
  expect_offence(c, {"block_table[2, 0] is 12345"});
  wide[2 * stride] = wide[1] = 0;
  c.inputs.block_table.strides[0] = 0;  // one row for all
  expect_none(c);
  wide[1] = 54321;
  expect_offence(c, {"block_table[1, 1] is 54321"});
}

// A window frees pages: engines leave anything in their entries.
TEST_P(CheckInputs, PagesBeforeTheWindowAreNotLive) {
  for (const auto& [causal, tokens, first] : {std::tuple{false, 1, 6}, {true, 1, 6}, {true, 3, 5}}) {
    CaseSpec spec = separate({130});
    spec.window = 33;  // tokens 97 to 129; the first of three query tokens sees those from 95 on
    spec.causal = causal;
    spec.query_tokens = tokens;
    RandomCase c = runtime::make_case(spec, 5);
    for (int column = 0; column < first; ++column) entry(c, 0, column) = 99999;
    expect_none(c);
    entry(c, 0, first) = 77777;
    expect_offence(c, {"] is 77777"});
  }
  CaseSpec spec = separate({130, 50});
  spec.window = 33;
  spec.causal = true;
  spec.ragged_tokens = {1, 3};
  RandomCase c = runtime::make_case(spec, 5);
  for (int column = 0; column < 6; ++column) entry(c, 0, column) = 99999;
  expect_none(c);
  entry(c, 0, 6) = 99999;
  expect_offence(c, {"block_table[0, 6] is 99999"});
}

TEST_P(CheckInputs, SparseLengthsFromZeroToTopk) {
  RandomCase c = runtime::make_case({.format = KvFormat::kFp8_656,
                                     .query_tokens = 2,
                                     .lengths = {300, 20, 500},
                                     .sparse = true,
                                     .topk = 96,
                                     .topk_lengths = {96, 0, 64},
                                     .skipped_indices = 0.3},  // negative and out of range: legal
                                    6);
  expect_none(c);
  integers(c.inputs.topk_length)[2] = 97;
  expect_offence(c, {"topk_length[2] is 97", "request 2", "topk = 96"});
  integers(c.inputs.topk_length)[1] = -5;
  expect_offence(c, {"topk_length[1] is -5", "request 1"});
  c.inputs.topk_length = {};
  expect_none(c);
}

TEST_P(CheckInputs, SparseLengthsOfQueryTokens) {
  RandomCase c = runtime::make_case({.format = KvFormat::kFp8_656,
                                     .query_tokens = 2,
                                     .lengths = {300, 20},
                                     .sparse = true,
                                     .topk = 96,
                                     .topk_lengths = {96, 0, 64, 1}},
                                    6);
  expect_none(c);
  integers(c.inputs.topk_length)[3] = 97;
  expect_offence(c, {"topk_length[1, 1] is 97", "request 1", "topk = 96"});
  integers(c.inputs.topk_length)[2] = -5;
  expect_offence(c, {"topk_length[1] is -5", "request 1"});
}

TEST_P(CheckInputs, ExtraCacheByPageTableAndByIndices) {
  CaseSpec spec = {.format = KvFormat::kFp8_584,
                   .query_tokens = 2,
                   .qk_dim = 512,
                   .lengths = {300, 20, 500},
                   .window = 50,
                   .extra_lengths = {40, 0, 700},
                   .extra_page_size = 2,
                   .extra_by_token = true};
  RandomCase c = runtime::make_case(spec, 6);
  expect_none(c);
  ConstTensorView& table = c.inputs.extra_block_table;
  integers(table)[2 * table.strides[0] + 349] = 12345;
  expect_offence(c, {"extra_block_table[2, 349] is 12345", "the extra cache has"});
  integers(c.inputs.extra_cache_seqlens)[3] = -1;
  expect_offence(c, {"extra_cache_seqlens[1, 1] is -1", "request 1 may have 0 to"});
  integers(c.inputs.cache_seqlens)[2] = -1;
  expect_offence(c, {"cache_seqlens[2] is -1"});

  spec.extra_by_token = false;
  c = runtime::make_case(spec, 6);
  expect_none(c);
  integers(c.inputs.extra_cache_seqlens)[2] = 100000;
  expect_offence(c, {"extra_cache_seqlens[2] is 100000"});

  spec.extra_indexed = true;
  spec.extra_topk = 70;
  spec.extra_topk_lengths = {70, 0, 1};
  c = runtime::make_case(spec, 6);
  expect_none(c);
  integers(c.inputs.extra_topk_length)[1] = 71;
  expect_offence(c, {"extra_topk_length[1] is 71", "extra topk = 70"});
  spec.extra_topk_lengths = {70, 0, 1, 2, 3, 4};
  c = runtime::make_case(spec, 6);
  expect_none(c);
  integers(c.inputs.extra_topk_length)[5] = 71;
  expect_offence(c, {"extra_topk_length[2, 1] is 71", "extra topk = 70"});
}

TEST_P(CheckInputs, RaggedBegins) {
  RandomCase c = runtime::make_case({.lengths = {7, 100, 9}, .ragged_tokens = {1, 3, 2}}, 7);
  std::int32_t* begins = integers(c.inputs.cu_seqlens_q);
  ASSERT_EQ(c.problem.query.tokens, 3);
  auto expect_with = [&](std::initializer_list<std::int32_t> values,
                         std::initializer_list<const char*> words) {
    std::copy(values.begin(), values.end(), begins);
    expect_offence(c, words);
  };
  expect_with({1, 1, 4, 6}, {"cu_seqlens_q[0] is 1", "request 0 begins", "0 is accepted"});
  expect_with({0, 4, 4, 6}, {"cu_seqlens_q[1] is 4", "request 0 ends", "0 to 3 are accepted"});
  expect_with({0, 1, 0, 6}, {"cu_seqlens_q[2] is 0", "request 1 ends", "1 to 4 are accepted"});
  expect_with({0, 3, 6, 7}, {"cu_seqlens_q[3] is 7", "request 2 ends", "6 is accepted"});
  expect_with({0, 1, 4, 3}, {"cu_seqlens_q[3] is 3", "6 is accepted"});
  expect_with({0, 3, 7, 7}, {"cu_seqlens_q[2] is 7", "3 to 6 are accepted"});
  expect_with({0, 1, 4, 5}, {"cu_seqlens_q[3] is 5", "6 is accepted"});
  expect_with({0, 1, 2, 6}, {"cu_seqlens_q[3] is 6", "2 to 5 are accepted"});
  expect_with({INT32_MIN, INT32_MAX, 4, 6}, {"cu_seqlens_q[0] is -2147483648"});
}

TEST_P(CheckInputs, TheFirstOffenceIsReported) {
  RandomCase c =
      runtime::make_case({.page_size = 16, .lengths = {40, 100, 90}, .ragged_tokens = {1, 1, 1}}, 8);
  entry(c, 2, 1) = 9001;
  expect_offence(c, {"block_table[2, 1]"});
  entry(c, 1, 3) = 9002;
  entry(c, 1, 5) = 9003;
  expect_offence(c, {"block_table[1, 3] is 9002"});
  integers(c.inputs.cache_seqlens)[2] = -3;
  expect_offence(c, {"cache_seqlens[2] is -3"});
  integers(c.inputs.cache_seqlens)[0] = 100000;
  expect_offence(c, {"cache_seqlens[0] is 100000"});
  integers(c.inputs.cu_seqlens_q)[3] = 2;
  expect_offence(c, {"cu_seqlens_q[3] is 2"});
}

// More requests and columns than the device has threads for at a time; offences anywhere.
TEST_P(CheckInputs, ManyRequestsAndColumns) {
  constexpr int kRequests = 700, kColumns = 2100;
  RandomCase c = runtime::make_case({.heads = 1, .lengths = std::vector<int>(kRequests, 1)}, 9);
  std::mt19937 engine(1);
  std::vector<std::int32_t> table(kRequests * kColumns, 0);
  c.inputs.block_table = {table.data(), Dtype::kI32, {kRequests, kColumns}};
  c.problem.cache.max_pages = kColumns;
  std::int32_t* lengths = integers(c.inputs.cache_seqlens);
  for (int i = 0; i < kRequests; ++i) lengths[i] = static_cast<std::int32_t>(engine() % (kColumns * 64 + 1));
  for (int round = 0; round < 10; ++round) {
    std::fill(table.begin(), table.end(), 0);
    for (int i = 0; i < 3; ++i) {
      const auto request = static_cast<int>(engine() % kRequests);
      if (lengths[request] == 0) lengths[request] = 1;
      const auto live = static_cast<unsigned>(lengths[request] + 63) / 64;
      table[request * kColumns + engine() % live] = 1 << 20;
    }
    expect_offence(c, {"block_table["});
  }
  lengths[690] = -1;
  expect_offence(c, {"cache_seqlens[690] is -1"});
}

// What is not checked is clamped: contract 14.
TEST_P(CheckInputs, UncheckedLengthsAreClamped) {
  RandomCase c = runtime::make_case({.lengths = {192, 100}}, 10);
  c.problem.cache.max_pages = 3;
  c.inputs.block_table.shape[1] = 3;
  DecodeRun within = place(c, executor_);
  ASSERT_TRUE(within.run().ok());
  ASSERT_TRUE(within.fetch().ok());
  integers(c.inputs.cache_seqlens)[0] = 1000;
  expect_offence(c, {"cache_seqlens[0] is 1000", "0 to 192 tokens"});
  DecodeRun beyond = place(c, executor_);
  ASSERT_TRUE(beyond.run().ok());
  ASSERT_TRUE(beyond.fetch().ok());
  EXPECT_EQ(beyond.out_bytes(), within.out_bytes());
  EXPECT_EQ(beyond.lse_bytes(), within.lse_bytes());
}

TEST_P(CheckInputs, MemoryOfTheOffence) {
  const RandomCase c = runtime::make_case({.lengths = {5}}, 11);
  DecodeRun run = place(c, executor_);
  auto buffer = runtime::Buffer::allocate(executor_, 256);
  ASSERT_TRUE(buffer.ok());
  auto* data = static_cast<std::byte*>(buffer->data());
  auto code = [&](Memory memory) {
    return check_inputs(run.problem(), run.inputs(), memory, executor_).code();
  };
  EXPECT_EQ(code({data, kInputOffenceBytes}), StatusCode::kOk);
  EXPECT_EQ(code({data + 8, kInputOffenceBytes}), StatusCode::kOk);
  EXPECT_EQ(code({data, kInputOffenceBytes - 1}), StatusCode::kExhausted);
  EXPECT_EQ(code({}), StatusCode::kExhausted);
  EXPECT_EQ(code({data + 4, kInputOffenceBytes}), StatusCode::kInvalidArgument);
  run.inputs().cache_seqlens.shape[0] = 2;
  EXPECT_EQ(code({data, kInputOffenceBytes}), StatusCode::kInvalidArgument);
  run.inputs().cache_seqlens.shape[0] = 1;
  const Status without = check_inputs(run.problem(), run.inputs(), executor_);
  EXPECT_EQ(without.code(), on_gpu() ? StatusCode::kInvalidArgument : StatusCode::kOk) << without.message();
}

}  // namespace
}  // namespace flashlatent
