// Operations on index keys in device memory: gather, with a warp for each key, and the merge of ranks' best
// tokens.
#include "core/e2m1.h"
#include "core/index_call.h"
#include "core/ue8m0.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/index_backend.h"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda {

namespace index_key_ops {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kDim = index_keys::kDim, kOwn = kDim / 32;  // elements of a lane, which follow one another

struct Cache {
  std::uint8_t* bytes;
  std::int64_t pages, stride;
  int page_size;
  IndexFormat format;

  __device__ __forceinline__ std::uint8_t* data(std::int64_t page, std::int64_t offset) const {
    return bytes + page * stride + index_keys::data_offset(format, offset);
  }
  __device__ __forceinline__ std::uint8_t* scales(std::int64_t page, std::int64_t offset) const {
    return bytes + page * stride + index_keys::scale_offset(format, page_size, offset);
  }
};

Cache cache_of(const ConstTensorView& view, IndexFormat format, int page_size) {
  return {const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(view.data)), view.shape[0],
          view.strides[0], page_size, format};
}

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ Cache cache, const std::int32_t* table, std::int64_t table_stride,
                  std::int64_t columns, const std::int32_t* sums, std::int64_t sums_stride, int batch,
                  void* out, Dtype dtype, std::int64_t out_stride, std::int64_t rows) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  int low = 0, high = batch;  // the first request that ends behind the row
  while (low < high) {
    const int middle = (low + high) / 2;
    if (sums[(middle + 1) * sums_stride] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  std::int64_t page = -1, offset = 0;
  if (low < batch) {
    const std::int64_t token = row - sums[low * sums_stride];
    offset = token % cache.page_size;
    if (token / cache.page_size < columns) page = table[low * table_stride + token / cache.page_size];
  }
  float x[kOwn] = {};
  if (page >= 0 && page < cache.pages) {
    const std::uint8_t* data = cache.data(page, offset);
    const std::uint8_t* scales = cache.scales(page, offset);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int element = lane * kOwn + j;
      if (cache.format == IndexFormat::kFp8_132) {
        x[j] = *reinterpret_cast<const float*>(scales) * e4m3::decode(data[element]);
      } else {
        x[j] = ue8m0::scale_value(scales[element / index_keys::kGroup]) *
               e2m1::decode(data[element / 2] >> (element % 2 * 4) & 0xFU);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const std::int64_t at = row * out_stride + lane * kOwn + j;
    if (dtype == Dtype::kF32) {
      static_cast<float*>(out)[at] = x[j];
    } else {
      static_cast<std::uint16_t*>(out)[at] =
          dtype == Dtype::kBF16 ? from_float<__nv_bfloat16>(x[j]) : from_float<__half>(x[j]);
    }
  }
}

/// The sum over the CTA of a number of each thread; all threads call it.
__device__ __forceinline__ int sum_of_cta(int mine, int* room) {
  const int of_warp = __reduce_add_sync(0xFFFFFFFF, mine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = of_warp;
  __syncthreads();
  int sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += room[warp];
  return sum;
}

/// A CTA for each query token finds the topk-th largest number of all ranks bit by bit, then this rank's
/// numbers above it.
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeCall call) {
  __shared__ int room[kWarps];
  __shared__ int before[kWarps], tied[kWarps];
  const std::int64_t r = blockIdx.x / call.tokens, t = blockIdx.x % call.tokens;
  auto count_if = [&](int last_rank, auto condition) {
    int mine = 0;
    for (int rank = 0; rank < last_rank; ++rank) {
      const int scores = call.count_of(r, t, rank);
      for (int i = threadIdx.x; i < scores; i += kThreads) mine += condition(call.key(r, t, rank, i));
    }
    return sum_of_cta(mine, room);
  };
  std::uint32_t last = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const std::uint32_t least = last | 1U << bit;
    if (count_if(call.ranks, [&](std::uint32_t x) { return x >= least; }) >= call.topk) last = least;
  }
  int ties = call.topk - count_if(call.ranks, [&](std::uint32_t x) { return x > last; });
  ties -= count_if(call.rank, [&](std::uint32_t x) { return x == last; });
  ties = max(ties, 0);
  const int scores = call.count_of(r, t, call.rank);
  const std::int32_t* indices = call.indices.at(r, t);
  std::int32_t* out = call.out.at(r, t);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int written = 0;
  for (int first = 0; first < scores; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const std::uint32_t key = i < scores ? call.key(r, t, call.rank, i) : 0;
    const bool better = i < scores && key > last, tie = i < scores && key == last;
    const std::uint32_t lower = (1U << lane) - 1;
    const std::uint32_t ties_here = __ballot_sync(0xFFFFFFFF, tie);
    __syncthreads();
    if (lane == 0) tied[warp] = __popc(ties_here);
    __syncthreads();
    int ties_before = __popc(ties_here & lower), all_ties = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) ties_before += tied[w];
      all_ties += tied[w];
    }
    const bool taken = better || (tie && ties_before < ties);
    const std::uint32_t taken_here = __ballot_sync(0xFFFFFFFF, taken);
    if (lane == 0) before[warp] = __popc(taken_here);
    __syncthreads();
    int at = written + __popc(taken_here & lower);
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) at += before[w];
      written += before[w];
    }
    if (taken) out[at] = indices[i];
    ties = max(ties - all_ties, 0);
  }
  for (int i = written + static_cast<int>(threadIdx.x); i < call.topk; i += kThreads) out[i] = -1;
  if (threadIdx.x == 0 && call.out_counts.data != nullptr) *call.out_counts.at(r, t) = written;
}

Status blocks_of(std::int64_t warps, LaunchShape& shape) {
  const std::int64_t blocks = (warps - 1) / kWarps + 1;
  if (blocks > kMostBlocks) return too_many_blocks(blocks);
  shape.blocks = static_cast<int>(blocks);
  shape.threads = kThreads;
  return {};
}

}  // namespace

}  // namespace index_key_ops

Status gather_index_keys(const ConstTensorView& index_cache, const ConstTensorView& block_table,
                         const ConstTensorView& cu_seqlens, const TensorView& out, IndexFormat format,
                         int page_size, const Executor& executor) {
  using namespace index_key_ops;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  LaunchShape shape;
  FLASHLATENT_RETURN_IF_ERROR(blocks_of(out.shape[0], shape));
  return launch(gather_kernel, shape, executor, cache_of(index_cache, format, page_size),
                static_cast<const std::int32_t*>(block_table.data), block_table.strides[0],
                block_table.shape[1], static_cast<const std::int32_t*>(cu_seqlens.data),
                cu_seqlens.strides[0], static_cast<int>(block_table.shape[0]), out.data, out.dtype,
                out.strides[0], out.shape[0]);
}

Status merge_topk(const MergeCall& call, const Executor& executor) {
  using namespace index_key_ops;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  LaunchShape shape;
  shape.blocks = call.batch * call.tokens;
  shape.threads = kThreads;
  return launch(merge_kernel, shape, executor, call);
}

}  // namespace flashlatent::cuda
