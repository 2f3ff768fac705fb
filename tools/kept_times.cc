#include "tools/kept_times.h"

#include <fmt/core.h>

#include <cmath>

#include "tools/read_json.h"

namespace flashlatent::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAccepted = "what `flashlatent tune --json` writes";

bool is_time(const Json& result) {
  if (!result.is_object() || !result.contains("name") || !result.contains("ms")) return false;
  return result["name"].is_string() && result["ms"].is_number() && result["ms"].get<double>() > 0 &&
         std::isfinite(result["ms"].get<double>());
}

}  // namespace

Result<KeptTimes> read_times(const std::string& path) {
  Result<std::unique_ptr<io::ByteSource>> source = io::open_file(path);
  if (!source.ok()) return source.status();
  const Result<Json> read = read_json(**source, kAccepted);
  if (!read.ok()) return read.status();
  const Json& json = *read;
  const auto refuse = [&](const std::string& why) {
    return (*source)->error(fmt::format("{}; {} is accepted", why, kAccepted));
  };
  if (!json.is_object() || !json.contains("gpu") || !json["gpu"].is_string()) return refuse("names no gpu");
  if (!json.contains("results") || !json["results"].is_array()) return refuse("has no results");
  KeptTimes kept{.gpu = json["gpu"], .ms = {}};
  std::size_t number = 0;
  for (const Json& result : json["results"]) {
    if (!is_time(result)) return refuse(fmt::format("result {} has no name and positive ms", number));
    kept.ms[result["name"]] = result["ms"];
    ++number;
  }
  return kept;
}

}  // namespace flashlatent::tools
