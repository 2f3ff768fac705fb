// Declares the backends that this build has, and calls the one of an executor.
#pragma once

#include "cpu/cpu_backend.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

/// Calls the function of this name in the namespace of the executor's backend: cpu:: and cuda:: have the same
/// signatures.
#if FLASHLATENT_WITH_CUDA
#define FLASHLATENT_ON_BACKEND(executor, function) \
  ((executor).backend == Backend::kCuda ? cuda::function : cpu::function)
#else
#define FLASHLATENT_ON_BACKEND(executor, function) cpu::function
#endif
