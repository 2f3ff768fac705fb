#include <chrono>
#include <cmath>
#include <optional>

#include "io/trace_line.h"

namespace flashlatent::io {

namespace {

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

}  // namespace

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
  if (!scan.done() || !date.ok() || y < 1970 || y > 2200) return std::nullopt;
  if (hours > 23 || minutes > 59 || seconds > 60) return std::nullopt;  // 60: a leap second.
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t clock = (hours * 60 + minutes) * 60 + seconds - offset;
  return (days * 86400 + clock) * kSecond + fraction;
}

std::optional<std::int64_t> nanoseconds_of(double milliseconds) {
  // Written so that NaN fails too.
  if (!(milliseconds >= 0 && milliseconds <= static_cast<double>(kMaxTimestampMs))) return std::nullopt;
  return std::llround(milliseconds * 1e6);
}

std::optional<std::int64_t> whole_number(double value, std::int64_t most) {
  if (!(value >= 0 && value <= static_cast<double>(most)) || value != std::floor(value)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

}  // namespace flashlatent::io
