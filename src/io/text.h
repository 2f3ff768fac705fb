// Text from files: made printable for messages, checked, turned into numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashlatent::io {

/// `text` on one line: control characters and invalid UTF-8 as \xNN, cut after `limit` bytes.
std::string printable(std::string_view text, std::size_t limit = 4096);
/// The same in double quotes, cut early: for names and values quoted in a message.
std::string in_quotes(std::string_view text);

/// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629), or nothing.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// The whole of `text` as a decimal number; nothing if any character is left over or it does not fit.
std::optional<std::int64_t> parse_integer(std::string_view text);
/// Likewise; "inf" and "nan" parse, hexadecimal and a leading '+' do not.
std::optional<double> parse_real(std::string_view text);

}  // namespace flashlatent::io
