// Where a call has two kernels (plan/chosen_kernel.h), one of them leaves.
#pragma once

#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

/// Has the plan chosen the call's other kernel? All threads ask first of all, and return if it has. The
/// choice may be read before the previous launch is done: it was written at least two launches ago
/// (choose_kernel()). The next launch may begin at once, but one CTA waits, so that this launch ends after
/// the previous one.
__device__ __forceinline__ bool leaves(const DecodeArguments& args) {
  const schedule::ChosenKernel& choice = args.choice;
  if (choice.chosen == nullptr) return false;
  if (__ldcg(reinterpret_cast<const int*>(choice.chosen)) == static_cast<int>(choice.mine)) return false;
  cudaTriggerProgrammaticLaunchCompletion();
  if (blockIdx.x == 0) cudaGridDependencySynchronize();
  return true;
}

}  // namespace flashlatent::sm90
