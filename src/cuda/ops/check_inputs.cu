// check_inputs() on the device: one cluster, whose CTAs keep the lowest place of an offence in the first
// CTA's shared memory. So the caller's memory needs no initial value.
#include "cuda/check_inputs.h"

#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/reduce.cuh"

namespace flashlatent::cuda {

namespace checking_inputs {

namespace {

using input_check::List;
using input_check::Place;
using input_check::Range;
using input_check::Tables;

constexpr int kThreads = 1024;
constexpr int kCtas = 8;  // the largest cluster that every device supports
constexpr int kAll = kThreads * kCtas;
constexpr int kLanes = 32;
constexpr std::int64_t kColumns = 512;  // columns of a row of block_table that a warp takes at a time

/// The lowest offence in cu_seqlens_q and lengths, of those that thread `i` checks.
__device__ Place first_of_requests(const Tables& t, int i) {
  Place first = input_check::kNoPlace;
  for (std::int32_t entry = i; t.begins != nullptr && entry <= t.requests; entry += kAll) {
    if (input_check::begin_offends(t, entry)) first = min(first, input_check::begin_place(entry));
  }
  for (const List& list : t.list) {
    const std::int64_t all = list.lengths == nullptr ? 0 : std::int64_t{t.requests} * list.each;
    for (std::int64_t at = i; at < all; at += kAll) {
      const auto length = static_cast<std::int32_t>(at);
      if (input_check::length_offends(list, length))
        first = min(first, input_check::length_place(list, length));
    }
  }
  return first;
}

/// The lowest offence in the live entries of a list's page table, of those that a lane of warp number `warp`
/// checks.
__device__ Place first_of_pages(const Tables& t, const List& list, int warp, int lane) {
  Place first = input_check::kNoPlace;
  if (list.pages == nullptr) return first;
  const std::int64_t runs = (list.columns + kColumns - 1) / kColumns;  // of a row
  for (std::int64_t unit = warp; unit < runs * t.requests; unit += kAll / kLanes) {
    const auto request = static_cast<std::int32_t>(unit / runs);
    const std::int64_t begin = unit % runs * kColumns;
    const Range live = input_check::live_columns(t, list, request);
    const std::int64_t end = min(live.most + 1, begin + kColumns);
    const std::int32_t* row = list.pages + request * list.pages_stride;
#pragma unroll 4
    for (std::int64_t column = begin + lane; column < end; column += kLanes) {
      if (column >= live.least && input_check::page_offends(list, row[column])) {
        first = min(first, input_check::page_place(list, request, static_cast<std::int32_t>(column)));
      }
    }
  }
  return first;
}

__global__ void __cluster_dims__(kCtas) __launch_bounds__(kThreads)
    check_inputs_kernel(const __grid_constant__ Tables tables, InputOffence* offence) {
  __shared__ Place first;
  const int i = blockIdx.x * kThreads + threadIdx.x, lane = threadIdx.x % kLanes;
  if (threadIdx.x == 0) first = input_check::kNoPlace;
  __syncwarp();
  ptx::cluster_sync();
  Place own = first_of_requests(tables, i);
  for (const List& list : tables.list) own = min(own, first_of_pages(tables, list, i / kLanes, lane));
  for (int apart = kLanes / 2; apart > 0; apart /= 2) own = min(own, __shfl_xor_sync(~0U, own, apart));
  if (lane == 0 && own != input_check::kNoPlace) ptx::min_in_cluster(ptx::address_in(0, &first), own);
  __syncwarp();
  ptx::cluster_sync();
  if (i == 0) *offence = input_check::offence_at(tables, first);
}

}  // namespace

}  // namespace checking_inputs

Status check_inputs(const input_check::Tables& tables, InputOffence* offence, const Executor& executor) {
  using namespace checking_inputs;
  const DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  return launch(check_inputs_kernel, {.blocks = kCtas, .threads = kThreads}, executor, tables, offence);
}

namespace {

/// Pinned memory for an offence, which the device writes to.
class PinnedOffence {
 public:
  PinnedOffence() = default;
  PinnedOffence(const PinnedOffence&) = delete;
  PinnedOffence& operator=(const PinnedOffence&) = delete;
  ~PinnedOffence() { cudaFreeHost(memory_); }

  Result<InputOffence*> get() {
    if (memory_ == nullptr) {
      FLASHLATENT_RETURN_IF_ERROR(
          to_status(cudaHostAlloc(&memory_, sizeof(InputOffence), cudaHostAllocPortable), "cudaHostAlloc"));
    }
    return static_cast<InputOffence*>(memory_);
  }

 private:
  void* memory_ = nullptr;
};

}  // namespace

Result<bool> is_captured(const Executor& executor) {
  const DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  FLASHLATENT_RETURN_IF_ERROR(to_status(
      cudaStreamIsCapturing(static_cast<cudaStream_t>(executor.stream), &capture), "cudaStreamIsCapturing"));
  return capture != cudaStreamCaptureStatusNone;
}

Result<InputOffence> find_offence(const input_check::Tables& tables, const Executor& executor) {
  const DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  static thread_local PinnedOffence pinned;
  FLASHLATENT_ASSIGN_OR_RETURN(InputOffence* const found, pinned.get());
  FLASHLATENT_RETURN_IF_ERROR(check_inputs(tables, found, executor));
  FLASHLATENT_RETURN_IF_ERROR(
      to_status(cudaStreamSynchronize(static_cast<cudaStream_t>(executor.stream)), "cudaStreamSynchronize"));
  return *found;
}

}  // namespace flashlatent::cuda
