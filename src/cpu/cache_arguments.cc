#include "cpu/cache_arguments.h"

#include "core/message.h"
#include "cpu/parallel.h"

namespace flashlatent::cpu {

int threads_of(const Executor& executor) {
  return executor.threads > 0 ? executor.threads : hardware_threads();
}

std::int64_t integer(const ConstTensorView& view, std::int64_t offset) {
  if (view.dtype == Dtype::kI64) return static_cast<const std::int64_t*>(view.data)[offset];
  return static_cast<const std::int32_t*>(view.data)[offset];
}

Status validate_slots(const ConstTensorView& slot_mapping, std::int64_t slots) {
  for (std::int64_t i = 0; i < slot_mapping.shape[0]; ++i) {
    const std::int64_t slot = integer(slot_mapping, i);
    if (slot < slots) continue;
    return invalid_argument("slot_mapping[", i, "] is ", slot, "; the cache has ", slots,
                            " slots, and negative ones are skipped");
  }
  return {};
}

Status validate_rows(const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                     std::int64_t rows) {
  const std::int64_t batch = cu_seqlens.shape[0] - 1;
  std::int64_t before = 0;
  for (std::int64_t i = 0; i <= batch; ++i) {
    const std::int64_t end = integer(cu_seqlens, i);
    if (end < before || (i == 0 && end != 0) || (i == batch && end != rows)) {
      return invalid_argument("cu_seqlens[", i, "] is ", end,
                              "; it must begin with 0, never fall, and end at ", "out's ", rows, " rows");
    }
    before = end;
  }
  for (std::int64_t i = 0; i < batch && first_token.present(); ++i) {
    if (integer(first_token, i) >= 0) continue;
    return invalid_argument("first_token[", i, "] is ", integer(first_token, i), "; 0 or more is accepted");
  }
  return {};
}

}  // namespace flashlatent::cpu
