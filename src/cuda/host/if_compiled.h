// Every build has a kernel's row; only CUDA builds have its launch.
#pragma once

#if FLASHLATENT_WITH_CUDA
#define FLASHLATENT_IF_COMPILED(launch) launch
#else
#define FLASHLATENT_IF_COMPILED(launch) nullptr
#endif
