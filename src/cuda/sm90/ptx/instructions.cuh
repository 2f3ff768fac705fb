// Includes the headers of <cuda/ptx> that are used: <cuda/ptx> itself has 600 KB and takes nvcc 1.9 s a file.
// If a version of the toolkit names its headers otherwise, <cuda/ptx> is included.
#pragma once

#if __has_include(<cuda/__ptx/instructions/mbarrier_wait.h>)
#include <cuda/__ptx/instructions/cp_async_bulk.h>
#include <cuda/__ptx/instructions/cp_async_bulk_commit_group.h>
#include <cuda/__ptx/instructions/cp_async_bulk_tensor.h>
#include <cuda/__ptx/instructions/cp_async_bulk_wait_group.h>
#include <cuda/__ptx/instructions/fence.h>
#include <cuda/__ptx/instructions/mbarrier_arrive.h>
#include <cuda/__ptx/instructions/mbarrier_expect_tx.h>
#include <cuda/__ptx/instructions/mbarrier_init.h>
#include <cuda/__ptx/instructions/mbarrier_wait.h>
#else
#include <cuda/ptx>
#endif
