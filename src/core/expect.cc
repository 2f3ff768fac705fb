#include "core/expect.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "core/formats/formats.h"
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

Status expect_scale(const char* name, const ConstTensorView& scale, std::int64_t heads, Device device) {
  if (!scale.present()) return {};
  const bool each = scale.rank == 1 && scale.shape[0] == heads;
  const bool one = scale.rank == 1 && scale.shape[0] == 1;
  if (!each && !one && heads > 1) {
    return invalid_argument(name, " is ", to_string(scale), "; expected fp32 (1) or (", heads,
                            "), one a head");
  }
  return expect_strided(name, scale, Dtype::kF32, device, {each ? heads : 1});
}

Status expect_positive(const char* name, const ConstTensorView& scale) {
  for (std::int64_t i = 0; scale.present() && i < scale.shape[0]; ++i) {
    const float number = static_cast<const float*>(scale.data)[i];
    if (number > 0 && std::isfinite(number)) continue;
    return invalid_argument(name, "[", i, "] is ", number, "; positive finite scales are accepted");
  }
  return {};
}

Status expect_countable(const char* name, const ConstTensorView& view) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] >= 0 && view.shape[i] <= (1LL << 30)) continue;
    return invalid_argument(name, " is ", to_string(view), "; extents must be from 0 to 2^30");
  }
  return {};
}

Status expect_page_strides(const char* name, const ConstTensorView& view, const LatentFormat& format) {
  FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous(name, view));
  const std::int64_t pages = view.shape[0], page_size = view.shape[1];
  if ((!format.apart() && !has_places(format.format)) || pages == 0 || page_size == 0) return {};
  std::int64_t least = format.least_page_stride(page_size, 0);
  if (!format.apart() && page_size > 1) {
    if (view.strides[1] < format.token_bytes()) {
      return invalid_argument(name, " is ", to_string(view), "; tokens of an ", format.name, " cache lie ",
                              format.token_bytes(), " bytes apart or more");
    }
    least = (page_size - 1) * view.strides[1] + format.token_bytes();
  }
  if (format.apart() && page_size > 1 && view.strides[1] != format.token_bytes()) {
    return invalid_argument(name, " is ", to_string(view), "; an ", format.name,
                            " cache whose scales follow a page's data has a stride of ", format.token_bytes(),
                            " bytes from token to token");
  }
  if (pages > 1 && (view.strides[0] < least || view.strides[0] % kPageAlignment != 0)) {
    return invalid_argument(name, " is ", to_string(view), "; pages of ", page_size, " tokens of an ",
                            format.name, " cache lie ", least, " bytes apart or more, a multiple of ",
                            kPageAlignment);
  }
  return {};
}

Status expect_gathered(const ConstTensorView& block_table, const ConstTensorView& cu_seqlens,
                       const ConstTensorView& first_token, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("block_table", block_table, Dtype::kI32, device, {-1, -1}));
  const std::int64_t batch = block_table.shape[0];
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("cu_seqlens", cu_seqlens, Dtype::kI32, device, {batch + 1}));
  if (!first_token.present()) return {};
  return expect_strided("first_token", first_token, Dtype::kI32, device, {batch});
}

bool is_half(Dtype dtype) {
  return dtype == Dtype::kBF16 || dtype == Dtype::kF16;
}

Status expect_integers(const char* name, const ConstTensorView& view, Device device, const Extents& shape) {
  const bool wide = view.present() && view.dtype == Dtype::kI64;
  return expect_strided(name, view, wide ? Dtype::kI64 : Dtype::kI32, device, shape);
}

}  // namespace flashlatent
