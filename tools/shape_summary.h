// Summarises `bench shapes`: ratios of our times to those in the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashlatent::tools {

/// One shape's ratios; 0: there is none.
struct ShapeResult {
  std::string name;
  std::string kind;
  std::string kernel;
  int query_tokens = 1;
  double ms = 0;
  std::string rival = {};  ///< The library with the best time of the others.
  double ratio = 0;        ///< Our time over the rival's.
  double kept = 0;         ///< Our time over our earlier time in the file.
  double estimate = 0;     ///< Our time over the estimate; equal lengths only.
  double reading = 0;      ///< Our time over reading alone.
};

/// A shape with a larger ratio counts as behind.
inline constexpr double kBehind = 1.03;

/// The distribution of ratios.
struct Spread {
  int shapes = 0, behind = 0;
  double mean = 0, median = 0, least = 0, most = 0;  ///< The mean is geometric.
};
Spread spread_of(std::vector<double> ratios);

/// Tables for people: by kind and s_q, the worst ten, estimates and reading by kernel.
std::string to_text(const std::vector<ShapeResult>& results);
nlohmann::ordered_json to_json(const std::vector<ShapeResult>& results);

}  // namespace flashlatent::tools
