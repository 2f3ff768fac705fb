// The combine step of items in shares, with the output's edge of the layer: a warp merges 128 columns of a
// row in fp32, turns and casts them. The other combine steps are in combine.cu.
#include "cuda/host/combine.h"
#include "cuda/host/launch.h"
#include "cuda/sm90/merge/cast_columns.cuh"
#include "cuda/sm90/merge/merge_units.cuh"
#include "cuda/sm90/walk/rotated_pairs.cuh"
#include "plan/even_shares.h"

namespace flashlatent::cuda {

namespace combining_edges {

namespace {

constexpr int kVDim = 512, kColumns = edges::kScaleColumns;
constexpr int kThreads = kVDim / kColumns * 32;  // a CTA has a row
constexpr int kAtOnce = 8;                       // parts that a warp loads together
constexpr int kLaneColumns = kColumns / 32;
static_assert(sm90::kUnitColumns<float> == kColumns);

/// What a lane needs of the edges: found before there are results.
struct LaneEdge {
  edges::Angle angles[kLaneColumns / 2];
  std::uint8_t* codes;
  float* line;  // of scales
  std::int64_t token;

  __device__ __forceinline__ LaneEdge(const sm90::DecodeArguments& args, const sm90::RowTile& tile, int row,
                                      int column) {
    const sm90::EdgeArguments& to = args.edges;
    constexpr int kFirst = kVDim - sm90::kRotatedColumns;
#pragma unroll
    for (int i = 0; i < kLaneColumns / 2; ++i) {
      angles[i] =
          column < kFirst ? edges::Angle{1, 0} : sm90::angle_of(to.output, tile, (column - kFirst) / 2 + i);
    }
    const sm90::CodePlace place = sm90::CodePlace::find<kVDim>(to, tile.head(args.query, row));
    token = sm90::query_token(args, tile);
    codes =
        to.codes + token * to.code_token_stride + place.group * to.code_group_stride + place.column + column;
    line = to.scales + (std::int64_t{place.group} * to.scale_lines + (place.column + column) / kColumns) *
                           to.padded_tokens;
  }
};

__global__ void __launch_bounds__(kThreads)
    combine_edges_kernel(const __grid_constant__ sm90::DecodeArguments args) {
  cudaTriggerProgrammaticLaunchCompletion();  // lets the next launch take its place in the queue
  const schedule::Geometry& g = args.geometry;
  const int of_lane = static_cast<int>(blockIdx.x) / g.tile_rows, number = blockIdx.x % g.tile_rows;
  const int item = args.lanes.quotient(of_lane), lane_of_tiles = args.lanes.remainder(of_lane);
  // The plan, positions and tables were complete before the previous launch let this one begin.
  const schedule::Merge merge =
      g.partition == schedule::Partition::kEvenShares ? schedule::even_merge(g, item) : args.merges[item];
  const sm90::RowTile tile = sm90::row_tile<>(args, merge.request, merge.round, lane_of_tiles);
  if (number >= tile.rows) return;
  const auto row =
      sm90::MergedRow<__nv_bfloat16, float>::find(args, merge, tile, lane_of_tiles, number, kVDim);
  const int column = static_cast<int>(threadIdx.x) * kLaneColumns;
  const LaneEdge edge(args, tile, number, column);
  cudaGridDependencySynchronize();

  const auto merged = sm90::merge_parts<1, kColumns, kAtOnce>(row.parts, column, kVDim, 0, 1);
  const sm90::RowWeights weights = sm90::finish_weights(sm90::finite_or_zero(merged.base), merged.sum);
  if (column == 0) row.write_lse(weights);
  const float factor = row.factor(weights);
  float x[kLaneColumns] = {merged.out[0].x * factor, merged.out[0].y * factor, merged.out[0].z * factor,
                           merged.out[0].w * factor};
  if (args.edges.output.positions != nullptr && column >= kVDim - sm90::kRotatedColumns) {
#pragma unroll
    for (int i = 0; i < kLaneColumns / 2; ++i) {
      const float2 pair = sm90::turned(x[2 * i], x[2 * i + 1], edge.angles[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
  if (args.output.out != nullptr) {
    auto* out = reinterpret_cast<std::uint32_t*>(row.out + column);
    out[0] = sm90::pack<__nv_bfloat16>(x[0], x[1]);
    out[1] = sm90::pack<__nv_bfloat16>(x[2], x[3]);
  }
  if (args.edges.codes == nullptr) return;
  float largest = 0;
#pragma unroll
  for (float& value : x) {
    value = sm90::finite_or_nan(value);
    largest = fmaxf(largest, fabsf(value));
  }
  // Magnitudes have the order of their bits.
  largest = __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(largest)));
  const int exponent = edges::output_exponent(largest);
  const float inverse = e4m3::power_of_two(-exponent);
  *reinterpret_cast<std::uint32_t*>(edge.codes) =
      sm90::code_pair(x[0] * inverse, x[1] * inverse) | sm90::code_pair(x[2] * inverse, x[3] * inverse) << 16;
  if (threadIdx.x % 32 == 0) sm90::put_scale(args.edges, edge.line, edge.token, exponent);
}

}  // namespace

}  // namespace combining_edges

Status combine_edges(const sm90::DecodeArguments& args, const Executor& executor) {
  const schedule::Geometry& g = args.geometry;
  LaunchShape shape;
  const std::int64_t blocks = std::int64_t{g.requests} * g.lanes * g.tile_rows;
  if (blocks > kMostBlocks) return too_many_blocks(blocks);
  shape.blocks = static_cast<int>(blocks);
  shape.threads = combining_edges::kThreads;
  shape.overlaps_previous = true;
  return launch(combining_edges::combine_edges_kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
