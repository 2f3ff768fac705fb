#include "runtime/fp8_memory.h"

#include "core/return_if_error.h"

namespace flashlatent::runtime {

Result<Fp8Memory> Fp8Memory::create(const Fp8Request& request, const TensorView& out,
                                    const Executor& executor) {
  Fp8Memory memory;
  if (request.columns == 0) return memory;
  const int first = out.rank - 3;
  const std::int64_t tokens = out.shape[first] * (first > 0 ? out.shape[0] : 1), groups = request.groups;
  const std::int64_t columns = out.shape[first + 1] / groups * out.shape[first + 2];
  const std::int64_t padded = (tokens + 3) / 4 * 4;
  FLASHLATENT_ASSIGN_OR_RETURN(memory.codes_, Buffer::allocate(executor, tokens * groups * columns));
  FLASHLATENT_ASSIGN_OR_RETURN(memory.scales_,
                               Buffer::allocate(executor, groups * (columns / 128) * padded * 4));
  Fp8Output& fp8 = memory.there_;
  fp8.codes = {memory.codes_.data(), Dtype::kU8, {tokens, groups, columns}, out.device};
  fp8.codes.strides = {columns, tokens * columns, 1};
  fp8.scales = {memory.scales_.data(),
                request.columns == 32 ? Dtype::kI32 : Dtype::kF32,
                {groups, columns / 128, padded},
                out.device};
  return memory;
}

Status Fp8Memory::poison(int byte, const Executor& executor) const {
  for (const Buffer* buffer : {&codes_, &scales_}) {
    if (buffer->size() == 0) continue;
    FLASHLATENT_RETURN_IF_ERROR(fill(buffer->data(), byte, buffer->size(), executor));
  }
  return {};
}

Status Fp8Memory::fetch(const Executor& executor) {
  if (!there_.present()) return {};
  bytes_.resize(codes_.size() + scales_.size());
  std::uint8_t* scales = bytes_.data() + codes_.size();
  FLASHLATENT_RETURN_IF_ERROR(copy_to_host(bytes_.data(), codes_.data(), codes_.size(), executor));
  FLASHLATENT_RETURN_IF_ERROR(copy_to_host(scales, scales_.data(), scales_.size(), executor));
  here_ = there_;
  here_.codes.data = bytes_.data();
  here_.scales.data = scales;
  here_.codes.device = here_.scales.device = {};
  return {};
}

}  // namespace flashlatent::runtime
