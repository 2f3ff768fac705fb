// Marks arithmetic that host and device share.
#pragma once

#ifdef __CUDACC__
#define FLASHLATENT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASHLATENT_HOST_DEVICE inline
#endif
