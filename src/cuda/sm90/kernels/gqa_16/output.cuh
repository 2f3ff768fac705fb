// Merges the warps' results of a tile, and writes the output or a partial result. A warp takes a row, a lane
// four of its elements.
//
// A team (the CTAs of a cluster that share a segment's blocks) merges without a trip to memory. CTAs own rows
// round-robin. Each CTA sends its warps' sum of a row to the owner's shared memory, whose barrier counts the
// bytes: one trip through the cluster's network, without a request and without a barrier at the end.
#pragma once

#include "cuda/sm90/kernels/gqa_16/attention.cuh"
#include "cuda/sm90/kernels/gqa_16/prefix.cuh"
#include "cuda/sm90/kernels/gqa_16/splits.cuh"
#include "cuda/sm90/kernels/gqa_16/steps.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/walk/segments.cuh"

namespace flashlatent::gqa_16 {

inline constexpr int kMaxSharedBytes = 227 * 1024;

/// A segment, as a warp sees it.
struct Job {
  schedule::Segment segment;
  sm90::RowTile tile;
  int length;  // of the request
  prefix::Share prefix;
  StepRange range;
  TokenSpan seen_by_some;  // RowTile
};

template <class Config>
struct SharedMemory {
  alignas(1024) std::uint8_t stages[Config::kWarps][Config::kStages * Config::kStageBytes];
  alignas(16) std::uint8_t outputs[Config::kWarps][Config::kOutputsApart ? Config::kOutputBytes : 16];
  ptx::Barrier full[Config::kWarps][Config::kStages];
  int output_of[Config::kWarps];  // where a warp's outputs are, from this struct's begin
  float maxima[Config::kWarps][Config::kColumns];
  float sums[Config::kWarps][Config::kColumns];
  KeptSegment kept[kMostKept];
  // A team: what each rank sent for this CTA's rows, and their maxima and sums.
  alignas(16) float inbox[Config::kColumns * Config::kDim];
  float2 inbox_statistics[Config::kColumns];
  ptx::Barrier inbox_full;
};

/// A warp's role in a CTA: its tile, and its number among the tile's warps.
struct Role {
  int warp, tile, turn;
  int tiles, turns;
};
template <class Config>
__device__ __forceinline__ Role role_of(const Arguments& args) {
  const int warp = threadIdx.x / 32, tiles = args.tiles_a_cta, bits = __ffs(tiles) - 1;
  return {warp, warp & (tiles - 1), warp >> bits, tiles, Config::kWarps >> bits};
}

/// Is the result kept until the request's prefix is computed?
__device__ __forceinline__ bool keeps(const Job& job) {
  return job.prefix.splits > 0 && job.segment.block_begin == 0;
}

/// Four elements of a row, not normalised, and the row's statistics; the maximum is in base 2.
struct RowSums {
  float max, sum;
  float4 x;
};

/// Adds `count` results: `statistics(i)` gives a result's maximum and sum, `values(i)` its elements.
template <class Statistics, class Values>
__device__ __forceinline__ RowSums add_up(int count, Statistics statistics, Values values) {
  RowSums all{-INFINITY, 0, make_float4(0, 0, 0, 0)};
#pragma unroll 4
  for (int i = 0; i < count; ++i) all.max = fmaxf(all.max, statistics(i).x);
  const float base = sm90::finite_or_zero(all.max);
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float2 row = statistics(i);
    const float4 x = values(i);
    const float weight = sm90::exp2_fast(row.x - base);
    all.sum += weight * row.y;
    all.x.x += weight * x.x;
    all.x.y += weight * x.y;
    all.x.z += weight * x.z;
    all.x.w += weight * x.w;
  }
  return all;
}

/// Normalises four elements and writes them to the output or to a partial result.
template <class Config>
__device__ __forceinline__ void write(const Arguments& args, const Job& job, int lane, int row, int column,
                                      const RowSums& sums) {
  const sm90::DecodeArguments& decode = args.decode;
  const sm90::RowTile& tile = job.tile;
  const float* scale = args.values.scale;
  const sm90::RowScale row_scale = sm90::finish_row(sums.max, sums.sum);
  float factor = row_scale.factor;
  if (scale != nullptr) factor *= __ldg(scale + tile.kv_head * args.values.scale_stride);
  if (job.segment.partial >= 0 || keeps(job)) {
    const PartialRows partial = partial_row<Config>(args, job.segment, tile, lane, row);
    *reinterpret_cast<float4*>(partial.out + column) =
        make_float4(sums.x.x * factor, sums.x.y * factor, sums.x.z * factor, sums.x.w * factor);
    if (column == 0) *partial.lse = row_scale.lse;
    return;
  }
  const sm90::OutputArguments& output = decode.output;
  const int token = tile.token(decode.query, row), head = tile.head(decode.query, row);
  if (output.sink != nullptr) factor *= sm90::sink_factor(row_scale.lse, __ldg(output.sink + head));
  GivenBits* to = static_cast<GivenBits*>(output.out) + tile.origin * output.batch_stride +
                  token * output.token_stride + head * output.head_stride + column;
  auto* out = reinterpret_cast<std::uint32_t*>(to);
  out[0] = pack_given<Config>(args, sums.x.x * factor, sums.x.y * factor);
  out[1] = pack_given<Config>(args, sums.x.z * factor, sums.x.w * factor);
  if (column == 0) sm90::write_lse(output, tile, head, token, row_scale.lse);
}

/// The sum of this CTA's warps for a row of `tile`.
template <class Config>
__device__ __forceinline__ RowSums merge_warps(const SharedMemory<Config>& shared, const Role& role, int row,
                                               int column) {
  auto warp_of = [&](int i) { return role.tile + i * role.tiles; };
  return add_up(
      role.turns,
      [&](int i) { return make_float2(shared.maxima[warp_of(i)][row], shared.sums[warp_of(i)][row]); },
      [&](int i) {
        const auto* outputs = reinterpret_cast<const float*>(reinterpret_cast<const std::uint8_t*>(&shared) +
                                                             shared.output_of[warp_of(i)]);
        return *reinterpret_cast<const float4*>(outputs + Config::output_at(row, column));
      });
}

/// Calls the function for the rows `first`, `first + step`, ... of the tile that this warp has, with each
/// four elements that this lane has.
template <class Function>
__device__ __forceinline__ void for_own_elements(const Arguments& args, const Job& job, const Role& role,
                                                 int first, int step, Function function) {
  for (int row = first + role.turn * step; row < job.tile.rows; row += role.turns * step) {
    for (int column = threadIdx.x % 32 * 4; column < args.dim; column += 128) function(row, column);
  }
}

/// Writes the tile's result, without a team. All warps have written their outputs.
template <class Config>
__device__ __forceinline__ void merge(const SharedMemory<Config>& shared, const Arguments& args,
                                      const Job& job, const Role& role, int lane) {
  for_own_elements(args, job, role, 0, 1, [&](int row, int column) {
    write<Config>(args, job, lane, row, column, merge_warps(shared, role, row, column));
  });
}

/// The place in the owner's inbox for a row from CTA `rank` of a team; the owner is CTA row % team. There is
/// room for all rows of a tile.
__device__ __forceinline__ int inbox_place(int team, int row, int rank) {
  return row / team * team + rank;
}

/// Writes the tile's result by a team, which has one tile and one segment.
template <class Config>
__device__ __forceinline__ void merge_team(SharedMemory<Config>& shared, const Arguments& args,
                                           const Job& job, const Role& role, int lane) {
  const int team = args.team, rank = static_cast<int>(ptx::rank_in_cluster());
  ptx::cluster_wait();  // all CTAs have begun
  for_own_elements(args, job, role, 0, 1, [&](int row, int column) {
    const RowSums sums = merge_warps(shared, role, row, column);
    const int place = inbox_place(team, row, rank), owner = row & (team - 1);
    const std::uint32_t full = ptx::address_in(owner, &shared.inbox_full);
    ptx::send(ptx::address_in(owner, &shared.inbox[place * Config::kDim + column]), sums.x, full);
    if (column == 0) {
      ptx::send(ptx::address_in(owner, &shared.inbox_statistics[place]), make_float2(sums.max, sums.sum),
                full);
    }
  });
  const int rows = (max(job.tile.rows - rank, 0) + team - 1) / team;
  if (rows == 0) return;
  if (threadIdx.x == 0) {
    ptx::arrive_expecting(shared.inbox_full, rows * team * (args.dim * sizeof(float) + sizeof(float2)));
  }
  ptx::wait_for_cluster(shared.inbox_full, 0);
  for_own_elements(args, job, role, rank, team, [&](int row, int column) {
    const int first = inbox_place(team, row, 0);
    const RowSums sums = add_up(
        team, [&](int i) { return shared.inbox_statistics[first + i]; },
        [&](int i) {
          return *reinterpret_cast<const float4*>(&shared.inbox[(first + i) * Config::kDim + column]);
        });
    write<Config>(args, job, lane, row, column, sums);
  });
}

}  // namespace flashlatent::gqa_16
