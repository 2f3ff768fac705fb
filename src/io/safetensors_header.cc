#include "io/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/enum_names.h"
#include "io/text.h"

namespace flashlatent::io {

namespace {

using Json = nlohmann::json;

constexpr EnumName<Dtype> kDtypes[] = {{Dtype::kBF16, "BF16"}, {Dtype::kF16, "F16"}, {Dtype::kF32, "F32"},
                                       {Dtype::kI32, "I32"},   {Dtype::kU8, "U8"},   {Dtype::kI64, "I64"}};

/// The format's names, and bits an element. The data's size cannot be checked for a name that is not here.
constexpr std::pair<std::string_view, int> kBits[] = {
    {"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
    {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},    {"U32", 32},    {"F32", 32},
    {"C64", 64}, {"F64", 64}, {"I64", 64}, {"U64", 64},    {"F6_E2M3", 6}, {"F6_E3M2", 6}};

std::optional<int> bits_of(std::string_view dtype) {
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return std::nullopt;
}

// Builds the header from the parser's events, so that whatever does not belong stops the parse at once,
// before it has taken memory, and so that repeated keys are seen. Each handler returns false to stop, with
// error_ set.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTopValue:
        state_ = key_ == "__metadata__" ? State::kMetadata : State::kTensor;
        entry_ = TensorEntry();
        entry_.name = key_;
        fields_.clear();
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(std::string& name) override {
    auto& seen = state_ == State::kTop ? names_ : fields_;
    key_ = name;
    if (!seen.insert(name).second) {
      if (state_ == State::kTop) return fail(fmt::format("header: key {} appears twice", in_quotes(name)));
      return fail(fmt::format("{}: key {} appears twice", owner(), in_quotes(name)));
    }
    switch (state_) {
      case State::kTop:
        owner_ = name;
        state_ = State::kTopValue;
        return true;
      case State::kMetadata:
        state_ = State::kMetadataValue;
        return true;
      default:
        if (name == "dtype") return expect(State::kDtype);
        if (name == "shape") return expect(State::kShape);
        if (name == "data_offsets") return expect(State::kOffsets);
        return fail(fmt::format("{}: unknown field {}; dtype, shape and data_offsets are expected", owner(),
                                in_quotes(name)));
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kMetadata:
        state_ = State::kTop;
        return true;
      case State::kTensor:
        for (const char* field : {"dtype", "shape", "data_offsets"}) {
          if (!fields_.contains(field)) return fail(fmt::format("{}: {} is missing", owner(), field));
        }
        header.tensors.push_back(std::move(entry_));
        state_ = State::kTop;
        return true;
      default:
        return true;  // The top object: the parser allows nothing after it.
    }
  }

  bool string(std::string& text) override {
    if (state_ == State::kMetadataValue) {
      header.metadata[key_] = text;
      state_ = State::kMetadata;
      return true;
    }
    if (state_ != State::kDtype) return unexpected(in_quotes(text));
    entry_.dtype_name = text;
    for (const auto& [dtype, name] : kDtypes) {
      if (text == name) entry_.dtype = dtype;
    }
    if (text == "F8_E4M3") entry_.dtype = Dtype::kU8;  // its bytes
    state_ = State::kTensor;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::kShape) return expect(State::kShapeNumber);
    if (state_ == State::kOffsets) {
      offsets_ = 0;
      return expect(State::kOffsetsNumber);
    }
    return unexpected("an array");
  }

  bool number_unsigned(std::uint64_t value) override {
    if (state_ == State::kShapeNumber) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail(
            fmt::format("{}: shape[{}] is {}, which is too large", owner(), entry_.shape.size(), value));
      }
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsetsNumber) {
      if (offsets_ == 2) return fail(fmt::format("{}: data_offsets has more than two numbers", owner()));
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return unexpected(std::to_string(value));
  }

  bool end_array() override {
    if (state_ == State::kOffsetsNumber && offsets_ != 2) {
      return fail(fmt::format("{}: data_offsets has {} numbers; expected [begin, end]", owner(), offsets_));
    }
    return expect(State::kTensor);
  }

  bool number_integer(std::int64_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return unexpected(printable(text, 40)); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool null() override {
    if (state_ == State::kTopValue && key_ == "__metadata__") return expect(State::kTop);  // none
    return unexpected("null");
  }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return fail(fmt::format("header: not JSON at byte {} of the header", position));
  }

 private:
  enum class State {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kTensor,
    kDtype,
    kShape,
    kShapeNumber,
    kOffsets,
    kOffsetsNumber,
  };

  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }

  bool expect(State state) {
    state_ = state;
    return true;
  }

  std::string owner() const {
    return owner_ == "__metadata__" ? "__metadata__" : fmt::format("tensor {}", in_quotes(owner_));
  }

  bool unexpected(const std::string& what) {
    switch (state_) {
      case State::kMetadataValue:
        return fail(fmt::format("__metadata__: {} is {}; a string is expected", in_quotes(key_), what));
      case State::kDtype:
        return fail(fmt::format("{}: dtype is {}; a string is expected", owner(), what));
      case State::kShape:
      case State::kOffsets:
        return fail(fmt::format("{}: {} is {}; an array is expected", owner(), key_, what));
      case State::kShapeNumber:
      case State::kOffsetsNumber:
        return fail(fmt::format("{}: {} holds {}; whole numbers from 0 are expected", owner(), key_, what));
      case State::kTopValue:
        return fail(fmt::format("{} is {}; an object is expected", owner(), what));
      default:
        return fail(fmt::format("header: is {}; an object is expected", what));
    }
  }

  State state_ = State::kStart;
  std::string key_;               // The last key read.
  std::string owner_;             // The last key of the top object.
  std::set<std::string> names_;   // Keys of the top object so far,
  std::set<std::string> fields_;  // and of the object inside it.
  TensorEntry entry_;
  int offsets_ = 0;
};

// Bytes of a tensor by its shape, or nothing where its extents (empty ones counted as 1, so that strides fit
// too) overflow.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, int element_bits) {
  std::int64_t bits = element_bits;
  bool empty = false;
  for (std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bits, std::max<std::int64_t>(extent, 1), &bits)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::uint64_t>(bits) / 8 + (bits % 8 != 0);
}

// Why an entry's offsets cannot be, empty if they can. `at` is where the data of the one before ended.
std::string check_entry(const TensorEntry& entry, std::uint64_t at, std::uint64_t data_bytes) {
  const auto offsets = fmt::format("data_offsets [{}, {}]", entry.begin, entry.end);
  if (entry.begin > entry.end) return fmt::format("{} run backwards", offsets);
  if (entry.end > data_bytes)
    return fmt::format("{} exceed the file's {} bytes of data", offsets, data_bytes);
  if (const auto bits = bits_of(entry.dtype_name)) {
    const auto bytes = bytes_of(entry.shape, *bits);
    const auto shape = printable(fmt::format("shape [{}]", fmt::join(entry.shape, ", ")), 120);
    if (!bytes) return fmt::format("{} of {} is too large", shape, entry.dtype_name);
    if (*bytes != entry.end - entry.begin) {
      return fmt::format("{} span {} bytes, but {} of {} takes {}", offsets, entry.end - entry.begin, shape,
                         entry.dtype_name, *bytes);
    }
  }
  if (entry.begin < at) return fmt::format("{} overlap the tensor before, which ends at {}", offsets, at);
  if (entry.begin > at) return fmt::format("{} leave a gap after byte {}", offsets, at);
  return {};
}

}  // namespace

bool has_view(const TensorEntry& entry) {
  return entry.dtype && !entry.shape.empty() && entry.shape.size() <= static_cast<std::size_t>(kMaxRank);
}

const char* safetensors_name(Dtype dtype) {
  return name_of(kDtypes, dtype);
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes) {
  auto refuse = [](std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); };
  if (const auto bad = find_invalid_utf8(text)) {
    return refuse(fmt::format("header: not UTF-8 at byte {} of the header", *bad));
  }
  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return refuse(std::move(reader.error));

  auto& tensors = reader.header.tensors;
  std::ranges::sort(tensors, {}, [](const TensorEntry& entry) { return std::pair(entry.begin, entry.end); });
  std::uint64_t at = 0;
  for (const TensorEntry& entry : tensors) {
    if (auto why = check_entry(entry, at, data_bytes); !why.empty()) {
      return refuse(fmt::format("tensor {}: {}", in_quotes(entry.name), why));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    return refuse(
        fmt::format("header: data_offsets end at {}, but the file has {} bytes of data", at, data_bytes));
  }
  return std::move(reader.header);
}

}  // namespace flashlatent::io
