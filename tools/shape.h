// Shapes of decode calls as models have them: read from a file, with the times that others take, or drawn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/roof.h"
#include "tools/bench_case.h"

namespace flashlatent::tools {

/// bf16, pages of 64, causal.
struct Shape {
  bool latent = false;  ///< A latent cache (576/512, one KV head), or separate keys and values.
  int query_tokens = 1;
  int heads = 0;
  int kv_heads = 1;
  int dim = 0;  ///< Of a key; of a value the same, or 512 of a latent cache.
  std::vector<int> lengths = {};
  bool varied = false;  ///< The lengths are a list.
  /// Milliseconds a call by library, in the file's order. Ours, "flashlatent", was kept with the others'.
  std::vector<std::pair<std::string, double>> times = {};
};

struct Shapes {
  std::vector<Shape> list = {};
  std::string gpu = {};                    ///< Where `times` were measured; empty: not said.
  std::optional<runtime::Roof> roof = {};  ///< Of that device.
};

/// A file of shapes: JSON, {"gpu", "roof": {"read_tbps", "matmul_tflops"}, "shapes": [...]}, or the list
/// alone. Each shape has kind ("latent" or "paged"), b, s_q, h_q, h_kv, d, lengths (one for all, or a list)
/// and optionally ms, an object of numbers. kInvalidArgument names the file, the shape and the field.
Result<Shapes> read_shapes(const std::string& path);

/// `count` shapes by `seed`, the first ones the same whatever the count. draw_shapes.cc says what is drawn.
std::vector<Shape> draw_shapes(std::uint64_t seed, int count);

/// "latent" or "paged".
const char* kind_of(const Shape& shape);
BenchCase case_of(const Shape& shape);

}  // namespace flashlatent::tools
