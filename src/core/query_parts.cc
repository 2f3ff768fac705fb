#include "core/query_parts.h"

#include "core/message.h"

namespace flashlatent::query_parts {

Status expect_fit(const ConstTensorView& q, const ConstTensorView& q_rope) {
  bool fits = q.present() && q.rank == q_rope.rank && q.rank > 0 && q.dtype == q_rope.dtype &&
              q.device == q_rope.device && q_rope.shape[q.rank - 1] == kRopeDim &&
              (q.shape[q.rank - 1] == first_columns(576) || q.shape[q.rank - 1] == first_columns(320));
  for (int i = 0; fits && i + 1 < q.rank; ++i) fits = q.shape[i] == q_rope.shape[i];
  if (fits) return {};
  return invalid_argument("q is ", q.present() ? to_string(q) : "missing", " and q_rope is ",
                          to_string(q_rope), "; beside q_rope, which has the last ", kRopeDim,
                          " columns, q has the first 512 (of 320 the first 256), and both are of the same "
                          "dtype, device and other extents");
}

}  // namespace flashlatent::query_parts
