#include "io/text.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace flashlatent::io {

namespace {

// Bytes of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none. The table of RFC 3629,
// section 4: overlong forms, surrogates and values beyond U+10FFFF are excluded by the second byte's range.
std::size_t sequence_length(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  auto continues = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    return continues(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool second = continues(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF);
    return second && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

template <class Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

std::string printable(std::string_view text, std::size_t limit) {
  std::string line;
  while (!text.empty()) {
    if (line.size() >= limit) return line + "...";
    const std::size_t length = sequence_length(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    // U+0080 to U+009F are control characters too (C1), and U+2028 and U+2029 break lines.
    const bool control = (length == 1 && (lead < 0x20 || lead == 0x7F)) ||
                         (length == 2 && lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) ||
                         text.starts_with("\u2028") || text.starts_with("\u2029");
    if (length == 0 || control) {
      line += fmt::format("\\x{:02x}", lead);
      text.remove_prefix(1);
    } else {
      line += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return line;
}

std::string in_quotes(std::string_view text) {
  return '"' + printable(text, 80) + '"';
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text.substr(i, 4));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  return parse_whole<std::int64_t>(text);
}

std::optional<double> parse_real(std::string_view text) {
  return parse_whole<double>(text);
}

}  // namespace flashlatent::io
