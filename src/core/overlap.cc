#include "core/overlap.h"

#include <algorithm>
#include <span>

#include "core/message.h"

namespace flashlatent {

namespace {

struct Dimension {
  std::int64_t stride, extent;  // bytes; at least 1 and 2
};

/// The bytes of a view: single bytes at `begin` plus multiples of the strides, longest stride first.
struct Bytes {
  std::int64_t begin = 0;
  int count = 0;
  std::array<Dimension, kMaxRank + 1> dimensions;

  explicit Bytes(const ConstTensorView& view)
      : begin(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data))) {
    const auto element = static_cast<std::int64_t>(size_of(view.dtype));
    for (int i = 0; i < view.rank; ++i) {
      std::int64_t stride = view.strides[i] * element;
      if (stride < 0) begin += stride * (view.shape[i] - 1);
      if (stride != 0 && view.shape[i] > 1) dimensions[count++] = {std::abs(stride), view.shape[i]};
    }
    if (element > 1) dimensions[count++] = {1, element};
    std::sort(dimensions.begin(), dimensions.begin() + count,
              [](const Dimension& x, const Dimension& y) { return x.stride > y.stride; });
  }
};

/// Bytes from the first byte to the end of the last.
std::int64_t span_of(std::span<const Dimension> dimensions) {
  std::int64_t span = 1;
  for (const Dimension& dimension : dimensions) span += dimension.stride * (dimension.extent - 1);
  return span;
}

/// Does a byte of `a`, which begins at 0, lie at the place of a byte of `b`, which begins at `begin`?
bool meet(std::span<const Dimension> a, std::span<const Dimension> b, std::int64_t begin) {
  if (begin >= span_of(a) || begin + span_of(b) <= 0) return false;
  if (a.empty() || b.empty() || a.front().stride != b.front().stride) return true;
  // Both repeat with the same stride, so a pattern of `a` need only be compared with the two nearest ones of
  // `b`.
  const std::int64_t stride = a.front().stride;
  const std::span<const Dimension> inner_a = a.subspan(1), inner_b = b.subspan(1);
  if (span_of(inner_a) > stride || span_of(inner_b) > stride) return true;
  const std::int64_t after = (begin % stride + stride) % stride;
  return meet(inner_a, inner_b, after) || meet(inner_a, inner_b, after - stride);
}

}  // namespace

bool overlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (!a.present() || !b.present() || a.device != b.device) return false;
  if (a.elements() == 0 || b.elements() == 0) return false;
  const Bytes x(a), y(b);
  return meet({x.dimensions.data(), static_cast<std::size_t>(x.count)},
              {y.dimensions.data(), static_cast<std::size_t>(y.count)}, y.begin - x.begin);
}

bool same_pages(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    const bool one = i > 0 ? a.shape[i] == 1 : a.shape[i] <= 1 && b.shape[i] <= 1;
    if ((i > 0 && a.shape[i] != b.shape[i]) || (!one && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

Status expect_apart(const char* read_name, const ConstTensorView& read, const char* written_name,
                    const ConstTensorView& written) {
  if (!overlap(read, written)) return {};
  return invalid_argument(written_name, " is ", to_string(written), " at ", written.data, " and overlaps ",
                          read_name, ", ", to_string(read), " at ", read.data,
                          "; memory that is read and memory that is written must be apart");
}

}  // namespace flashlatent
