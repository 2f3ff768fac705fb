// One line of a request trace, in either format.
#pragma once

#include <cstdint>
#include <string_view>

#include "flashlatent/status.h"
#include "io/trace.h"

namespace flashlatent::io {

/// A request with its time of arrival: from the trace's start (Mooncake) or from 1970 (Azure), which the
/// caller turns into TraceRequest::timestamp_ms.
struct TimedRequest {
  std::int64_t nanoseconds = 0;
  TraceRequest request;
};

inline constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Messages name the field and its value, not file and line. `line` is UTF-8 and not blank.
using LineParser = Result<TimedRequest> (*)(std::string_view line);

/// {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids]}; other fields are
/// ignored.
Result<TimedRequest> parse_mooncake_line(std::string_view line);
/// 2023-11-16 18:17:03.9799600,4808,10; up to nine decimals, optionally a time zone (Z, +hh:mm, -hh:mm).
Result<TimedRequest> parse_azure_line(std::string_view line);

}  // namespace flashlatent::io
