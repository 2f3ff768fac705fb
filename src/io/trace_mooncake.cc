#include <fmt/format.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/text.h"
#include "io/trace_line.h"

namespace flashlatent::io {

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxHashId = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMaxHashIds = kMaxTraceTokens / kTraceBlockTokens + 1;

// The fields of a request, and the whole numbers that each may hold.
struct Field {
  const char* name;
  std::int64_t most;
  const char* unit;
};
enum FieldIndex { kTimestamp, kInput, kOutput, kHashIds, kFields };
constexpr std::array<Field, kFields> kRequestFields = {{{"timestamp", kMaxTimestampMs, "ms"},
                                                        {"input_length", kMaxTraceTokens, "tokens"},
                                                        {"output_length", kMaxTraceTokens, "tokens"},
                                                        {"hash_ids", kMaxHashId, "each"}}};

// Collects a request from the parser's events; fields of other names are skipped with all that is in them.
// Handlers return false to stop, with error set.
class RequestReader : public nlohmann::json_sax<Json> {
 public:
  std::string error;

  Result<TimedRequest> finish() const {
    for (int i = 0; i < kFields; ++i) {
      if (!seen_[i] && i != kHashIds)
        return invalid(fmt::format("field \"{}\" is missing", kRequestFields[i].name));
    }
    TimedRequest timed;
    timed.nanoseconds = nanoseconds_;
    timed.request.input_length = static_cast<int>(numbers_[kInput]);
    timed.request.output_length = static_cast<int>(numbers_[kOutput]);
    timed.request.hash_ids = hash_ids_;
    const std::int64_t blocks = (numbers_[kInput] + kTraceBlockTokens - 1) / kTraceBlockTokens;
    if (static_cast<std::int64_t>(hash_ids_.size()) > blocks) {
      return invalid(
          fmt::format("field \"hash_ids\" has {} ids; an input_length of {} has at most {} blocks of {}",
                      hash_ids_.size(), numbers_[kInput], blocks, kTraceBlockTokens));
    }
    return timed;
  }

  static Status invalid(std::string why) { return {StatusCode::kInvalidArgument, std::move(why)}; }

  bool key(std::string& name) override {
    if (depth_ != 1) return true;
    field_ = 0;
    while (field_ < kFields && name != kRequestFields[field_].name) ++field_;
    if (field_ == kFields) return true;
    if (seen_[field_]) return fail(fmt::format("field \"{}\" appears twice", name));
    return seen_[field_] = true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (skipping()) return true;
    if (depth_ == 0 || (field_ == kHashIds && depth_ == 1)) return wrong(std::to_string(value));
    const Field& field = kRequestFields[field_];
    if (value > static_cast<std::uint64_t>(field.most)) return wrong(std::to_string(value));
    if (field_ == kTimestamp) return time(static_cast<double>(value), std::to_string(value));
    if (field_ == kHashIds) {
      if (hash_ids_.size() == kMaxHashIds)
        return fail("field \"hash_ids\" has more ids than any request has blocks");
      hash_ids_.push_back(static_cast<std::int64_t>(value));
    } else {
      numbers_[field_] = static_cast<std::int64_t>(value);
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ > 0 && !skipping()) return wrong("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    const bool ids = field_ == kHashIds && depth_ == 1;
    if (!ids && !skipping()) return wrong("an array");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool number_integer(std::int64_t value) override { return skipping() || wrong(std::to_string(value)); }
  /// Lengths may be written as 513.0.
  bool number_float(double value, const std::string& text) override {
    if (skipping()) return true;
    if (depth_ != 1 || field_ == kHashIds) return wrong(text);
    if (field_ == kTimestamp) return time(value, text);
    const auto whole = whole_number(value, kRequestFields[field_].most);
    if (!whole) return wrong(text);
    numbers_[field_] = *whole;
    return true;
  }
  bool string(std::string& text) override {
    if (skipping()) return true;
    if (depth_ != 1 || field_ != kTimestamp) return wrong(in_quotes(text));
    if (const auto at = parse_time(text)) {
      nanoseconds_ = *at;
      return true;
    }
    const auto number = parse_real(text);
    return number ? time(*number, in_quotes(text)) : wrong(in_quotes(text));
  }
  bool boolean(bool value) override { return skipping() || wrong(value ? "true" : "false"); }
  /// Neither output nor prefix blocks.
  bool null() override {
    return skipping() || (depth_ == 1 && (field_ == kOutput || field_ == kHashIds)) || wrong("null");
  }
  bool binary(Json::binary_t&) override { return skipping() || wrong("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return fail(fmt::format("is not JSON at byte {}", position));
  }

 private:
  // Inside a field that is none of ours.
  bool skipping() const { return depth_ > 0 && field_ == kFields; }

  bool wrong(const std::string& what) {
    if (depth_ == 0) return fail(fmt::format("is {}; an object is expected", what));
    const Field& field = kRequestFields[field_];
    if (field_ == kHashIds && depth_ == 1) {
      return fail(fmt::format("field \"hash_ids\" is {}; an array is expected", printable(what, 80)));
    }
    if (field_ == kTimestamp) {
      return fail(
          fmt::format("field \"timestamp\" is {}; a number from 0 to {} (ms), or a time like "
                      "2023-11-16 18:17:03.97, is expected",
                      printable(what, 80), kMaxTimestampMs));
    }
    const char* verb = field_ == kHashIds ? "holds" : "is";
    return fail(fmt::format("field \"{}\" {} {}; a whole number from 0 to {} ({}) is expected", field.name,
                            verb, printable(what, 80), field.most, field.unit));
  }

  bool time(double milliseconds, const std::string& text) {
    const auto nanoseconds = nanoseconds_of(milliseconds);
    if (!nanoseconds) return wrong(text);
    nanoseconds_ = *nanoseconds;
    return true;
  }

  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }

  int depth_ = 0;
  int field_ = kFields;
  std::array<bool, kFields> seen_{};
  std::array<std::int64_t, kFields> numbers_{};
  std::int64_t nanoseconds_ = 0;
  std::vector<std::int64_t> hash_ids_;
};

}  // namespace

Result<TimedRequest> parse_mooncake_line(std::string_view line) {
  RequestReader reader;
  if (!Json::sax_parse(line.begin(), line.end(), &reader))
    return RequestReader::invalid(std::move(reader.error));
  return reader.finish();
}

}  // namespace flashlatent::io
