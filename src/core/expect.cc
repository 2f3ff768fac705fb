#include "core/expect.h"

#include <cstdint>
#include <string>

#include "core/fp8_584.h"
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

Status expect_fp8_584_strides(const char* name, const ConstTensorView& view) {
  FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous(name, view));
  const std::int64_t pages = view.shape[0], page_size = view.shape[1];
  if (pages == 0 || page_size == 0) return {};
  if (page_size > 1 && view.strides[1] != fp8_584::kTokenBytes) {
    return invalid_argument(name, " is ", to_string(view), "; an fp8_584 cache has a stride of ",
                            fp8_584::kTokenBytes, " bytes from token to token");
  }
  const std::int64_t least = fp8_584::least_page_stride(page_size);
  if (pages > 1 && (view.strides[0] < least || view.strides[0] % fp8_584::kPageAlignment != 0)) {
    return invalid_argument(name, " is ", to_string(view), "; pages of ", page_size,
                            " tokens of an fp8_584 cache lie ", least, " bytes apart or more, a multiple of ",
                            fp8_584::kPageAlignment);
  }
  return {};
}

Status expect_integers(const char* name, const ConstTensorView& view, Device device, const Extents& shape) {
  const bool wide = view.present() && view.dtype == Dtype::kI64;
  return expect_strided(name, view, wide ? Dtype::kI64 : Dtype::kI32, device, shape);
}

}  // namespace flashlatent
