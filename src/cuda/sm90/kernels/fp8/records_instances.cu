#include "cuda/sm90/kernels/fp8/instances.h"
#include "cuda/sm90/kernels/fp8/records64_kernel.cuh"
#include "cuda/sm90/kernels/fp8/records_kernel.cuh"

namespace flashlatent::fp8 {

namespace {
template <int kRows, bool kAlone>
constexpr cuda::DenseInstance instance() {
  using Shape = records::Config<kRows, kAlone>;
  return {records_key(kRows, kAlone),
          cuda::compiled_kernel<records::kernel<Shape>, Shape, records::SharedMemory<Shape>>()};
}

template <bool kAlone>
constexpr cuda::DenseInstance instance64() {
  using Shape = records64::Config<kAlone>;
  return {.key = records_key(kRows64, kAlone),
          .kernel = cuda::compiled_kernel<records64::kernel<Shape>, Shape, records64::SharedMemory<Shape>>(),
          .boxes = {.query = cuda::query_chunks_map, .query_lines = false}};
}
}  // namespace

constinit const RecordsInstances kRecords = cuda::of_keys(
    kRecordsKeys,
    RecordsInstances{{instance<8, false>(), instance<16, false>(), instance<32, false>(), instance<8, true>(),
                      instance<16, true>(), instance<32, true>(), instance64<false>(), instance64<true>()}});

}  // namespace flashlatent::fp8
