// Both backends as far as this build has them, and the one of an executor.
#pragma once

#include "cpu/cpu_backend.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

/// The function of this name of the executor's backend: cpu:: and cuda:: have it with one signature.
#if FLASHLATENT_WITH_CUDA
#define FLASHLATENT_ON_BACKEND(executor, function) \
  ((executor).backend == Backend::kCuda ? cuda::function : cpu::function)
#else
#define FLASHLATENT_ON_BACKEND(executor, function) cpu::function
#endif
