#include "tools/shape_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace flashlatent::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kWorst = 10;

/// The ratios (those that exist) grouped by `key` of each result.
template <class Key>
auto by(const std::vector<ShapeResult>& results, double ShapeResult::*ratio, const Key& key) {
  std::map<decltype(key(results[0])), std::vector<double>> groups;
  for (const ShapeResult& r : results) {
    if (r.*ratio > 0) groups[key(r)].push_back(r.*ratio);
  }
  return groups;
}

/// Keys are (kind, s_q). s_q 0 means all of a kind; ("all", 0) all shapes.
std::map<std::pair<std::string, int>, std::vector<double>> by_kind(const std::vector<ShapeResult>& results,
                                                                   double ShapeResult::*ratio) {
  std::map<std::pair<std::string, int>, std::vector<double>> groups;
  for (const ShapeResult& r : results) {
    if (r.*ratio <= 0) continue;
    groups[{"all", 0}].push_back(r.*ratio);
    groups[{r.kind, 0}].push_back(r.*ratio);
    groups[{r.kind, r.query_tokens}].push_back(r.*ratio);
  }
  return groups;
}

std::map<std::string, std::vector<double>> by_kernel(const std::vector<ShapeResult>& results,
                                                     double ShapeResult::*ratio) {
  return by(results, ratio, [](const ShapeResult& r) { return r.kernel; });
}

std::string head(const char* what) {
  return fmt::format("\n{:<24} {:>6} {:>8} {:>8} {:>8} {:>8} {:>12}\n", what, "shapes", "mean", "median",
                     "least", "most", "above 1.03");
}

std::string line(const std::string& what, const std::vector<double>& ratios) {
  const Spread s = spread_of(ratios);
  return fmt::format("{:<24} {:>6} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>5} {:>4.0f} %\n", what, s.shapes,
                     s.mean, s.median, s.least, s.most, s.behind, 100.0 * s.behind / s.shapes);
}

/// A table by kind and s_q; empty if no shape has such a ratio.
std::string kinds(const char* title, const std::vector<ShapeResult>& results, double ShapeResult::*ratio) {
  const auto groups = by_kind(results, ratio);
  if (groups.empty()) return "";
  std::string text = head(title);
  for (const auto& [key, ratios] : groups) {
    text += line(key.second == 0 ? key.first : fmt::format("  {} s_q {}", key.first, key.second), ratios);
  }
  return text;
}

std::string kernels(const char* title, const std::vector<ShapeResult>& results, double ShapeResult::*ratio) {
  const auto groups = by_kernel(results, ratio);
  if (groups.empty()) return "";
  std::string text = head(title);
  for (const auto& [kernel, ratios] : groups) text += line(kernel, ratios);
  return text;
}

/// The shapes that are furthest behind, worst first.
std::vector<const ShapeResult*> worst(const std::vector<ShapeResult>& results) {
  std::vector<const ShapeResult*> list;
  for (const ShapeResult& r : results) {
    if (r.ratio > 0) list.push_back(&r);
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const ShapeResult* a, const ShapeResult* b) { return a->ratio > b->ratio; });
  list.resize(std::min(list.size(), kWorst));
  return list;
}

Json to_json(const Spread& s) {
  return {{"shapes", s.shapes}, {"geometric_mean", s.mean}, {"median", s.median},
          {"least", s.least},   {"most", s.most},           {"above_1_03", s.behind}};
}

}  // namespace

Spread spread_of(std::vector<double> ratios) {
  Spread s;
  if (ratios.empty()) return s;
  std::sort(ratios.begin(), ratios.end());
  s.shapes = static_cast<int>(ratios.size());
  double sum = 0;
  for (double ratio : ratios) {
    sum += std::log(ratio);
    s.behind += ratio > kBehind ? 1 : 0;
  }
  s.mean = std::exp(sum / s.shapes);
  s.median = ratios[ratios.size() / 2];
  s.least = ratios.front();
  s.most = ratios.back();
  return s;
}

std::string to_text(const std::vector<ShapeResult>& results) {
  std::string text = kinds("time over the file's best", results, &ShapeResult::ratio);
  text += kinds("time over ours in it", results, &ShapeResult::kept);
  text += kernels("time over estimate", results, &ShapeResult::estimate);
  text += kernels("time over reading", results, &ShapeResult::reading);
  const auto list = worst(results);
  if (!list.empty()) text += "\nfurthest behind\n";
  for (const ShapeResult* r : list) {
    text += fmt::format("{:<50} {:<12} {:>9.4f} ms, {:.3f} of {}\n", r->name, r->kernel, r->ms, r->ratio,
                        r->rival);
  }
  return text;
}

Json to_json(const std::vector<ShapeResult>& results) {
  Json json = Json::object();
  for (const auto& [name, ratio] : {std::pair{"ratio", &ShapeResult::ratio}, {"kept", &ShapeResult::kept}}) {
    for (const auto& [key, ratios] : by_kind(results, ratio)) {
      const std::string group = key.second == 0 ? key.first : fmt::format("{} s_q {}", key.first, key.second);
      json[name][group] = to_json(spread_of(ratios));
    }
  }
  for (const auto& [name, ratio] :
       {std::pair{"over_estimate", &ShapeResult::estimate}, {"over_reading", &ShapeResult::reading}}) {
    for (const auto& [kernel, ratios] : by_kernel(results, ratio)) {
      json[name][kernel] = to_json(spread_of(ratios));
    }
  }
  for (const ShapeResult* r : worst(results)) json["worst"].push_back(r->name);
  return json;
}

}  // namespace flashlatent::tools
