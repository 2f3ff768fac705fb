#include "tools/read_json.h"

#include <fmt/core.h>

#include <string>

namespace flashlatent::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostFileBytes = std::size_t{256} << 20;
constexpr int kMostNesting = 8;

}  // namespace

Result<Json> read_json(const io::ByteSource& source, std::string_view accepted) {
  if (source.size() > kMostFileBytes)
    return source.error(fmt::format("has {} bytes; at most {} are accepted", source.size(), kMostFileBytes));
  std::string text(source.size(), '\0');
  const Status status = source.read(0, text.data(), text.size());
  if (!status.ok()) return status;
  bool deep = false;
  const auto keep = [&deep](int depth, Json::parse_event_t, const Json&) {
    deep |= depth > kMostNesting;
    return depth <= kMostNesting;
  };
  Json json = Json::parse(text, keep, false);
  if (deep) {
    return source.error(fmt::format("has arrays or objects nested more than {} deep; {} is accepted",
                                    kMostNesting, accepted));
  }
  if (json.is_discarded()) return source.error(fmt::format("is no JSON; {} is accepted", accepted));
  return json;
}

}  // namespace flashlatent::tools
