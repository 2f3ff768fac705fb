// Merges partial results of 16 bits, as ranks exchange them: few parts, long rows. A warp does a row and has
// the row's elements of all parts in flight together.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/common/combine_arguments.h"
#include "cuda/common/launch.h"
#include "cuda/common/runtime.h"
#include "cuda/cuda_backend.h"
#include "cuda/parts/arguments.h"

namespace flashlatent::cuda {

namespace {

constexpr int kWarps = 4;

__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ void store(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void store(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16(x);
}
__device__ __forceinline__ void store(__half* to, float x) {
  *to = __float2half(x);
}

/// Neighbouring elements that are loaded and stored together.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

/// The weights of a row's parts, base 2.
struct Weights {
  const float* lse;
  std::int64_t stride;
  float base = 0, sum = 0;

  __device__ Weights(const float* lse_, std::int64_t stride_, int count) : lse(lse_), stride(stride_) {
    float max = -INFINITY;
    for (int i = 0; i < count; ++i) max = fmaxf(max, __ldg(lse + i * stride));
    base = max == -INFINITY ? 0 : max;
    for (int i = 0; i < count; ++i) sum += of(i);
  }
  __device__ __forceinline__ float of(int part) const {
    return exp2f((__ldg(lse + part * stride) - base) * parts::kLog2E);
  }
};

template <class Partial, class Element, int kPack>
__global__ void __launch_bounds__(kWarps * 32)
    combine_halves_kernel(const __grid_constant__ CombineArguments args) {
  const int lane = threadIdx.x % 32;
  const auto& po = args.partial_out_strides;
  const auto& pl = args.partial_lse_strides;
  for (std::int64_t row = blockIdx.x * kWarps + threadIdx.x / 32; row < args.rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const int head = static_cast<int>(row % args.heads);
    const int token = static_cast<int>(row / args.heads % args.tokens);
    const std::int64_t batch = row / args.heads / args.tokens;
    const auto* values =
        static_cast<const Partial*>(args.partial_out) + batch * po[1] + token * po[2] + head * po[3];
    const Weights weights(args.partial_lse + batch * pl[1] + head * pl[2] + token * pl[3], pl[0], args.count);
    const float lse = weights.sum == 0 ? -INFINITY : weights.base + logf(weights.sum);
    float factor = weights.sum == 0 ? 0 : 1 / weights.sum;
    if (args.sink != nullptr && weights.sum != 0) factor /= 1 + expf(__ldg(args.sink + head) - lse);
    auto* out = static_cast<Element*>(args.out) + batch * args.out_strides[0] + token * args.out_strides[1] +
                head * args.out_strides[2];
    for (int column = lane * kPack; column < args.v_dim; column += 32 * kPack) {
      float sums[kPack] = {};
#pragma unroll 4
      for (int i = 0; i < args.count; ++i) {
        const float weight = weights.of(i);
        const auto pack = *reinterpret_cast<const Pack<Partial, kPack>*>(values + i * po[0] + column);
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          // A part without tokens has weight 0 and does not count, whatever it holds.
          if (weight != 0) sums[j] = fmaf(weight, to_float(pack.values[j]), sums[j]);
        }
      }
      Pack<Element, kPack> merged;
#pragma unroll
      for (int j = 0; j < kPack; ++j) store(&merged.values[j], sums[j] * factor);
      *reinterpret_cast<Pack<Element, kPack>*>(out + column) = merged;
    }
    if (lane == 0) {
      args.lse[batch * args.lse_strides[0] + head * args.lse_strides[1] + token * args.lse_strides[2]] = lse;
    }
  }
}

template <class Partial, int kPack>
auto kernel_for(Dtype out) {
  return out == Dtype::kBF16  ? combine_halves_kernel<Partial, __nv_bfloat16, kPack>
         : out == Dtype::kF16 ? combine_halves_kernel<Partial, __half, kPack>
                              : combine_halves_kernel<Partial, float, kPack>;
}

/// Can rows be loaded and stored `pack` elements at a time?
bool goes_in_packs(const ConstTensorView& view, int pack) {
  if (view.shape[view.rank - 1] % pack != 0) return false;
  const std::uintptr_t bytes = static_cast<std::uintptr_t>(pack) * size_of(view.dtype);
  if (reinterpret_cast<std::uintptr_t>(view.data) % bytes != 0) return false;
  return std::all_of(view.strides.begin(), view.strides.begin() + view.rank - 1,
                     [pack](std::int64_t stride) { return stride % pack == 0; });
}

}  // namespace

Status combine_halves(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
                      const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
                      const Executor& executor) {
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(int units, multiprocessors(executor.device));
  const CombineArguments args(partial_out, partial_lse, attn_sink, out, lse);
  if (args.rows == 0) return {};
  LaunchShape shape;
  shape.blocks = static_cast<int>(std::min<std::int64_t>((args.rows + kWarps - 1) / kWarps, units * 16LL));
  shape.threads = kWarps * 32;
  const bool packs = goes_in_packs(partial_out, 8) && goes_in_packs(out, 8);
  if (partial_out.dtype == Dtype::kBF16) {
    auto* kernel = packs ? kernel_for<__nv_bfloat16, 8>(out.dtype) : kernel_for<__nv_bfloat16, 1>(out.dtype);
    return launch(kernel, shape, executor, args);
  }
  auto* kernel = packs ? kernel_for<__half, 8>(out.dtype) : kernel_for<__half, 1>(out.dtype);
  return launch(kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
