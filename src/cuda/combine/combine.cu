#include "cuda/combine/combine.h"

#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/cuda_backend.h"
#include "cuda/parts/merge_units.cuh"
#include "plan/shares.h"

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

/// Eight warps at a time. How many merges there are, and of how many parts, only the device knows.
enum class Share {
  kParts,    ///< 128 columns of one row; the warps share its parts and add up in shared memory. Few rows,
             ///< and in any case rows of many parts.
  kColumns,  ///< 128 columns of eight rows, a warp each. Many parts a row.
  kAtOnce,   ///< The same for few rows: registers for twice as many parts in one trip to memory.
  kRows,     ///< 256 columns of eight rows, a warp each. Few parts a row.
};
constexpr int kWarps = 8;
using parts::kUnitColumns;
using LongMerges = parts::LongMerges<kWarps>;

struct CombineUnit {
  int columns;  // the first, counted in those of a unit
  int row;      // first row of the tile
  int lane;
  int merge;
};

/// The units of a tile, of so many columns and rows each.
struct UnitsOfTile {
  Divisor columns, rows;  // how many there are
  int unit_rows;

  UnitsOfTile(int v_dim, int tile_rows, int unit_columns, int unit_rows)
      : columns((v_dim + unit_columns - 1) / unit_columns),
        rows(tile_rows / unit_rows),
        unit_rows(unit_rows) {}

  __device__ __forceinline__ int count() const { return columns.value * rows.value; }
  __device__ __forceinline__ CombineUnit at(const Divisor& lanes, int index) const {
    const int row_index = columns.quotient(index), lane_index = rows.quotient(row_index);
    return {columns.remainder(index), rows.remainder(row_index) * unit_rows, lanes.remainder(lane_index),
            lanes.quotient(lane_index)};
  }
};

/// How the kernel shares out its work.
struct CombineShape {
  int v_dim;
  UnitsOfTile by_cta, by_warps;
};

/// CTAs a multiprocessor, which limits registers: the 512 units of 128 rows are done in one wave.
constexpr int kResidentCtas = 4;
template <Share kShare>
constexpr int kResident = kShare == Share::kAtOnce ? 2 : kResidentCtas;

/// Parts that a warp adds in one trip to memory.
template <Share kShare>
constexpr int kPartsAWarp = kShare == Share::kRows     ? 3
                            : kShare == Share::kAtOnce ? 16
                                                       : 8;

/// Parts of a row that a warp of a CTA has under way: of 66 parts eight warps have 9 at most. (A warp alone
/// takes 8 at once: with 9, which 8 requests have, they take 0.5 us longer.)
constexpr int kPartsAtOnce = 9;

/// How many times 128 columns a warp merges at once.
template <Share kShare>
constexpr int kColumnUnitsAWarp = kShare == Share::kRows ? 2 : 1;

/// What tells what is merged.
enum class Told {
  kByPlan,
  kByShapes,    ///< Parts are even (schedule::kEven).
  kByRequests,  ///< Each has a merge in the plan (schedule::kByLength).
};

template <class Element, Share kShare, Told kTold>
__global__ void __launch_bounds__(kWarps * 32, kResident<kShare>)
    combine_plan_kernel(const __grid_constant__ parts::DecodeArguments args,
                        const __grid_constant__ CombineShape shape) {
  __shared__ parts::WarpMerges<kWarps, 1> warp_merges;
  __shared__ LongMerges long_merges;
  const schedule::Geometry& g = args.geometry;
  const int warp = threadIdx.x / 32;
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  // The plan was there before the launch that this one overlaps let it begin.
  const int merges = kTold != Told::kByPlan ? g.requests : args.plan_header->merges;
  auto merge_at = [&](int i) {
    return kTold == Told::kByShapes ? schedule::even_merge(g, i) : args.merges[i];
  };
  // Where nothing was split one CTA waits for the launch before, so that this one ends after it. If all did,
  // a call would take 0.5 to 1.1 us longer.
  if (merges == 0 && blockIdx.x > 0) return;
  constexpr bool by_ctas = kShare == Share::kParts;
  // Not where a request must not feel its batch-mates: CTAs add in another order, and take so many requests.
  const bool finds_long = !by_ctas && kTold == Told::kByPlan && g.fixed_split == 0;
  auto meet = [] { __syncthreads(); };
  if (finds_long) long_merges.find(args, meet);

  const bool takes_long = finds_long && long_merges.listed();
  const int v_dim = shape.v_dim;
  constexpr int kUnits = kColumnUnitsAWarp<kShare>;
  // The first unit's item is looked up before that launch is done.
  const int begin = blockIdx.x;
  const int first = (by_ctas ? shape.by_cta : shape.by_warps).at(args.lanes, begin).merge;
  const schedule::Merge first_merge = first < merges ? merge_at(first) : schedule::Merge{};
  cudaGridDependencySynchronize();

  // Rows by CTAs: all, or those of many parts.
  const int by_cta = by_ctas ? merges : takes_long ? long_merges.count : 0;
  for (int index = blockIdx.x; index < by_cta * g.lanes * shape.by_cta.count(); index += gridDim.x) {
    const CombineUnit unit = shape.by_cta.at(args.lanes, index);
    const schedule::Merge merge = !by_ctas         ? args.merges[long_merges.merges[unit.merge]]
                                  : index == begin ? first_merge
                                                   : merge_at(unit.merge);
    const parts::RowTile tile = parts::row_tile(args, merge.request, merge.round, unit.lane);
    if (unit.row >= tile.rows) continue;
    parts::merge_by_cta<Element, kWarps, 1, by_ctas ? kPartsAtOnce : 8>(
        args, tile, unit.row, unit.columns * kUnitColumns,
        parts::parts_of(args, merge, unit.lane, unit.row, v_dim), v_dim, warp_merges, meet);
  }
  if constexpr (!by_ctas) {
    // The others by warps.
    const int units = merges * g.lanes * shape.by_warps.count();
    for (int index = blockIdx.x; index < units; index += gridDim.x) {
      const CombineUnit unit = shape.by_warps.at(args.lanes, index);
      const schedule::Merge merge = index == begin ? first_merge : merge_at(unit.merge);
      if (takes_long && LongMerges::is_long(g, merge)) continue;
      const parts::RowTile tile = parts::row_tile(args, merge.request, merge.round, unit.lane);
      const int row = unit.row + warp;
      if (row >= tile.rows) continue;
      const parts::RowParts parts = parts::parts_of(args, merge, unit.lane, row, v_dim);
      parts::merge_by_warp<Element, kUnits, kPartsAWarp<kShare>>(
          args, tile, row, unit.columns * kUnits * kUnitColumns, parts, v_dim);
    }
  }
}

template <Share kShare, Told kTold>
Status launch_combine(const parts::DecodeArguments& args, Dtype dtype, int v_dim, int blocks,
                      const Executor& executor) {
  LaunchShape shape;
  shape.blocks = blocks;
  shape.threads = kWarps * 32;
  shape.overlaps_previous = true;
  auto* kernel = dtype == Dtype::kBF16 ? combine_plan_kernel<__nv_bfloat16, kShare, kTold>
                                       : combine_plan_kernel<__half, kShare, kTold>;
  const int tile_rows = args.geometry.tile_rows;
  const CombineShape units = {
      v_dim, UnitsOfTile(v_dim, tile_rows, kUnitColumns, 1),
      UnitsOfTile(v_dim, tile_rows, kUnitColumns * kColumnUnitsAWarp<kShare>, kWarps)};
  return launch(kernel, shape, executor, args, units);
}
template <Share kShare>
Status launch_combine(const parts::DecodeArguments& args, Dtype dtype, int v_dim, int blocks,
                      const Executor& executor) {
  const std::int32_t whole = args.geometry.whole;
  if (whole == schedule::kByLength) {
    return launch_combine<kShare, Told::kByRequests>(args, dtype, v_dim, blocks, executor);
  }
  if constexpr (kShare != Share::kAtOnce) {  // which is for even parts, and those by length
    if (whole != schedule::kEven)
      return launch_combine<kShare, Told::kByPlan>(args, dtype, v_dim, blocks, executor);
  }
  return launch_combine<kShare, Told::kByShapes>(args, dtype, v_dim, blocks, executor);
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
  const schedule::Geometry& g = args.geometry;
  const std::int64_t resident = std::int64_t{multiprocessors} * kResidentCtas;
  const std::int64_t columns = (v_dim + kUnitColumns - 1) / kUnitColumns;
  // More CTAs than that would begin when others end, and wait for memory all over again.
  auto blocks = [&](std::int64_t units) { return static_cast<int>(std::min(units, resident)); };
  // As few as that may have twice the registers: all their parts come in one trip, or by length in few.
  const bool at_once = g.whole >= schedule::kEven && rows / kWarps * columns <= 2LL * multiprocessors &&
                       g.parts > 8LL * g.requests;
  const bool in_one_trip = at_once && schedule::even_shares(g) <= kPartsAWarp<Share::kAtOnce>;
  // Not where a request must not feel its batch-mates: this adds in another order than the two below.
  // Two waves of CTAs take longer than two trips of a warp.
  if (g.fixed_split == 0 && rows * columns <= (at_once ? 1 : 2) * resident && !in_one_trip) {
    return launch_combine<Share::kParts>(args, dtype, v_dim, blocks(rows * columns), executor);
  }
  if (at_once) {
    return launch_combine<Share::kAtOnce>(args, dtype, v_dim, blocks(rows / kWarps * columns), executor);
  }
  // Few requests have many parts each: 8 at 128 heads take 0.037 ms so, and 0.041 by rows. Where a request
  // must not feel its batch-mates all are merged so: by rows sums are in another order.
  if (g.fixed_split > 0 || g.parts >= 4LL * g.requests * g.rounds) {
    return launch_combine<Share::kColumns>(args, dtype, v_dim, blocks(rows / kWarps * columns), executor);
  }
  constexpr int kUnits = kColumnUnitsAWarp<Share::kRows>;
  return launch_combine<Share::kRows>(args, dtype, v_dim,
                                      blocks(rows / kWarps * ((columns + kUnits - 1) / kUnits)), executor);
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
