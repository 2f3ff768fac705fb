// What is used of <cuda/ptx>, whose 600 KB of other instructions take nvcc 1.9 s a file. Names of its parts
// may change from one version of the toolkit to another: then all of it.
#pragma once

#if __has_include(<cuda/__ptx/instructions/mbarrier_wait.h>)
#include <cuda/__ptx/instructions/cp_async_bulk.h>
#include <cuda/__ptx/instructions/cp_async_bulk_commit_group.h>
#include <cuda/__ptx/instructions/cp_async_bulk_tensor.h>
#include <cuda/__ptx/instructions/cp_async_bulk_wait_group.h>
#include <cuda/__ptx/instructions/fence.h>
#include <cuda/__ptx/instructions/mbarrier_arrive.h>
#include <cuda/__ptx/instructions/mbarrier_init.h>
#include <cuda/__ptx/instructions/mbarrier_wait.h>
#else
#include <cuda/ptx>
#endif
