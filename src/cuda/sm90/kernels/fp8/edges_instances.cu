// fp8_584 and records with the edges of the layer in the kernels' own passes.
#include "cuda/sm90/kernels/fp8/few_rows_kernel.cuh"
#include "cuda/sm90/kernels/fp8/instances.h"
#include "cuda/sm90/kernels/fp8/records64_kernel.cuh"
#include "cuda/sm90/kernels/fp8/records_kernel.cuh"
#include "cuda/sm90/kernels/fp8/rows64_kernel.cuh"

namespace flashlatent::fp8 {

namespace {
constexpr cuda::DenseInstance rows64_edges() {
  using Shape = rows64::Config<Tokens::kRopeRecords, /*kEdges_=*/true>;
  return {.key = with_edges(fp8_584_key(kRows64)),
          .kernel = cuda::compiled_kernel<rows64::kernel<Shape>, Shape, rows64::SharedMemory<Shape>>(),
          .boxes = {.query = cuda::query_chunks_map, .query_lines = false},
          .merges = true};
}
template <int kRows>
constexpr cuda::DenseInstance few_rows_edges() {
  using Shape = few_rows::Config<kRows, false, 1, Tokens::kRopeRecords, /*kAlone_=*/true, /*kEdges_=*/true>;
  return {.key = with_edges(fp8_584_key(kRows, true)),
          .kernel = cuda::compiled_kernel<few_rows::kernel<Shape>, Shape, few_rows::SharedMemory<Shape>>()};
}
template <int kRows>
constexpr cuda::DenseInstance records_edges() {
  using Shape = records::Config<kRows, /*kAlone_=*/true, /*kEdges_=*/true>;
  return {.key = with_edges(records_key(kRows, true)),
          .kernel = cuda::compiled_kernel<records::kernel<Shape>, Shape, records::SharedMemory<Shape>>()};
}
constexpr cuda::DenseInstance records64_edges() {
  using Shape = records64::Config</*kAlone_=*/true, /*kEdges_=*/true>;
  return {.key = with_edges(records_key(kRows64, true)),
          .kernel = cuda::compiled_kernel<records64::kernel<Shape>, Shape, records64::SharedMemory<Shape>>(),
          .boxes = {.query = cuda::query_chunks_map, .query_lines = false}};
}
}  // namespace

constinit const EdgesInstances kEdges = cuda::of_keys(
    kEdgesKeys,
    EdgesInstances{{few_rows_edges<8>(), few_rows_edges<16>(), few_rows_edges<32>(), rows64_edges(),
                    records_edges<8>(), records_edges<16>(), records_edges<32>(), records64_edges()}});

}  // namespace flashlatent::fp8
