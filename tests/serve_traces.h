// Small request traces for tests.
#pragma once

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "io/trace.h"

namespace flashlatent::serve {

inline io::TraceRequest request(int input, int output, std::vector<std::int64_t> hash_ids = {},
                                std::int64_t timestamp_ms = 0) {
  io::TraceRequest request;
  request.timestamp_ms = timestamp_ms;
  request.input_length = input;
  request.output_length = output;
  request.hash_ids = std::move(hash_ids);
  return request;
}

/// `count` requests over a few hash ids, so that prefixes are shared at random; at most `longest_input` and
/// `longest_output` tokens, some of them none.
inline std::vector<io::TraceRequest> random_trace(int count, int longest_input, int longest_output,
                                                  std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&random](int n) { return static_cast<int>(random() % n); };
  std::vector<io::TraceRequest> trace;
  for (int i = 0; i < count; ++i) {
    const int input = below(8) == 0 ? 0 : below(longest_input + 1);
    const int blocks = (input + io::kTraceBlockTokens - 1) / io::kTraceBlockTokens;
    std::vector<std::int64_t> hash_ids(below(6) == 0 ? 0 : blocks);
    for (std::size_t block = 0; block < hash_ids.size(); ++block) {
      hash_ids[block] = static_cast<std::int64_t>(100 * block) + below(2);
    }
    trace.push_back(request(input, below(longest_output + 1), std::move(hash_ids), 10 * i));
  }
  return trace;
}

inline std::int64_t output_tokens(const std::vector<io::TraceRequest>& trace) {
  std::int64_t tokens = 0;
  for (const io::TraceRequest& r : trace) tokens += r.output_length;
  return tokens;
}

}  // namespace flashlatent::serve
