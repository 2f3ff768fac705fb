// The arguments of a rotation, and of what is done to new tokens before they are stored.
#pragma once

#include <optional>
#include <string_view>

#include "flashlatent/edges.h"
#include "python/src/array.h"
#include "python/src/errors.h"

namespace flashlatent::python {

/// The index of `name` among the two choices of an argument.
inline int choice(const char* argument, std::string_view name, std::string_view first,
                  std::string_view second) {
  if (name == first) return 0;
  if (name == second) return 1;
  refuse(argument, " is '", name, "'; '", first, "' and '", second, "' are accepted");
}
inline RotaryColumns rotary_columns_from_name(std::string_view name) {
  return static_cast<RotaryColumns>(choice("rotary_columns", name, "last", "first"));
}

struct RotationArguments {
  nb::handle positions, table;
  std::string_view pairs, layout;
};
/// What messages call them.
struct RotationNames {
  const char *positions = "positions", *table = "table", *pairs = "pairs", *layout = "table_layout";
};
struct RotationArrays {
  Array positions, table;
  Rotation rotation;

  explicit RotationArrays(const RotationArguments& said, const RotationNames& names = {})
      : positions(Array::read(names.positions, said.positions)), table(Array::read(names.table, said.table)) {
    rotation.positions = positions.view();
    rotation.table = table.view();
    rotation.pairs = static_cast<RotaryPairs>(choice(names.pairs, said.pairs, "gptj", "neox"));
    rotation.layout = static_cast<RotaryTable>(choice(names.layout, said.layout, "halves", "interleaved"));
  }
};

struct NormArguments {
  float epsilon;
  nb::handle weight, bias;
};
class TokenEdgeArrays {
 public:
  TokenEdgeArrays(const NormArguments& norm, const RotationArguments& rotate, std::int64_t ratio,
                  std::string_view rounding, std::string_view columns, std::optional<Dtype> bits)
      : rotate_(rotate),
        weight_(Array::read("norm_weight", norm.weight, bits)),
        bias_(Array::read("norm_bias", norm.bias, bits)) {
    edges_.norm = {norm.epsilon, weight_.view(), bias_.view()};
    edges_.rotate = rotate_.rotation;
    edges_.ratio = ratio;
    edges_.rounding = static_cast<TokenRounding>(choice("rounding", rounding, "engine", "once"));
    edges_.columns = rotary_columns_from_name(columns);
  }

  const TokenEdges& view() const { return edges_; }
  bool integers() const { return weight_.integers() || bias_.integers(); }

 private:
  const RotationArrays rotate_;
  const Array weight_, bias_;
  TokenEdges edges_;
};

}  // namespace flashlatent::python
