// A kernel's row is in every build, its launch only where the kernel is compiled.
#pragma once

#if FLASHLATENT_WITH_CUDA
#define FLASHLATENT_IF_COMPILED(launch) launch
#else
#define FLASHLATENT_IF_COMPILED(launch) nullptr
#endif
