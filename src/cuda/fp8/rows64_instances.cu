#include "cuda/fp8/instances.h"
#include "cuda/fp8/rows64_kernel.cuh"

namespace flashlatent::fp8 {

constinit const Rows64Instances kRows64 = cuda::of_keys(
    kRows64Keys,
    Rows64Instances{{{.key = key(rows64::Config::kRows),
                      .kernel = cuda::compiled_kernel<rows64::kernel<rows64::Config>, rows64::Config,
                                                      rows64::SharedMemory<rows64::Config>>(),
                      .boxes = {.query = cuda::query_chunks_map},
                      .merges = true}}});

}  // namespace flashlatent::fp8
