#include "python/src/layer_edges.h"

#include <nanobind/stl/string_view.h>

namespace flashlatent::python {

namespace {

constexpr RotationNames kQueryRotation = {"q_rotate.positions", "q_rotate.table", "q_rotate.pairs",
                                          "q_rotate.table_layout"};
constexpr RotationNames kOutputRotation = {"out_rotate.positions", "out_rotate.table", "out_rotate.pairs",
                                           "out_rotate.table_layout"};

/// The items of a tuple, from `least` to `most` of them.
nb::tuple tuple_of(const char* name, nb::handle given, std::size_t least, std::size_t most,
                   const char* what) {
  const bool is_tuple = nb::isinstance<nb::tuple>(given);
  if (!is_tuple || nb::len(given) < least || nb::len(given) > most) {
    refuse(name, " is a ", type_of(given), is_tuple ? message(" of ", nb::len(given)) : "", "; a tuple ",
           what, " is expected");
  }
  return nb::borrow<nb::tuple>(given);
}

std::string_view text_of(const char* name, nb::handle given) {
  std::string_view text;
  if (!nb::try_cast(given, text)) refuse(name, " is a ", type_of(given), "; a str is expected");
  return text;
}

/// The items live as long as the tuple, which the caller holds.
RotationArguments rotation_of(const char* name, nb::handle given) {
  RotationArguments said{Py_None, Py_None, "gptj", "halves"};
  if (given.is_none()) return said;
  const nb::tuple items = tuple_of(name, given, 2, 4, "(positions, table), or with pairs and table_layout");
  said.positions = nb::handle(items[0]);
  said.table = nb::handle(items[1]);
  if (nb::len(items) > 2) said.pairs = text_of(message(name, ".pairs").c_str(), nb::handle(items[2]));
  if (nb::len(items) > 3) said.layout = text_of(message(name, ".table_layout").c_str(), nb::handle(items[3]));
  return said;
}

Array item_of_fp8(const char* name, nb::handle given, int item) {
  if (given.is_none()) return Array::output(name, Py_None);
  const nb::handle array(tuple_of("out_fp8", given, 2, 2, "(codes, scales)")[item]);
  if (array.is_none()) refuse(name, " is None; codes and scales go together");
  return Array::output(name, array);
}

}  // namespace

LayerEdgeArrays::LayerEdgeArrays(nb::handle q_rotate, nb::handle out_rotate, nb::handle out_fp8)
    : q(rotation_of("q_rotate", q_rotate), kQueryRotation),
      out(rotation_of("out_rotate", out_rotate), kOutputRotation),
      codes(item_of_fp8("out_fp8.codes", out_fp8, 0)),
      scales(item_of_fp8("out_fp8.scales", out_fp8, 1)) {}

}  // namespace flashlatent::python
