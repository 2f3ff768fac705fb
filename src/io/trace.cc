#include "io/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/message.h"
#include "io/file.h"
#include "io/text.h"
#include "io/trace_line.h"

namespace flashlatent::io {

namespace {

constexpr std::size_t kMaxLineBytes = 16 << 20;
constexpr const char* kTracePage = "docs/cli.md#request-traces";

// Lines of a source, one at a time, without their ends (LF or CRLF).
class LineReader {
 public:
  explicit LineReader(const ByteSource& source) : source_(source) {}

  /// The next line into `line` and true into `more`, or false at the end.
  Status next(std::string& line, bool& more) {
    line.clear();
    more = false;
    ++number_;
    while (true) {
      if (chunk_.empty()) {
        FLASHLATENT_RETURN_IF_ERROR(fill());
        if (chunk_.empty()) break;
      }
      more = true;
      const std::size_t end = chunk_.find('\n');
      line += chunk_.substr(0, end);
      if (line.size() > kMaxLineBytes) {
        return source_.error(fmt::format("line {}: is longer than {} bytes; is this a request trace?",
                                         number_, kMaxLineBytes));
      }
      chunk_.remove_prefix(end == chunk_.npos ? chunk_.size() : end + 1);
      if (end != chunk_.npos) break;
    }
    if (line.ends_with('\r')) line.pop_back();
    return {};
  }

  std::int64_t number() const { return number_; }

 private:
  Status fill() {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(source_.size() - at_, 1 << 16));
    buffer_.resize(count);
    FLASHLATENT_RETURN_IF_ERROR(source_.read(at_, buffer_.data(), count));
    at_ += count;
    chunk_ = buffer_;
    return {};
  }

  const ByteSource& source_;
  std::uint64_t at_ = 0;
  std::string buffer_;
  std::string_view chunk_;  // What is left of the buffer.
  std::int64_t number_ = 0;
};

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t") == line.npos;
}

bool is_json(std::string_view line) {
  return line.substr(line.find_first_not_of(" \t")).starts_with('{');
}

bool is_json_array(std::string_view line) {
  return line.substr(line.find_first_not_of(" \t")).starts_with('[');
}

// The parser for a trace, by its first line, which may be the header of a CSV or already a request.
Result<LineParser> choose_parser(std::string_view line) {
  if (is_json(line)) return LineParser(parse_mooncake_line);
  if (is_json_array(line)) {
    return invalid_argument(
        "begins a JSON array; an object a line (JSONL) is expected, which jq -c '.[]' FILE makes of an "
        "array");
  }
  return csv_parser(line);
}

/// The time that is subtracted from all times. CSV: the first request's. Mooncake: 0, unless times are dates
/// or since 1970.
std::int64_t start_of(std::int64_t first, bool is_csv) {
  constexpr std::int64_t kDate = 1'000'000'000'000LL * 1'000'000;  // 2001
  return is_csv || first < 0 || first >= kDate ? first : 0;
}

Result<std::vector<TraceRequest>> read_trace(const ByteSource& source, std::size_t max_requests) {
  if (source.size() == 0) return source.error("is empty; a request trace is expected");
  LineReader lines(source);
  LineParser parser = nullptr;
  bool is_csv = false;
  std::vector<TimedRequest> requests;
  std::string line;
  for (bool more = true; requests.size() < max_requests;) {
    FLASHLATENT_RETURN_IF_ERROR(lines.next(line, more));
    if (!more) break;
    auto refuse = [&](std::string_view why) {
      return source.error(fmt::format("line {}: {}; see {}", lines.number(), why, kTracePage));
    };
    std::string_view text = line;
    if (lines.number() == 1 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // Byte order mark.
    if (blank(text)) continue;
    if (const auto bad = find_invalid_utf8(text)) return refuse(fmt::format("is not UTF-8 at byte {}", *bad));
    if (parser == nullptr) {
      const auto chosen = choose_parser(text);
      if (!chosen.ok()) return refuse(chosen.status().message());
      parser = *chosen;
      is_csv = !is_json(text);
      if (is_csv) continue;
    }
    auto request = parser(text);
    if (!request.ok()) return refuse(request.status().message());
    requests.push_back(std::move(*request));
  }
  if (requests.empty() && max_requests > 0) return source.error("has no requests");

  std::ranges::stable_sort(requests, {}, &TimedRequest::nanoseconds);
  const std::int64_t start = requests.empty() ? 0 : start_of(requests[0].nanoseconds, is_csv);
  std::vector<TraceRequest> result;
  result.reserve(requests.size());
  for (TimedRequest& timed : requests) {
    timed.request.timestamp_ms = (timed.nanoseconds - start) / 1'000'000;
    result.push_back(std::move(timed.request));
  }
  return result;
}

}  // namespace

Result<std::vector<TraceRequest>> load_trace(const std::string& path, std::size_t max_requests) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto source, open_file(path));
  return read_trace(*source, max_requests);
}

Result<std::vector<TraceRequest>> parse_trace(std::string_view bytes, std::string_view name,
                                              std::size_t max_requests) {
  return read_trace(*memory_source(bytes, name), max_requests);
}

Status write_mooncake_trace(const std::string& path, const std::vector<TraceRequest>& requests) {
  std::string text;
  for (const TraceRequest& request : requests) {
    text += fmt::format(R"({{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [{}]}})",
                        request.timestamp_ms, request.input_length, request.output_length,
                        fmt::join(request.hash_ids, ", "));
    text += '\n';
  }
  const std::string_view pieces[] = {text};
  return write_file(path, pieces);
}

}  // namespace flashlatent::io
