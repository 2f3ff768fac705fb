#include "flashlatent/tensor.h"

#include "core/enum_names.h"
#include "core/message.h"

namespace flashlatent {

namespace {

constexpr EnumName<Dtype> kDtypes[] = {{Dtype::kBF16, "bf16"}, {Dtype::kF16, "fp16"}, {Dtype::kF32, "fp32"},
                                       {Dtype::kI32, "int32"}, {Dtype::kU8, "uint8"}, {Dtype::kI64, "int64"}};

}  // namespace

std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
      return 1;
    case Dtype::kBF16:
    case Dtype::kF16:
      return 2;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kI64:
      return 8;
  }
  return 0;
}

const char* to_string(Dtype dtype) {
  return name_of(kDtypes, dtype);
}

std::string to_string(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : message("cuda:", device.index);
}

namespace {

std::string tuple(const std::array<std::int64_t, kMaxRank>& values, int count) {
  std::string text = "(";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + ")";
}

}  // namespace

std::string to_string(const ConstTensorView& view) {
  if (view.rank < 0 || view.rank > kMaxRank) {
    return message(to_string(view.dtype), " of more than ", kMaxRank, " dimensions on ",
                   to_string(view.device));
  }
  return message(to_string(view.dtype), " ", tuple(view.shape, view.rank), " strides ",
                 tuple(view.strides, view.rank), " on ", to_string(view.device));
}

}  // namespace flashlatent
