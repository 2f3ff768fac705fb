// Shapes of decode calls as models have them: drawn, or read from a file with the times of other libraries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/roof.h"
#include "tools/bench_case.h"

namespace flashlatent::tools {

/// One call in bf16, with pages of 64, causal.
struct Shape {
  bool latent = false;  ///< A latent cache (576/512, one KV head); else separate keys and values.
  int query_tokens = 1;
  int heads = 0;
  int kv_heads = 1;
  int dim = 0;  ///< Columns of a key, and of a value, unless the cache is latent, where a value has 512.
  std::vector<int> lengths = {};
  bool varied = false;  ///< The lengths are a list.
  /// Milliseconds of a call for each library, in the file's order. "flashlatent" is an earlier time of this
  /// one.
  std::vector<std::pair<std::string, double>> times = {};
};

struct Shapes {
  std::vector<Shape> list = {};
  std::string gpu = {};                    ///< The device of `times`; empty: not known.
  std::optional<runtime::Roof> roof = {};  ///< The roof of that device.
};

/// Reads a JSON file of shapes: {"gpu", "roof": {"read_tbps", "matmul_tflops"}, "shapes": [...]}, or the list
/// alone. A shape has kind ("latent" or "paged"), b, s_q, h_q, h_kv, d, lengths (one number for all, or a
/// list) and optionally ms, an object of numbers. kInvalidArgument names the file, the shape and the field.
Result<Shapes> read_shapes(const std::string& path);

/// Draws `count` shapes from `seed`; a smaller count gives the first ones. draw_shapes.cc says what is drawn.
std::vector<Shape> draw_shapes(std::uint64_t seed, int count);

/// "latent" or "paged".
const char* kind_of(const Shape& shape);
BenchCase case_of(const Shape& shape);

}  // namespace flashlatent::tools
