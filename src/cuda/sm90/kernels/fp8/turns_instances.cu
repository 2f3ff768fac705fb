// Sparse prefill from caches that go by one list.
#include "cuda/host/atoms_map.h"
#include "cuda/sm90/kernels/fp8/few_rows_kernel.cuh"
#include "cuda/sm90/kernels/fp8/instances.h"
#include "cuda/sm90/kernels/fp8/rows64_kernel.cuh"

namespace flashlatent::fp8 {

namespace {
template <int kRows, Tokens kTokens>
using FewRows = few_rows::Config<kRows, /*kMerges_=*/false, 1, kTokens, /*kAlone_=*/false, /*kEdges_=*/false,
                                 /*kTurns_=*/true>;
template <Tokens kTokens>
using Rows64 = rows64::Config<kTokens, /*kEdges_=*/false, /*kTurns_=*/true>;

template <int kRows>
constexpr cuda::DenseInstance few_rows_656() {
  using Shape = FewRows<kRows, Tokens::kFp8_656>;
  return {cuda::in_turn(key(kRows)),
          cuda::compiled_kernel<few_rows::kernel<Shape>, Shape, few_rows::SharedMemory<Shape>>()};
}
template <int kRows>
constexpr cuda::DenseInstance few_rows_e4m3() {
  using Shape = FewRows<kRows, Tokens::kE4m3Tokens>;
  return {.key = cuda::in_turn(e4m3_key(kRows, cuda::Loading::kTokens)),
          .kernel =
              cuda::compiled_kernel<few_rows::kernel_with_map<Shape>, Shape, few_rows::SharedMemory<Shape>>(),
          .boxes = {.kv = cuda::kv_atoms_map, .query = nullptr}};
}
template <Tokens kTokens>
constexpr cuda::CompiledKernel rows64_kernel() {
  using Shape = Rows64<kTokens>;
  return cuda::compiled_kernel<rows64::kernel<Shape>, Shape, rows64::SharedMemory<Shape>>();
}
}  // namespace

constinit const TurnsInstances kTurns = cuda::of_keys(
    kTurnsKeys,
    TurnsInstances{
        {few_rows_656<8>(),
         few_rows_656<16>(),
         few_rows_656<32>(),
         few_rows_e4m3<8>(),
         few_rows_e4m3<16>(),
         few_rows_e4m3<32>(),
         {.key = cuda::in_turn(key(kRows64)),
          .kernel = rows64_kernel<Tokens::kFp8_656>(),
          .boxes = {.query = cuda::query_chunks_map, .query_lines = false}},
         {.key = cuda::in_turn(e4m3_key(kRows64, cuda::Loading::kTokens)),
          .kernel = rows64_kernel<Tokens::kE4m3Tokens>(),
          .boxes = {.kv = cuda::kv_atoms_map, .query = cuda::query_chunks_map, .query_lines = false}}}});

}  // namespace flashlatent::fp8
