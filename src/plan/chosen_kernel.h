// Where lengths decide on the device which of two kernels computes a call (choose/near_kernel.h): both are
// launched, and the one that the plan has not chosen leaves at once.
//
// The choice is written with the plan, so it may be another one at each replay of a graph. It lies behind the
// plans of both kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/schedule.h"

namespace flashlatent::schedule {

enum class KernelRange : std::int32_t {
  kNear,  ///< Fast if no request is long.
  kFar,
};

/// A launch's question whether it is the chosen one.
struct ChosenKernel {
  const KernelRange* chosen = nullptr;  ///< In the executor's memory; null: there is one kernel.
  KernelRange mine = KernelRange::kFar;
};

/// Does a kernel of this geometry read its plan? Otherwise shapes say where parts begin and end.
inline bool reads_plan(const Geometry& g) {
  return g.partition != Partition::kWhole && g.partition != Partition::kTurns &&
         !(g.partition == Partition::kTeamShares && g.requests == 1);
}

/// The plan's memory: the far kernel's plan, the near one's, the choice. Each begins at a multiple of 16.
struct TwoPlans {
  std::size_t near_offset = 0, chosen_offset = 0;

  /// For plans of up to `plan_bytes` each.
  explicit TwoPlans(std::size_t plan_bytes)
      : near_offset((plan_bytes + 15) / 16 * 16), chosen_offset(2 * near_offset) {}

  std::size_t bytes() const { return chosen_offset + 16; }
  void* near(void* memory) const { return static_cast<std::byte*>(memory) + near_offset; }
  KernelRange* chosen(void* memory) const {
    return reinterpret_cast<KernelRange*>(static_cast<std::byte*>(memory) + chosen_offset);
  }
};

}  // namespace flashlatent::schedule
