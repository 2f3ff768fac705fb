// One SIMD target at a time, of those that this processor has.
#pragma once

#include "cpu/simd_targets.h"  // before Highway, which leaves out what it names

#include <hwy/targets.h>

#include <cstdint>
#include <vector>

namespace flashlatent {

inline std::vector<std::int64_t> simd_targets() {
  std::vector<std::int64_t> list;
  for (std::int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    list.push_back(rest & -rest);
  }
  return list;
}

/// Offers one target to run-time dispatch while it lives.
class OnlyTarget {
 public:
  explicit OnlyTarget(std::int64_t target) { offer(target); }
  ~OnlyTarget() { offer(0); }

 private:
  static void offer(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace flashlatent
