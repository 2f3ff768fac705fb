// fp8_584 with the edges of the layer in the kernels' own passes.
#include "cuda/sm90/kernels/fp8/instances.h"
#include "cuda/sm90/kernels/fp8/rows64_kernel.cuh"

namespace flashlatent::fp8 {

namespace {
constexpr cuda::DenseInstance rows64_edges() {
  using Shape = rows64::Config<Tokens::kFp8_584, /*kEdges_=*/true>;
  return {.key = with_edges(fp8_584_key(kRows64)),
          .kernel = cuda::compiled_kernel<rows64::kernel<Shape>, Shape, rows64::SharedMemory<Shape>>(),
          .boxes = {.query = cuda::query_chunks_map, .query_lines = false},
          .merges = true};
}
}  // namespace

constinit const Rows64EdgesInstances kRows64Edges =
    cuda::of_keys(kRows64EdgesKeys, Rows64EdgesInstances{{rows64_edges()}});

}  // namespace flashlatent::fp8
