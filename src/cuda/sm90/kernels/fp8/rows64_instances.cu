#include "cuda/host/atoms_map.h"
#include "cuda/sm90/kernels/fp8/instances.h"
#include "cuda/sm90/kernels/fp8/rows64_kernel.cuh"

namespace flashlatent::fp8 {

namespace {
template <Tokens kTokens>
constexpr cuda::CompiledKernel compiled() {
  using Shape = rows64::Config<kTokens>;
  return cuda::compiled_kernel<rows64::kernel<Shape>, Shape, rows64::SharedMemory<Shape>>();
}

template <Tokens kTokens>
constexpr cuda::DenseInstance of_e4m3(cuda::Loading loading) {
  return {.key = e4m3_key(kRows64, loading),
          .kernel = compiled<kTokens>(),
          .boxes = {.kv = cuda::kv_atoms_map, .query = cuda::query_chunks_map, .query_lines = false},
          .merges = true};
}
}  // namespace

constinit const Rows64Instances kRows64Instances = cuda::of_keys(
    kRows64Keys, Rows64Instances{{{.key = key(kRows64),
                                   .kernel = compiled<Tokens::kFp8_656>(),
                                   .boxes = {.query = cuda::query_chunks_map, .query_lines = false},
                                   .merges = true},
                                  of_e4m3<Tokens::kE4m3Boxes>(cuda::Loading::kBoxes),
                                  of_e4m3<Tokens::kE4m3Tokens>(cuda::Loading::kTokens),
                                  {.key = fp8_584_key(kRows64),
                                   .kernel = compiled<Tokens::kRopeRecords>(),
                                   .boxes = {.query = cuda::query_chunks_map, .query_lines = false},
                                   .merges = true}}});

}  // namespace flashlatent::fp8
