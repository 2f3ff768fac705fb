#include "tools/kept_times.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/file.h"

namespace flashlatent::tools {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostFileBytes = 1 << 28;

bool is_time(const Json& result) {
  if (!result.is_object() || !result.contains("name") || !result.contains("ms")) return false;
  return result["name"].is_string() && result["ms"].is_number() && result["ms"].get<double>() > 0 &&
         std::isfinite(result["ms"].get<double>());
}

}  // namespace

Result<KeptTimes> read_times(const std::string& path) {
  Result<std::unique_ptr<io::ByteSource>> source = io::open_file(path);
  if (!source.ok()) return source.status();
  const auto refuse = [&](const std::string& why) {
    return (*source)->error(why + "; what `flashlatent tune --json` writes is accepted");
  };
  if ((*source)->size() > kMostFileBytes) return refuse(fmt::format("has {} bytes", (*source)->size()));
  std::string text((*source)->size(), '\0');
  if (const Status status = (*source)->read(0, text.data(), text.size()); !status.ok()) return status;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return refuse("is no JSON");
  if (!json.is_object() || !json.contains("gpu") || !json["gpu"].is_string()) return refuse("names no gpu");
  if (!json.contains("results") || !json["results"].is_array()) return refuse("has no results");
  KeptTimes kept{.gpu = json["gpu"], .ms = {}};
  for (const Json& result : json["results"]) {
    if (!is_time(result)) {
      return refuse(fmt::format("result {} has no name and positive ms", kept.ms.size()));
    }
    kept.ms[result["name"]] = result["ms"];
  }
  return kept;
}

}  // namespace flashlatent::tools
