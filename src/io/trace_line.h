// One line of a request trace, in either format.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "flashlatent/status.h"
#include "io/trace.h"

namespace flashlatent::io {

/// A request with its time of arrival: from the trace's start or from 1970, which the caller turns into
/// TraceRequest::timestamp_ms.
struct TimedRequest {
  std::int64_t nanoseconds = 0;
  TraceRequest request;
};

/// Times beyond this are refused: 2255, if from 1970. Nanoseconds of it fit 64 bits.
inline constexpr std::int64_t kMaxTimestampMs = 9'000'000'000'000;

/// Messages name the field and its value, not file and line. `line` is UTF-8 and not blank.
using LineParser = std::function<Result<TimedRequest>(std::string_view line)>;

/// {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids]}; other fields are
/// ignored. The time may be a fraction, or text as parse_time() has it; hash_ids may be missing.
Result<TimedRequest> parse_mooncake_line(std::string_view line);

/// The parser of the lines below a CSV's header, which names TIMESTAMP, ContextTokens and GeneratedTokens in
/// any order; other columns are ignored. Names and cells may be quoted.
Result<LineParser> csv_parser(std::string_view header);

/// Nanoseconds since 1970 of "2023-11-16 18:17:03.9799600": up to nine decimals, optionally a time zone (Z,
/// +hh:mm, -hh:mm); years 1970 to 2200.
std::optional<std::int64_t> parse_time(std::string_view text);
/// Nanoseconds of a number of milliseconds; nothing if it is negative, or above kMaxTimestampMs.
std::optional<std::int64_t> nanoseconds_of(double milliseconds);

/// `value`, if it is a whole number from 0 to `most`.
std::optional<std::int64_t> whole_number(double value, std::int64_t most);

}  // namespace flashlatent::io
