#include "core/expect.h"

#include <cstdint>
#include <string>

#include "core/message.h"

namespace flashlatent {

Status expect(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
              const Extents& shape) {
  auto wanted = [&] {
    std::string text = message(to_string(dtype), " (");
    for (std::size_t i = 0; i < shape.size(); ++i) {
      text += (i ? ", " : "") + (shape[i] < 0 ? std::string("any") : std::to_string(shape[i]));
    }
    return text + ") on " + to_string(device);
  };
  auto refuse = [&](const char* what) {
    return invalid_argument(name, " is ", to_string(view), "; ", what, ": expected ", wanted());
  };
  if (!view.present()) return invalid_argument(name, " is missing; expected ", wanted());
  if (view.rank != static_cast<int>(shape.size())) return refuse("wrong rank");
  if (view.dtype != dtype) return refuse("wrong dtype");
  for (int i = 0; i < view.rank; ++i) {
    if (shape[i] >= 0 && view.shape[i] != shape[i]) return refuse("wrong shape");
    if (view.shape[i] < 0) return refuse("negative extent");
  }
  if (view.device != device) return refuse("wrong device");
  if (view.data == nullptr && view.elements() > 0) return refuse("null pointer");
  if (view.data != nullptr && reinterpret_cast<std::uintptr_t>(view.data) % size_of(dtype) != 0) {
    return refuse("pointer not aligned to its dtype");
  }
  return {};
}

Status innermost_contiguous(const char* name, const ConstTensorView& view) {
  const int last = view.rank - 1;
  if (view.strides[last] == 1 || view.shape[last] <= 1 || view.elements() == 0) return {};
  return invalid_argument(name, " is ", to_string(view), "; its innermost stride must be 1");
}

Status expect_strided(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
                      const Extents& shape) {
  FLASHLATENT_RETURN_IF_ERROR(expect(name, view, dtype, device, shape));
  return innermost_contiguous(name, view);
}

Status expect_integers(const char* name, const ConstTensorView& view, Device device, const Extents& shape) {
  const bool wide = view.present() && view.dtype == Dtype::kI64;
  return expect_strided(name, view, wide ? Dtype::kI64 : Dtype::kI32, device, shape);
}

}  // namespace flashlatent
