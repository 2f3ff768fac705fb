// Azure's traces, and other CSV files that have their columns.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

#include "core/return_if_error.h"
#include "io/text.h"
#include "io/trace_line.h"

namespace flashlatent::io {

namespace {

enum Column { kTime, kInput, kOutput, kColumns };
constexpr std::array<std::string_view, kColumns> kNames = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
/// Seconds since 1970 are below this until the year 5138, milliseconds are above since 1973.
constexpr double kLeastMilliseconds = 1e11;

Status refuse(std::string why) {
  return {StatusCode::kInvalidArgument, std::move(why)};
}

Status invalid(Column column, std::string_view value, std::string_view expected) {
  return refuse(
      fmt::format("field \"{}\" is {}; {} is expected", kNames[column], in_quotes(value), expected));
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// RFC 4180 on one line: a cell may stand in quotes, in which a comma is text and two quotes are one.
Result<std::vector<std::string>> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  while (true) {
    std::string cell;
    std::string_view rest = trimmed(line);
    if (rest.starts_with('"')) {
      rest.remove_prefix(1);
      while (true) {
        const std::size_t quote = rest.find('"');
        if (quote == rest.npos) return refuse("has a quote that does not end");
        cell += rest.substr(0, quote);
        rest.remove_prefix(quote + 1);
        if (!rest.starts_with('"')) break;
        cell += '"';
        rest.remove_prefix(1);
      }
      rest = trimmed(rest);
      if (!rest.empty() && !rest.starts_with(',')) {
        return refuse(fmt::format("has {} behind a quoted field", in_quotes(rest)));
      }
    } else {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      cell = trimmed(rest.substr(0, comma));
      rest.remove_prefix(comma);
    }
    cells.push_back(std::move(cell));
    if (rest.empty()) return cells;
    line = rest.substr(1);
  }
}

bool equal_names(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// Where a header has the columns.
struct Header {
  std::array<std::size_t, kColumns> place = {};
  std::size_t cells = 0;
};

Result<std::int64_t> time_of(std::string_view cell) {
  if (const auto time = parse_time(cell)) return *time;
  if (const auto number = parse_real(cell)) {
    const double milliseconds = *number < kLeastMilliseconds ? *number * 1e3 : *number;
    if (const auto time = nanoseconds_of(milliseconds)) return *time;
  }
  return invalid(kTime, cell, "a time like 2023-11-16 18:17:03.9799600, or seconds or milliseconds from 0");
}

Status read_tokens(Column column, std::string_view cell, int& out) {
  const auto number = parse_real(cell);
  const auto tokens = number ? whole_number(*number, kMaxTraceTokens) : std::nullopt;
  if (!tokens) {
    return invalid(column, cell, fmt::format("a whole number from 0 to {} (tokens)", kMaxTraceTokens));
  }
  out = static_cast<int>(*tokens);
  return {};
}

Result<TimedRequest> parse_line(const Header& header, std::string_view line) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto cells, cells_of(line));
  if (cells.size() != header.cells) {
    return refuse(fmt::format("has {} field{}; the header has {}", cells.size(), cells.size() == 1 ? "" : "s",
                              header.cells));
  }
  const auto cell = [&](Column column) -> std::string_view { return cells[header.place[column]]; };
  TimedRequest timed;
  FLASHLATENT_ASSIGN_OR_RETURN(timed.nanoseconds, time_of(cell(kTime)));
  if (Status s = read_tokens(kInput, cell(kInput), timed.request.input_length); !s.ok()) return s;
  if (cell(kOutput).empty()) return timed;  // such a request asks for nothing
  if (Status s = read_tokens(kOutput, cell(kOutput), timed.request.output_length); !s.ok()) return s;
  return timed;
}

}  // namespace

Result<LineParser> csv_parser(std::string_view line) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto cells, cells_of(line));
  Header header;
  header.cells = cells.size();
  std::string missing;
  for (int column = 0; column < kColumns; ++column) {
    const auto is_it = [&](const std::string& cell) { return equal_names(cell, kNames[column]); };
    const auto found = std::ranges::find_if(cells, is_it);
    header.place[column] = static_cast<std::size_t>(found - cells.begin());
    if (found == cells.end()) {
      missing += missing.empty() ? "" : ", ";
      missing += kNames[column];
    } else if (std::find_if(found + 1, cells.end(), is_it) != cells.end()) {
      return refuse(fmt::format("column {} appears twice", kNames[column]));
    }
  }
  if (missing.empty()) {
    return LineParser([header](std::string_view text) { return parse_line(header, text); });
  }
  return refuse(
      fmt::format("starts with {}; expected a JSON object (Mooncake JSONL), or a CSV header, which "
                  "lacks {}",
                  in_quotes(line), missing));
}

}  // namespace flashlatent::io
