// The edges of the layer that a decode call or a sparse prefill is given.
#pragma once

#include "python/src/token_edges.h"

namespace flashlatent::python {

/// `q_rotate` and `out_rotate`: (positions, table[, pairs[, table_layout]]); `out_fp8`: (codes, scales),
/// which are written. None where the call has no such edge. The arrays live as long as the tuples, which the
/// caller holds.
struct LayerEdgeArrays {
  RotationArrays q, out;
  Array codes, scales;

  LayerEdgeArrays(nb::handle q_rotate, nb::handle out_rotate, nb::handle out_fp8);

  Fp8Output fp8() const { return {codes.view(), scales.view()}; }
};

}  // namespace flashlatent::python
