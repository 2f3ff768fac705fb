#include "core/fp8_584.h"

#include "core/expect.h"
#include "core/message.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {

namespace {

template <class View>
Result<View> pages_of(const View& bytes, std::int64_t page_size) {
  if (bytes.rank != 2 || bytes.dtype != Dtype::kU8) {
    return invalid_argument("the cache is ", to_string(bytes), "; expected uint8 (pages, page_bytes)");
  }
  FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous("the cache", bytes));
  if (page_size < 1 || page_size > 1 << 20) {
    return invalid_argument("page_size is ", page_size, "; it must be from 1 to 1048576");
  }
  if (bytes.shape[1] < page_size * fp8_584::kTokenBytes) {
    return invalid_argument("the cache is ", to_string(bytes), "; a page of ", page_size, " tokens has ",
                            page_size * fp8_584::kTokenBytes, " bytes or more");
  }
  View view = bytes;
  view.rank = 4;
  view.shape = {bytes.shape[0], page_size, 1, fp8_584::kTokenBytes};
  view.strides = {bytes.strides[0], fp8_584::kTokenBytes, fp8_584::kTokenBytes, 1};
  return view;
}

}  // namespace

std::int64_t least_page_stride_584(std::int64_t page_size) {
  return fp8_584::least_page_stride(page_size);
}

Result<TensorView> fp8_584_pages(const TensorView& bytes, std::int64_t page_size) {
  return pages_of(bytes, page_size);
}

Result<ConstTensorView> fp8_584_pages(const ConstTensorView& bytes, std::int64_t page_size) {
  return pages_of(bytes, page_size);
}

}  // namespace flashlatent
