#include "cuda/combine/combine.h"

#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/cuda_backend.h"
#include "cuda/parts/merge.cuh"

namespace flashlatent::cuda {

namespace {

constexpr int kThreads = 128;

template <class Element>
__device__ Element from_float(float x);
template <>
__device__ __nv_bfloat16 from_float(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __half from_float(float x) {
  return __float2half_rn(x);
}
template <>
__device__ float from_float(float x) {
  return x;
}

/// One CTA a row, striding over the rows of all merges; how many there are only the device knows.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    combine_plan_kernel(const __grid_constant__ parts::DecodeArguments args, int v_dim) {
  cudaGridDependencySynchronize();
  const int lanes = args.geometry.lanes;
  const int tile_rows = args.geometry.tile_rows;
  const int units = args.plan_header->merges * lanes * tile_rows;
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const schedule::Merge merge = args.merges[unit / (lanes * tile_rows)];
    const int lane = unit / tile_rows % lanes;
    const int row = unit % tile_rows;
    const parts::RowTile tile = parts::row_tile(args, merge.request, merge.round, lane);
    if (row >= tile.rows) continue;
    const std::int64_t first = (static_cast<std::int64_t>(merge.slot_begin) * lanes + lane) * tile_rows + row;
    const parts::RowParts parts{args.partial.out + first * v_dim, args.partial.lse + first,
                                static_cast<std::int64_t>(lanes) * tile_rows * v_dim,
                                static_cast<std::int64_t>(lanes) * tile_rows,
                                merge.slot_end - merge.slot_begin};
    const parts::OutputArguments& output = args.output;
    const int token = tile.token(args.query, row);
    const int head = tile.head(args.query, row);
    Element* out = static_cast<Element*>(output.out) + merge.request * output.batch_stride +
                   token * output.token_stride + head * output.head_stride;
    const float* sink = output.sink == nullptr ? nullptr : output.sink + head;
    const float lse = parts::merge_row<kThreads>(
        parts, v_dim, sink, [&](int column, float x) { out[column] = from_float<Element>(x); });
    if (threadIdx.x == 0) {
      output.lse[merge.request * output.lse_batch_stride + head * output.lse_head_stride +
                 token * output.lse_token_stride] = lse;
    }
  }
}

struct CombineArguments {
  const float* partial_out;
  const float* partial_lse;
  const float* sink;
  void* out;
  float* lse;
  std::int64_t partial_out_strides[4];  // part, batch, token, head
  std::int64_t partial_lse_strides[4];  // part, batch, head, token
  std::int64_t out_strides[3];          // batch, token, head
  std::int64_t lse_strides[3];          // batch, head, token
  std::int64_t rows;                    // batch * tokens * heads
  int tokens, heads, v_dim, count;
};

template <class Element>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ CombineArguments args) {
  for (std::int64_t i = blockIdx.x; i < args.rows; i += gridDim.x) {
    const int head = static_cast<int>(i % args.heads);
    const int token = static_cast<int>(i / args.heads % args.tokens);
    const std::int64_t batch = i / args.heads / args.tokens;
    const auto& po = args.partial_out_strides;
    const auto& pl = args.partial_lse_strides;
    const parts::RowParts parts{args.partial_out + batch * po[1] + token * po[2] + head * po[3],
                                args.partial_lse + batch * pl[1] + head * pl[2] + token * pl[3], po[0], pl[0],
                                args.count};
    Element* out = static_cast<Element*>(args.out) + batch * args.out_strides[0] +
                   token * args.out_strides[1] + head * args.out_strides[2];
    const float lse =
        parts::merge_row<kThreads>(parts, args.v_dim, args.sink == nullptr ? nullptr : args.sink + head,
                                   [&](int column, float x) { out[column] = from_float<Element>(x); });
    if (threadIdx.x == 0) {
      args.lse[batch * args.lse_strides[0] + head * args.lse_strides[1] + token * args.lse_strides[2]] = lse;
    }
  }
}

}  // namespace

Status combine_plan(const parts::DecodeArguments& args, Dtype dtype, int v_dim, int multiprocessors,
                    const Executor& executor) {
  const std::int64_t rows =
      schedule::max_merges(args.geometry) * args.geometry.lanes * args.geometry.tile_rows;
  if (rows == 0) return {};
  LaunchShape shape;
  shape.blocks = static_cast<int>(std::min<std::int64_t>(rows, multiprocessors * 16LL));
  shape.threads = kThreads;
  shape.overlaps_previous = true;
  auto* kernel = dtype == Dtype::kBF16 ? combine_plan_kernel<__nv_bfloat16> : combine_plan_kernel<__half>;
  return launch(kernel, shape, executor, args, v_dim);
}

Status combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
               const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
               const Executor& executor) {
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Result<int> units = multiprocessors(executor.device);
  if (!units.ok()) return units.status();
  CombineArguments args = {};
  args.partial_out = static_cast<const float*>(partial_out.data);
  args.partial_lse = static_cast<const float*>(partial_lse.data);
  args.sink = attn_sink.present() ? static_cast<const float*>(attn_sink.data) : nullptr;
  args.out = out.data;
  args.lse = static_cast<float*>(lse.data);
  std::copy_n(partial_out.strides.begin(), 4, args.partial_out_strides);
  std::copy_n(partial_lse.strides.begin(), 4, args.partial_lse_strides);
  std::copy_n(out.strides.begin(), 3, args.out_strides);
  std::copy_n(lse.strides.begin(), 3, args.lse_strides);
  args.rows = out.shape[0] * out.shape[1] * out.shape[2];
  args.count = static_cast<int>(partial_out.shape[0]);
  args.tokens = static_cast<int>(out.shape[1]);
  args.heads = static_cast<int>(out.shape[2]);
  args.v_dim = static_cast<int>(out.shape[3]);
  if (args.rows == 0) return {};
  LaunchShape shape;
  shape.blocks = static_cast<int>(std::min<std::int64_t>(args.rows, *units * 16LL));
  shape.threads = kThreads;
  auto* kernel = out.dtype == Dtype::kBF16  ? combine_kernel<__nv_bfloat16>
                 : out.dtype == Dtype::kF16 ? combine_kernel<__half>
                                            : combine_kernel<float>;
  return launch(kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
