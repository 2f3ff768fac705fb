#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>

#include "io/text.h"
#include "io/trace_line.h"

namespace flashlatent::io {

namespace {

Status invalid(std::string_view field, std::string_view value, std::string_view expected) {
  return {StatusCode::kInvalidArgument,
          fmt::format("field \"{}\" is {}; {} is expected", field, in_quotes(value), expected)};
}

// Takes fixed-form text apart from the left; after the first mismatch everything fails.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool done() const { return ok_ && text_.empty(); }
  bool at(std::string_view characters) const {
    return ok_ && !text_.empty() && characters.find(text_[0]) != characters.npos;
  }
  char take(std::string_view characters) {
    if (!at(characters)) {
      ok_ = false;
      return '\0';
    }
    const char taken = text_[0];
    text_.remove_prefix(1);
    return taken;
  }
  int number(int digits) {
    int value = 0;
    for (int i = 0; i < digits; ++i) {
      const char digit = take("0123456789");
      if (ok_) value = value * 10 + (digit - '0');
    }
    return value;
  }

 private:
  std::string_view text_;
  bool ok_ = true;
};

// Nanoseconds since 1970 of "2023-11-16 18:17:03.9799600" (see parse_azure_line).
std::optional<std::int64_t> parse_time(std::string_view text) {
  using std::chrono::day;
  using std::chrono::month;
  using std::chrono::year;
  constexpr std::int64_t kSecond = 1'000'000'000;
  Scanner scan(text);
  const int y = scan.number(4);
  scan.take("-");
  const int m = scan.number(2);
  scan.take("-");
  const int d = scan.number(2);
  scan.take(" T");
  const int hours = scan.number(2);
  scan.take(":");
  const int minutes = scan.number(2);
  scan.take(":");
  const int seconds = scan.number(2);
  std::int64_t fraction = 0;
  if (scan.at(".")) {
    scan.take(".");
    std::int64_t weight = kSecond;
    do {
      weight /= 10;
      fraction += scan.number(1) * weight;
    } while (weight > 1 && scan.at("0123456789"));
  }
  int offset = 0;
  if (scan.at("Z")) {
    scan.take("Z");
  } else if (scan.at("+-")) {
    const int sign = scan.take("+-") == '+' ? 1 : -1;
    const int offset_hours = scan.number(2);
    scan.take(":");
    const int offset_minutes = scan.number(2);
    if (offset_hours > 14 || offset_minutes > 59) return std::nullopt;
    offset = sign * (offset_hours * 60 + offset_minutes) * 60;
  }
  const std::chrono::year_month_day date{year(y), month(static_cast<unsigned>(m)),
                                         day(static_cast<unsigned>(d))};
  // Years that 64 bits of nanoseconds reach.
  if (!scan.done() || !date.ok() || y < 1700 || y > 2200) return std::nullopt;
  if (hours > 23 || minutes > 59 || seconds > 60) return std::nullopt;  // 60: a leap second.
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t clock = (hours * 60 + minutes) * 60 + seconds - offset;
  return (days * 86400 + clock) * kSecond + fraction;
}

}  // namespace

Result<TimedRequest> parse_azure_line(std::string_view line) {
  std::array<std::string_view, 3> cells;
  std::size_t count = 0;
  for (std::string_view rest = line;; ++count) {
    const std::size_t comma = rest.find(',');
    if (count < cells.size()) cells[count] = rest.substr(0, comma);
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (++count != cells.size()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("has {} fields; expected the three of {}", count, kAzureHeader));
  }
  TimedRequest timed;
  const auto time = parse_time(cells[0]);
  if (!time) return invalid("TIMESTAMP", cells[0], "a time like 2023-11-16 18:17:03.9799600");
  timed.nanoseconds = *time;
  const auto tokens = [&](const char* name, std::string_view cell, int& out) -> Status {
    const auto value = parse_integer(cell);
    if (!value || *value < 0 || *value > kMaxTraceTokens) {
      return invalid(name, cell, fmt::format("a whole number from 0 to {} (tokens)", kMaxTraceTokens));
    }
    out = static_cast<int>(*value);
    return {};
  };
  if (Status status = tokens("ContextTokens", cells[1], timed.request.input_length); !status.ok())
    return status;
  if (Status status = tokens("GeneratedTokens", cells[2], timed.request.output_length); !status.ok())
    return status;
  return timed;
}

}  // namespace flashlatent::io
