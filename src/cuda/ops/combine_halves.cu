// Merges partial results of 16 bits, as ranks exchange them: few parts, long rows. A thread has a pack of a
// row; the packs and lse of some parts are one trip to memory.
#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/host/combine_arguments.h"
#include "cuda/host/launch.h"
#include "cuda/host/runtime.h"
#include "cuda/sm90/merge/halves_merge.cuh"

namespace flashlatent::cuda {

namespace combining_halves {

namespace {

constexpr int kThreads = 128;
constexpr int kParts = 4;  // whose loads are under way together

/// So many rows, each by so many threads.
struct RowsOfCta {
  int rows, threads;

  RowsOfCta(int v_dim, int pack) {
    threads = std::clamp((v_dim + pack - 1) / pack, 1, kThreads);
    rows = kThreads / threads;
  }
};

template <class Partial, class Element, int kPack>
__global__ void __launch_bounds__(kThreads)
    combine_halves_kernel(const __grid_constant__ CombineArguments args, RowsOfCta shape) {
  const auto& po = args.partial_out_strides;
  const auto& pl = args.partial_lse_strides;
  const int in_cta = static_cast<int>(threadIdx.x) / shape.threads;
  const int first = static_cast<int>(threadIdx.x) % shape.threads * kPack;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  if (in_cta >= shape.rows) return;
  for (std::int64_t row = std::int64_t{blockIdx.x} * shape.rows + in_cta; row < args.rows;
       row += std::int64_t{gridDim.x} * shape.rows) {
    const int head = static_cast<int>(row % args.heads);
    const int token = static_cast<int>(row / args.heads % args.tokens);
    const std::int64_t batch = row / args.heads / args.tokens;
    const auto* values =
        static_cast<const Partial*>(args.partial_out) + batch * po[1] + token * po[2] + head * po[3];
    const float* lses = args.partial_lse + batch * pl[1] + head * pl[2] + token * pl[3];
    const float sink = args.sink != nullptr ? __ldcg(args.sink + head) : 0;
    auto* out = static_cast<Element*>(args.out) + batch * args.out_strides[0] + token * args.out_strides[1] +
                head * args.out_strides[2];
    // A row without values still has an lse.
    for (int column = first; column < max(args.v_dim, 1); column += shape.threads * kPack) {
      sm90::HalvesMerge<Partial, kPack> merge;
      for (int begin = 0; begin < args.count; begin += kParts) {
        sm90::Pack<Partial, kPack> packs[kParts];
        float lse[kParts];
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          const int part = begin + i < args.count ? begin + i : begin;
          if (args.v_dim > 0) packs[i] = sm90::load_pack<Partial, kPack>(values + part * po[0] + column);
          lse[i] = __ldcg(lses + part * pl[0]);
        }
#pragma unroll
        for (int i = 0; i < kParts; ++i) lse[i] = begin + i < args.count ? lse[i] : -INFINITY;
        merge.add(packs, lse);
      }
      if (args.v_dim > 0) {
        *reinterpret_cast<sm90::Pack<Element, kPack>*>(out + column) =
            merge.template merged<Element>(args.sink != nullptr, sink);
      }
      if (column == 0) {
        args.lse[batch * args.lse_strides[0] + head * args.lse_strides[1] + token * args.lse_strides[2]] =
            merge.lse();
      }
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

}  // namespace combining_halves

Status combine_halves(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
                      const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
                      const Executor& executor) {
  using namespace combining_halves;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(int units, multiprocessors(executor.device));
  const CombineArguments args(partial_out, partial_lse, attn_sink, out, lse);
  if (args.rows == 0) return {};
  const bool packs = goes_in_packs(partial_out, 8) && goes_in_packs(out, 8);
  const RowsOfCta rows(args.v_dim, packs ? 8 : 1);
  LaunchShape shape;
  shape.blocks = static_cast<int>(std::min<std::int64_t>((args.rows - 1) / rows.rows + 1, units * 16LL));
  shape.threads = kThreads;
  shape.overlaps_previous = true;
  if (partial_out.dtype == Dtype::kBF16) {
    auto* kernel = packs ? kernel_for<__nv_bfloat16, 8>(out.dtype) : kernel_for<__nv_bfloat16, 1>(out.dtype);
    return launch(kernel, shape, executor, args, rows);
  }
  auto* kernel = packs ? kernel_for<__half, 8>(out.dtype) : kernel_for<__half, 1>(out.dtype);
  return launch(kernel, shape, executor, args, rows);
}

}  // namespace flashlatent::cuda
