#include "cuda/host/combine.h"

#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/host/combine_arguments.h"
#include "cuda/host/launch.h"
#include "cuda/sm90/merge/merge_units.cuh"
#include "cuda/sm90/walk/leaves.cuh"
#include "plan/even_shares.h"

namespace flashlatent::cuda {

namespace combining {

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

/// How a CTA of eight warps divides rows: kWarpsARow warps add up the parts (partial results) of a row, each
/// kUnits units of columns; several warps add in shared memory. Only the device knows how many merges there
/// are, and of how many parts.
template <int kWarpsARow_, int kUnits_, int kParts_, int kResident_>
struct Share {
  static constexpr int kWarpsARow = kWarpsARow_;
  static constexpr int kUnits = kUnits_;  // units of columns of a warp
  static constexpr int kParts = kParts_;  // parts whose loads a warp has in flight together
  // CTAs on a multiprocessor at the same time, which limits registers
  static constexpr int kResident = kResident_;
};
// One request has at most 66 parts, so each of eight warps has 9 at most. If there are more rows of fewer
// parts, more CTAs with fewer registers merge them in one wave. A lone warp takes 8 parts at a time: with 9,
// calls of 8 requests take 0.5 us longer.
using RowByAll = Share<8, 1, 9, 3>;
using RowOfFewByAll = Share<8, 1, 5, 4>;
using RowByWarp = Share<1, 1, 8, 3>;
using FewPartsByWarp = Share<1, 2, 3, 4>;
// From fp16, whose units are twice as many columns: half as many CTAs merge 128 rows in one wave.
using HalvesByAll = Share<8, 1, 9, 2>;
using HalvesByFour = Share<4, 1, 9, 2>;
using HalvesByTwo = Share<2, 1, 9, 2>;
using HalvesByWarp = Share<1, 1, 8, 2>;
using FewHalvesByWarp = Share<1, 1, 3, 4>;

constexpr int kWarps = 8;
using sm90::kUnitColumns;
using LongMerges = sm90::LongMerges<kWarps>;

struct CombineUnit {
  int columns;  // its first column, in units
  int row;      // its first row in the tile
  int lane;
  int merge;
};

/// The units of a tile: each is some columns of some rows.
struct UnitsOfTile {
  Divisor columns, rows;  // the number of units in each direction
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

/// How the kernel divides its work.
struct CombineShape {
  int v_dim;
  UnitsOfTile units, units_of_rows;  // `units_of_rows`: units whose rows all warps of a CTA share
};

/// How the kernel finds what to merge.
enum class Told {
  kByPlan,
  kByShapes,    ///< From shapes: each request has the same number of parts (kEvenShares).
  kByRequests,  ///< Each request has a merge in the plan (kSharesByLength).
};

/// kTokens: see sm90::row_tile().
template <class Element, class Stored, class Share, Told kTold, bool kTokens>
__global__ void __launch_bounds__(kWarps * 32, Share::kResident)
    combine_plan_kernel(const __grid_constant__ sm90::DecodeArguments args,
                        const __grid_constant__ CombineShape shape) {
  __shared__ sm90::WarpMerges<kWarps, 1, Stored> warp_merges;
  __shared__ LongMerges long_merges;
  const schedule::Geometry& g = args.geometry;
  const int warp = threadIdx.x / 32;
  cudaTriggerProgrammaticLaunchCompletion();  // lets the next launch take its place in the queue
  if (sm90::leaves(args)) return;
  // The plan was complete before the previous launch let this one begin.
  const int merges = kTold != Told::kByPlan ? g.requests : args.plan_header->merges;
  auto merge_at = [&](int i) {
    return kTold == Told::kByShapes ? schedule::even_merge(g, i) : args.merges[i];
  };
  // If nothing was split, one CTA waits for the previous launch, so that this launch ends after it. If all
  // CTAs waited, a call would take 0.5 to 1.1 us longer.
  if (merges == 0 && blockIdx.x > 0) return;
  // CTAs merge rows of many parts. Not with batch_invariant, because CTAs add in another order than warps,
  // and the batch decides which of them merge.
  const bool finds_long = Share::kWarpsARow == 1 && kTold == Told::kByPlan && g.fixed_split == 0;
  auto meet = [] { __syncthreads(); };
  if (finds_long) long_merges.find(args, meet);

  const bool takes_long = finds_long && long_merges.listed();
  using Row = sm90::MergedRow<Element, Stored>;
  const auto row_of = [&](const CombineUnit& unit, const schedule::Merge& merge, int warps_a_row) {
    const sm90::RowTile tile = sm90::row_tile<kTokens>(args, merge.request, merge.round, unit.lane);
    return Row::find(args, merge, tile, unit.lane, unit.row + warp / warps_a_row, shape.v_dim);
  };
  // The row of unit number `index`; an empty row if there is no such unit, or if all warps share it.
  const auto find_row = [&](int index) {
    const CombineUnit unit = shape.units.at(args.lanes, index);
    if (unit.merge >= merges) return Row{};
    const schedule::Merge merge = merge_at(unit.merge);
    if (takes_long && LongMerges::is_long(g, merge)) return Row{};
    return row_of(unit, merge, Share::kWarpsARow);
  };
  // Everything about the first row but its values is known before the previous launch is done.
  const int begin = blockIdx.x;
  Row row = find_row(begin);
  cudaGridDependencySynchronize();

  if (takes_long) {
    for (int index = begin; index < long_merges.count * g.lanes * shape.units_of_rows.count();
         index += gridDim.x) {
      const CombineUnit unit = shape.units_of_rows.at(args.lanes, index);
      sm90::merge_by_sharers<kWarps, Share::kParts>(
          row_of(unit, args.merges[long_merges.merges[unit.merge]], kWarps),
          unit.columns * kUnitColumns<Stored>, shape.v_dim, warp_merges, meet);
    }
  }
  for (int index = begin; index < merges * g.lanes * shape.units.count(); index += gridDim.x) {
    if (index > begin) row = find_row(index);
    const int column = shape.units.columns.remainder(index) * Share::kUnits * kUnitColumns<Stored>;
    if constexpr (Share::kWarpsARow > 1) {
      sm90::merge_by_sharers<Share::kWarpsARow, Share::kParts>(row, column, shape.v_dim, warp_merges, meet);
    } else if (row.parts.count > 0) {
      sm90::merge_by_warp<Share::kUnits, Share::kParts>(row, column, shape.v_dim);
    }
  }
}

/// The most that there may be to merge.
struct RowsToMerge {
  std::int64_t rows;  // of all tiles
  int v_dim;
  int multiprocessors;

  template <class Stored, class Share>
  std::int64_t ctas() const {
    constexpr int kColumns = Share::kUnits * kUnitColumns<Stored>;
    return rows * Share::kWarpsARow / kWarps * ((v_dim + kColumns - 1) / kColumns);
  }
  template <class Share>
  std::int64_t resident() const {
    return std::int64_t{multiprocessors} * Share::kResident;
  }
  /// Do all units fit into one wave of CTAs?
  template <class Stored, class Share>
  bool fits() const {
    return ctas<Stored, Share>() <= resident<Share>();
  }
};

template <class Element, class Stored, class Share, Told kTold, bool kTokens = false>
Status launch_combine(const sm90::DecodeArguments& args, const RowsToMerge& work, const Executor& executor) {
  LaunchShape shape;
  // At most one wave: CTAs of a second wave would wait for memory all over again.
  shape.blocks = static_cast<int>(std::min(work.ctas<Stored, Share>(), work.resident<Share>()));
  shape.threads = kWarps * 32;
  shape.overlaps_previous = true;
  const int tile_rows = args.geometry.tile_rows;
  constexpr int kColumns = kUnitColumns<Stored>;
  const CombineShape units = {
      work.v_dim, UnitsOfTile(work.v_dim, tile_rows, Share::kUnits * kColumns, kWarps / Share::kWarpsARow),
      UnitsOfTile(work.v_dim, tile_rows, kColumns, 1)};
  return launch(combine_plan_kernel<Element, Stored, Share, kTold, kTokens>, shape, executor, args, units);
}

// With batch_invariant one warp adds all parts of a row in every batch: the number of warps decides the order
// of additions.

template <class Element>
Status combine_fp32(const sm90::DecodeArguments& args, const RowsToMerge& work, const Executor& executor) {
  const schedule::Geometry& g = args.geometry;
  if (g.fixed_split == 0 && work.fits<float, RowByAll>()) {
    return launch_combine<Element, float, RowByAll, Told::kByPlan>(args, work, executor);
  }
  if (g.fixed_split == 0 && work.fits<float, RowOfFewByAll>()) {
    return launch_combine<Element, float, RowOfFewByAll, Told::kByPlan>(args, work, executor);
  }
  if (g.fixed_split > 0 || g.parts >= 4LL * g.requests * g.rounds) {
    return launch_combine<Element, float, RowByWarp, Told::kByPlan>(args, work, executor);
  }
  return launch_combine<Element, float, FewPartsByWarp, Told::kByPlan>(args, work, executor);
}

template <class Share>
Status combine_fp16(const sm90::DecodeArguments& args, const RowsToMerge& work, const Executor& executor) {
  using Bf16 = __nv_bfloat16;
  switch (args.geometry.partition) {
    case schedule::Partition::kEvenShares:
      return launch_combine<Bf16, __half, Share, Told::kByShapes>(args, work, executor);
    case schedule::Partition::kSharesByLength:
      return launch_combine<Bf16, __half, Share, Told::kByRequests>(args, work, executor);
    default:
      return launch_combine<Bf16, __half, Share, Told::kByPlan>(args, work, executor);
  }
}

/// Gives each row as many warps as still fit into one wave.
Status combine_fp16(const sm90::DecodeArguments& args, const RowsToMerge& work, const Executor& executor) {
  const schedule::Geometry& g = args.geometry;
  if (g.fixed_split == 0) {
    if (work.fits<__half, HalvesByAll>()) return combine_fp16<HalvesByAll>(args, work, executor);
    if (work.fits<__half, HalvesByFour>()) return combine_fp16<HalvesByFour>(args, work, executor);
    if (work.fits<__half, HalvesByTwo>()) return combine_fp16<HalvesByTwo>(args, work, executor);
  }
  if (g.fixed_split > 0 || g.parts >= 4LL * g.requests * g.rounds) {
    return combine_fp16<HalvesByWarp>(args, work, executor);
  }
  return combine_fp16<FewHalvesByWarp>(args, work, executor);
}

/// For ragged requests whose query tokens are the plan's requests.
template <class Element, class Stored, class Share>
Status combine_tokens(const sm90::DecodeArguments& args, const RowsToMerge& work, const Executor& executor) {
  return launch_combine<Element, Stored, Share, Told::kByPlan, true>(args, work, executor);
}

template <class Element>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ CombineArguments args) {
  for (std::int64_t i = blockIdx.x; i < args.rows; i += gridDim.x) {
    const int head = static_cast<int>(i % args.heads);
    const int token = static_cast<int>(i / args.heads % args.tokens);
    const std::int64_t batch = i / args.heads / args.tokens;
    const auto& po = args.partial_out_strides;
    const auto& pl = args.partial_lse_strides;
    const sm90::RowParts<> parts{
        static_cast<const float*>(args.partial_out) + batch * po[1] + token * po[2] + head * po[3],
        args.partial_lse + batch * pl[1] + head * pl[2] + token * pl[3],
        nullptr,
        po[0],
        pl[0],
        args.count};
    Element* out = static_cast<Element*>(args.out) + batch * args.out_strides[0] +
                   token * args.out_strides[1] + head * args.out_strides[2];
    const float lse =
        sm90::merge_row<kThreads>(parts, args.v_dim, args.sink == nullptr ? nullptr : args.sink + head,
                                  [&](int column, float x) { out[column] = from_float<Element>(x); });
    if (threadIdx.x == 0) {
      args.lse[batch * args.lse_strides[0] + head * args.lse_strides[1] + token * args.lse_strides[2]] = lse;
    }
  }
}

}  // namespace

}  // namespace combining

Status combine_plan(const sm90::DecodeArguments& args, const DecodeProblem::Cache& cache, Partials partials,
                    const Executor& executor) {
  using namespace combining;
  const std::int64_t rows =
      schedule::max_merges(args.geometry) * args.geometry.lanes * args.geometry.tile_rows;
  if (rows == 0) return {};
  const sm90::EdgeArguments& edges = args.edges;
  if (edges.output.positions != nullptr || edges.codes != nullptr) return combine_edges(args, executor);
  FLASHLATENT_ASSIGN_OR_RETURN(const int units, multiprocessors(executor.device));
  const RowsToMerge work = {rows, cache.v_dim, units};
  using Bf16 = __nv_bfloat16;
  const bool tokens = args.query.begins != nullptr && args.sharers.value > 1;
  if (cache.dtype == Dtype::kF16) {
    return tokens ? combine_tokens<__half, float, RowByWarp>(args, work, executor)
                  : combine_fp32<__half>(args, work, executor);
  }
  static_assert(std::is_same_v<sm90::StoredPartial<Bf16, 64>, __half>);
  if (args.geometry.tile_rows == 64 && partials == Partials::kByTile) {
    return tokens ? combine_tokens<Bf16, __half, HalvesByWarp>(args, work, executor)
                  : combine_fp16(args, work, executor);
  }
  return tokens ? combine_tokens<Bf16, float, RowByWarp>(args, work, executor)
                : combine_fp32<Bf16>(args, work, executor);
}

Status combine(const ConstTensorView& partial_out, const ConstTensorView& partial_lse,
               const ConstTensorView& attn_sink, const TensorView& out, const TensorView& lse,
               const Executor& executor) {
  using namespace combining;
  if (partial_out.dtype != Dtype::kF32) {
    return combine_halves(partial_out, partial_lse, attn_sink, out, lse, executor);
  }
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(int units, multiprocessors(executor.device));
  const CombineArguments args(partial_out, partial_lse, attn_sink, out, lse);
  if (args.rows == 0) return {};
  LaunchShape shape;
  shape.blocks = static_cast<int>(std::min<std::int64_t>(args.rows, units * 16LL));
  shape.threads = kThreads;
  auto* kernel = out.dtype == Dtype::kBF16  ? combine_kernel<__nv_bfloat16>
                 : out.dtype == Dtype::kF16 ? combine_kernel<__half>
                                            : combine_kernel<float>;
  return launch(kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
