#include "io/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "io_files.h"

namespace flashlatent::io {
namespace {

const std::string kAzure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

std::vector<TraceRequest> parsed(std::string_view text, std::size_t max_requests = kAllRequests) {
  auto trace = parse_trace(text, "trace", max_requests);
  EXPECT_TRUE(trace.ok()) << trace.status().message();
  return trace.ok() ? *trace : std::vector<TraceRequest>();
}

TEST(Trace, Mooncake) {
  const auto trace = parsed(
      "\xEF\xBB\xBF"
      R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 9223372036854775807]})"
      "\r\n\n"
      R"( {"x": {"hash_ids": [[1.5, null]]}, "hash_ids": [], "output_length": 0, "input_length": 0, "timestamp": 27482})");
  const std::vector<TraceRequest> expected = {{0, 600, 5, {7, 9223372036854775807}}, {27482, 0, 0, {}}};
  EXPECT_EQ(trace, expected);
}

TEST(Trace, Azure) {
  const auto trace = parsed(kAzure +
                            "2023-12-31 23:59:59.9990000,4808,10\r\n"
                            "2024-01-01 00:00:00.0000001,0,0\r\n"
                            "2024-03-01T00:00:00.5+01:00,100000000,1\r\n"
                            "2024-02-29 22:59:59Z,2,3");
  ASSERT_EQ(trace.size(), 4U);
  EXPECT_EQ(trace[0], (TraceRequest{0, 4808, 10, {}}));
  EXPECT_EQ(trace[1], (TraceRequest{1, 0, 0, {}}));
  // 29 February 22:59:59 UTC is 59 days and so much after midnight; the first request came 1 ms before it.
  const std::int64_t late = ((59 * 24 + 22) * 3600 + 59 * 60 + 59) * 1000LL + 1;
  EXPECT_EQ(trace[2].timestamp_ms, late);
  EXPECT_EQ(trace[2].input_length, 2);
  EXPECT_EQ(trace[3].timestamp_ms, late + 1500);
  EXPECT_EQ(trace[3].input_length, 100000000);
}

TEST(Trace, AzureOfAnyColumns) {
  const std::vector<TraceRequest> expected = {{0, 4808, 10, {}}, {1500, 7, 0, {}}};
  for (const char* text : {
           // Quoted; 2025's, with images; zones; no output; other order and case, spaces, unknown columns.
           "\"TIMESTAMP\",\"ContextTokens\",\"GeneratedTokens\"\n\"2023-11-16 18:17:03\",\"4808\",\"10\"\n"
           "\"2023-11-16 18:17:04.5\",\"7\",\"0\"\n",
           "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-01-02 03:04:05+00:00,1,4808,10\n"
           "2025-01-02 03:04:06.5+00:00,0,7,\n",
           "GeneratedTokens, contexttokens ,note,Timestamp\n10,4808,\"a, \"\"b\"\"\",1700000000.25\n"
           "0,7.0,,1700000001.75\n",
           "TIMESTAMP,ContextTokens,GeneratedTokens\n1700000000250,4808.0,10\n1700000001750,7,0\n",
           "TIMESTAMP,ContextTokens,GeneratedTokens\n2,4808,10\n3.5,7,0\n",
       }) {
    EXPECT_EQ(parsed(text), expected) << text;
  }
}

TEST(Trace, MooncakeOfAnyTimes) {
  const auto line = [](const std::string& timestamp) {
    return "{\"timestamp\": " + timestamp + ", \"input_length\": 513.0, \"output_length\": null}\n";
  };
  const auto times = [&](const std::string& first, const std::string& second) {
    std::vector<std::int64_t> list;
    for (const TraceRequest& request : parsed(line(first) + line(second))) {
      EXPECT_EQ(request, (TraceRequest{request.timestamp_ms, 513, 0, {}}));
      list.push_back(request.timestamp_ms);
    }
    return list;
  };
  using Times = std::vector<std::int64_t>;
  EXPECT_EQ(times("0.75", "27482.999"), (Times{0, 27482}));
  EXPECT_EQ(times("1700000000250", "1700000001750.5"), (Times{0, 1500}));
  EXPECT_EQ(times("\"2023-11-16 18:17:03\"", "\"2023-11-16T18:17:04.5Z\""), (Times{0, 1500}));
  EXPECT_EQ(times("\"12.5\"", "\"13\""), (Times{12, 13}));
  EXPECT_EQ(parsed(R"({"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": null})"),
            (std::vector<TraceRequest>{{1, 5, 2, {}}}));
}

TEST(Trace, MessagesPointToThePage) {
  for (const std::string text :
       {std::string("hello"), kAzure + "x,1,2", std::string("{\"timestamp\": -1}")}) {
    const auto trace = parse_trace(text, "bad");
    ASSERT_FALSE(trace.ok());
    EXPECT_TRUE(trace.status().message().ends_with("; see docs/cli.md#request-traces"))
        << trace.status().message();
  }
}

TEST(Trace, OrderOfArrival) {
  const auto line = [](int time, int input) {
    return R"({"timestamp":)" + std::to_string(time) + R"(,"input_length":)" + std::to_string(input) +
           R"(,"output_length":1,"hash_ids":[]})" + "\n";
  };
  const auto trace = parsed(line(5, 1) + line(3, 2) + line(5, 3) + line(0, 4), 3);
  const std::vector<TraceRequest> expected = {{3, 2, 1, {}}, {5, 1, 1, {}}, {5, 3, 1, {}}};
  EXPECT_EQ(trace, expected);
  EXPECT_TRUE(parsed(line(5, 1), 0).empty());
  // What lies behind the last request asked for is not read.
  EXPECT_EQ(parsed(line(5, 1) + "garbage", 1).size(), 1U);
}

TEST(Trace, BadBytesAreNamed) {
  const std::string good = R"({"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [1, 2]})"
                           "\n";
  ASSERT_EQ(parsed(good).size(), 1U);
  // `good` with one piece replaced, as line 2.
  auto bent = [&](std::string_view piece, std::string_view by) {
    std::string line = good;
    line.replace(line.find(piece), piece.size(), by);
    return good + line;
  };
  auto azure = [](std::string_view line) { return kAzure + "2023-11-16 18:17:03,1,2\n" + std::string(line); };
  const struct {
    std::string bytes;
    const char* says;
  } cases[] = {
      {"", "is empty; a request trace is expected"},
      {"\n \n\r\n", "has no requests"},
      {kAzure, "has no requests"},
      {"[" + good + "]",
       "line 1: begins a JSON array; an object a line (JSONL) is expected, which jq -c '.[]' FILE makes of "
       "an "
       "array"},
      {"\n [\n" + good + "]", "line 2: begins a JSON array"},
      {"hello\n",
       "line 1: starts with \"hello\"; expected a JSON object (Mooncake JSONL), or a CSV header, which lacks "
       "TIMESTAMP"},
      {std::string("\x7f"
                   "ELF\x01\0\0",
                   7),
       "line 1: starts with \"\\x7fELF\\x01\\x00\\x00\""},
      {std::string((16 << 20) + 1, 'x'), "line 1: is longer than 16777216 bytes"},
      {good + "\xff{}", "line 2: is not UTF-8 at byte 0"},
      {bent("513", "513, \"note\": \"\xC0\x80\""), "line 2: is not UTF-8 at byte 47"},
      {good + "{\"timestamp\": 0,", "line 2: is not JSON at byte"},
      {good + "\n\n{} {}", "line 4: is not JSON at byte"},
      {good + "[]", "line 2: is an array; an object is expected"},
      {good + "17", "line 2: is 17; an object is expected"},
      {good + "-1.5", "line 2: is -1.5; an object is expected"},
      {good + "{}", "line 2: field \"timestamp\" is missing"},
      {bent("\"timestamp\"", "\"time\""), "line 2: field \"timestamp\" is missing"},
      {bent("\"input_length\"", "\"input\""), "line 2: field \"input_length\" is missing"},
      {bent("\"output_length\"", "\"output\""), "line 2: field \"output_length\" is missing"},
      {bent("\"output_length\"", "\"input_length\""), "line 2: field \"input_length\" appears twice"},
      {bent("\"timestamp\": 0", "\"timestamp\": -1"),
       "line 2: field \"timestamp\" is -1; a number from 0 to 9000000000000 (ms)"},
      {bent("\"timestamp\": 0", "\"timestamp\": -0.5"), "line 2: field \"timestamp\" is -0.5; a number"},
      {bent("\"timestamp\": 0", "\"timestamp\": 9000000000001"), "\"timestamp\" is 9000000000001; a number"},
      {bent("\"timestamp\": 0", "\"timestamp\": \"noon\""), "\"timestamp\" is \"noon\"; a number"},
      {bent("\"timestamp\": 0", "\"timestamp\": \"nan\""), "\"timestamp\" is \"nan\"; a number"},
      {bent("\"timestamp\": 0", "\"timestamp\": null"), "\"timestamp\" is null; a number"},
      {bent("513", "513.5"), "line 2: field \"input_length\" is 513.5; a whole number"},
      {bent("\"timestamp\": 0", "\"timestamp\": 99999999999999999999"),
       "field \"timestamp\" is 9999999999999999999"},
      {bent("\"timestamp\": 0", "\"timestamp\": {}"), "line 2: field \"timestamp\" is an object; a number"},
      {bent("513", "\"513\""), "line 2: field \"input_length\" is \"513\"; a whole number"},
      {bent("513", "-513"), "line 2: field \"input_length\" is -513; a whole number"},
      {bent("513", "100000001"),
       "line 2: field \"input_length\" is 100000001; a whole number from 0 to 100000000"},
      {bent("513", "null"), "line 2: field \"input_length\" is null; a whole number"},
      {bent("5,", "true,"), "line 2: field \"output_length\" is true; a whole number"},
      {bent("[1, 2]", "[1, [2]]"), "line 2: field \"hash_ids\" holds an array; a whole number"},
      {bent("[1, 2]", "[1, -2]"), "line 2: field \"hash_ids\" holds -2; a whole number"},
      {bent("[1, 2]", "[1, 9223372036854775808]"), "line 2: field \"hash_ids\" holds 9223372036854775808"},
      {bent("[1, 2]", "[1, \"2\"]"), "line 2: field \"hash_ids\" holds \"2\"; a whole number"},
      {bent("[1, 2]", "3"), "line 2: field \"hash_ids\" is 3; an array is expected"},
      {bent("[1, 2]", "\"x\""), "line 2: field \"hash_ids\" is \"x\"; an array is expected"},
      {bent("[1, 2]", "[1, 2, 3]"),
       "line 2: field \"hash_ids\" has 3 ids; an input_length of 513 has at most 2 blocks of 512"},
      {good + std::string(100000, '{'), "line 2: is not JSON"},
      {good + R"({"x": )" + std::string(100000, '['), "line 2: is not JSON"},
      {azure("2023-11-16 18:17:03,1"), "line 3: has 2 fields; the header has 3"},
      {azure("2023-11-16 18:17:03,1,2,3"), "line 3: has 4 fields"},
      {azure("yesterday,1,2"), "line 3: field \"TIMESTAMP\" is \"yesterday\"; a time like"},
      {azure(",1,2"), "line 3: field \"TIMESTAMP\" is \"\"; a time like"},
      {azure("2023-02-29 18:17:03,1,2"), "line 3: field \"TIMESTAMP\" is \"2023-02-29 18:17:03\""},
      {azure("2023-11-16 24:17:03,1,2"), "line 3: field \"TIMESTAMP\""},
      {azure("2023-11-16 18:17:03.,1,2"), "line 3: field \"TIMESTAMP\""},
      {azure("2023-11-16 18:17:03.1234567890,1,2"), "line 3: field \"TIMESTAMP\""},
      {azure("2023-11-16 18:17:03+99:00,1,2"), "line 3: field \"TIMESTAMP\""},
      {azure("0000-11-16 18:17:03,1,2"), "line 3: field \"TIMESTAMP\""},
      {azure("2023-11-16 18:17:03,x,2"),
       "line 3: field \"ContextTokens\" is \"x\"; a whole number from 0 to"},
      {azure("2023-11-16 18:17:03,-1,2"), "line 3: field \"ContextTokens\" is \"-1\""},
      {azure("2023-11-16 18:17:03,1.5,2"), "line 3: field \"ContextTokens\" is \"1.5\""},
      {azure("2023-11-16 18:17:03,1,100000001"), "line 3: field \"GeneratedTokens\" is \"100000001\""},
      {azure("2023-11-16 18:17:03,,2"), "line 3: field \"ContextTokens\" is \"\""},
      {azure("2023-11-16 18:17:03,1,nan"), "line 3: field \"GeneratedTokens\" is \"nan\""},
      {azure("1969-11-16 18:17:03,1,2"), "line 3: field \"TIMESTAMP\""},
      {azure("-5,1,2"), "line 3: field \"TIMESTAMP\" is \"-5\"; a time like"},
      {azure("9e15,1,2"), "line 3: field \"TIMESTAMP\" is \"9e15\""},
      {azure("\"2023-11-16 18:17:03,1,2"), "line 3: has a quote that does not end"},
      {azure("\"2023-11-16 18:17:03\"x,1,2"), "line 3: has \"x,1,2\" behind a quoted field"},
      {"TIMESTAMP,Context,Generated\n", "line 1: starts with \"TIMESTAMP,Context,Generated\"; expected"},
      {"TIMESTAMP,Context,Generated\n", "which lacks ContextTokens, GeneratedTokens; see docs/cli.md"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens,timestamp\n", "line 1: column TIMESTAMP appears twice"},
      {azure("2023-11-16 18:17:03,1,99999999999999999999999"), "line 3: field \"GeneratedTokens\""},
      {azure("{\"timestamp\": 0}"), "line 3: has 1 field;"},
  };
  for (const auto& [bytes, says] : cases) {
    const auto trace = parse_trace(bytes, "bad.jsonl");
    EXPECT_FALSE(trace.ok()) << says;
    EXPECT_EQ(trace.status().code(), StatusCode::kInvalidArgument);
    expect_message(trace.status().message(), "bad.jsonl", says);
  }
}

TEST(Trace, BadPathsAreNamed) {
  const TempDir dir;
  expect_message(load_trace(dir.path("none")).status().message(), dir.path("none"), "cannot be opened");
  expect_message(load_trace(dir.path()).status().message(), dir.path(), "is a directory");
  expect_message(load_trace(dir.write("empty", "")).status().message(), dir.path("empty"), "is empty");
  expect_message(write_mooncake_trace(dir.path(), {}).message(), dir.path(), "is a directory");
}

TEST(Trace, LinesLongerThanAChunk) {
  const TempDir dir;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 20; ++i) {
    TraceRequest request{i, 10'000'000, 1, {}};
    for (int id = 0; id < 1 + i * 900; ++id) request.hash_ids.push_back(1'000'000'000LL * i + id);
    requests.push_back(request);
  }
  const std::string path = dir.path("long.jsonl");
  ASSERT_TRUE(write_mooncake_trace(path, requests).ok());
  const auto trace = load_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(*trace, requests);
}

TEST(SyntheticTrace, IsReproducibleAndReadsBack) {
  const TempDir dir;
  const auto trace = synthetic_trace(500, 7);
  EXPECT_EQ(trace, synthetic_trace(500, 7));
  EXPECT_NE(trace, synthetic_trace(500, 8));
  EXPECT_TRUE(synthetic_trace(0, 7).empty());
  ASSERT_TRUE(write_mooncake_trace(dir.path("t"), trace).ok());
  const auto back = load_trace(dir.path("t"));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, trace);
}

TEST(SyntheticTrace, LooksLikeChats) {
  const auto trace = synthetic_trace(2000, 1);
  std::map<std::int64_t, std::vector<std::int64_t>> prefix_of;  // An id's blocks before it.
  std::size_t blocks = 0;
  std::size_t shared = 0;
  for (const TraceRequest& request : trace) {
    EXPECT_GE(request.input_length, 1);
    EXPECT_GE(request.output_length, 1);
    ASSERT_EQ(request.hash_ids.size(), static_cast<std::size_t>((request.input_length + 511) / 512));
    for (std::size_t i = 0; i < request.hash_ids.size(); ++i) {
      const std::vector<std::int64_t> prefix(request.hash_ids.begin(), request.hash_ids.begin() + i);
      const auto [known, fresh] = prefix_of.emplace(request.hash_ids[i], prefix);
      EXPECT_EQ(known->second, prefix) << "equal ids must mean equal text from the start";
      blocks += 1;
      shared += fresh ? 0 : 1;
    }
  }
  EXPECT_TRUE(std::ranges::is_sorted(trace, {}, &TraceRequest::timestamp_ms));
  EXPECT_GT(shared, blocks / 5);
  EXPECT_LT(shared, blocks * 4 / 5);
  const auto longest = std::ranges::max(trace, {}, &TraceRequest::input_length);
  EXPECT_GT(longest.input_length, 8000);
}

TEST(Trace, RealMooncake) {
  const std::string path = shared_file("data/mooncake_conversation_4k.jsonl");
  if (path.empty()) GTEST_SKIP() << "no Mooncake trace in " << FLASHLATENT_SHARED_DIR;
  const auto trace = load_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->size(), 4000U);
  EXPECT_EQ(trace->front().input_length, 6758);
  EXPECT_EQ(trace->front().hash_ids.size(), 14U);
  EXPECT_EQ(trace->back().timestamp_ms, 1301999);
  EXPECT_EQ(load_trace(path, 50)->size(), 50U);
}

TEST(Trace, RealAzure) {
  const std::string path = shared_file("data/azure_code_2023.csv");
  if (path.empty()) GTEST_SKIP() << "no Azure trace in " << FLASHLATENT_SHARED_DIR;
  const auto trace = load_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->size(), 8819U);
  EXPECT_EQ(trace->front(), (TraceRequest{0, 4808, 10, {}}));
  EXPECT_EQ((*trace)[1].timestamp_ms, 52);
  EXPECT_EQ(trace->back(), (TraceRequest{3435948, 549, 173, {}}));
}

}  // namespace
}  // namespace flashlatent::io
