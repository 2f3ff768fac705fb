#include "choose/cutters.h"

namespace flashlatent::choose {

std::span<const Cutter* const> cutters() {
  static constexpr const Cutter* kAll[] = {
      &kMla16Transposed, &kMla16Team4,  &kMla16Team8, &kMla16Team16,    &kMla16,     &kMla64Pingpong,
      &kMla64Team,       &kMla64Roles,  &kFp8Rows32,  &kFp8Rows16Team8, &kFp8Rows64, &kMla64E4m3,
      &kGqa16,           &kGqa128Split, &kGqa128,     &kCpuDense,       &kReference,
  };
  return kAll;
}

}  // namespace flashlatent::choose
