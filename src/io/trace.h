// Request traces: which requests arrived when, how long, sharing which prefixes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/status.h"

namespace flashlatent::io {

/// Tokens that one entry of TraceRequest::hash_ids stands for.
inline constexpr int kTraceBlockTokens = 512;
/// A request with more input or output tokens than this is taken for a broken trace.
inline constexpr int kMaxTraceTokens = 100'000'000;
inline constexpr std::size_t kAllRequests = std::numeric_limits<std::size_t>::max();

struct TraceRequest {
  std::int64_t timestamp_ms = 0;  ///< Arrival.
  int input_length = 0;           ///< Prompt tokens, 0 or more.
  int output_length = 0;          ///< Generated tokens, 0 or more.
  /// Ids of the prompt's first blocks of 512 tokens, at most ceil(input_length / 512) (the last may be partly
  /// filled); two requests share a prefix as far as their ids are equal. Empty where the trace has none.
  std::vector<std::int64_t> hash_ids;

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

/// Reads at most the first `max_requests` requests of a trace, in order of arrival. The first line tells
/// which:
///   Mooncake JSONL (kvcache-ai/Mooncake): objects with timestamp (ms), input_length, output_length and,
///   optionally, hash_ids; times since 1970 become ms since the first.
///   CSV (AzurePublicDataset) whose header names TIMESTAMP, ContextTokens and GeneratedTokens among others;
///   times become ms since the first.
/// An output that is null or an empty cell is 0 tokens. Empty lines are skipped. docs/cli.md has the details.
/// Every error is one line, kInvalidArgument, naming file, line and field.
Result<std::vector<TraceRequest>> load_trace(const std::string& path,
                                             std::size_t max_requests = kAllRequests);
/// The same from memory; `name` stands for the path in messages.
Result<std::vector<TraceRequest>> parse_trace(std::string_view bytes, std::string_view name,
                                              std::size_t max_requests = kAllRequests);

/// Writes a trace as Mooncake JSONL, whole or not at all (see write_file).
Status write_mooncake_trace(const std::string& path, const std::vector<TraceRequest>& requests);

/// `n` made-up requests, always the same for a seed: chats that start from a few common system prompts, go on
/// for some turns (each turn's prompt extends the last one's and so shares its blocks), with skewed lengths.
std::vector<TraceRequest> synthetic_trace(std::size_t n, std::uint64_t seed);

}  // namespace flashlatent::io
