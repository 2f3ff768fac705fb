// Decode from separate keys and values in pages, for any group of query heads (PagedAttention, arXiv
// 2309.06180). Memory is what binds: keys and values are read once, and everything else is kept small beside
// that.
//
//   warp w of kWarps: steps w, w + kWarps, ... of 16 tokens
//     cp.async, kStages - 1 steps ahead, into stages of its own: no warp waits for another
//     S^T = K Q^T, softmax, O^T += V^T P^T (attention.cuh)
//   at the segment's end warps lay down their outputs in shared memory, and all threads merge them
#pragma once

#include "cuda/paged/attention.cuh"
#include "cuda/paged/steps.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/q_loader.cuh"
#include "cuda/parts/segments.cuh"

namespace flashlatent::paged {

inline constexpr int kMaxSharedBytes = 227 * 1024;

template <class Config>
struct SharedMemory {
  std::uint8_t query[Config::kQueryBytes];
  alignas(16) std::uint8_t stages[Config::kWarps][Config::kStages * Config::kStageBytes];
  float maxima[Config::kWarps][Config::kColumns];
  float sums[Config::kWarps][Config::kColumns];
};

/// Q of a tile; rows past the last live one, and elements past the last, become 0.
template <class Config>
__device__ __forceinline__ void load_query(SharedMemory<Config>& shared, const Arguments& args,
                                           const parts::RowTile& tile) {
  using Element = typename Config::Element;
  constexpr int kUnits = Config::kDim / 8;
  for (int i = threadIdx.x; i < Config::kColumns * kUnits; i += Config::kThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (row < tile.rows && unit * 8 < args.dim) {
      value = __ldg(reinterpret_cast<const uint4*>(parts::query_row<Element>(args.decode.query, tile, row)) +
                    unit);
    }
    *reinterpret_cast<uint4*>(shared.query + row * Config::kQueryRow + unit * 16) = value;
  }
}

/// This warp's steps of a segment.
template <class Config>
__device__ __forceinline__ void attend(Attention<Config>& attention, Loader<Config>& loader,
                                       const StepRange& range) {
  constexpr int kStride = Config::kBlockTokens;
  constexpr int kAhead = Config::kStages - 1;
  const Visible visible = attention.any_visible();
  const int end = min(range.end, visible.end);
  int first = range.begin + static_cast<int>(threadIdx.x) / 32 * Config::kStepTokens;
  // With a window: steps that nobody sees are not read.
  while (first + Config::kStepTokens <= visible.begin) first += kStride;
  // Which tokens count, of the steps that are under way: 16 bits each, the next one's lowest.
  std::uint64_t live = 0;
  for (int i = 0; i < kAhead; ++i) {
    const int token = first + i * kStride;
    if (token < end) live |= static_cast<std::uint64_t>(loader.request(range, token, i)) << (16 * i);
    ptx::copy_commit();
  }
#pragma unroll 1
  for (int token = first, stage = 0, free = kAhead; token < end; token += kStride) {
    ptx::copy_wait<kAhead - 1>();
    __syncwarp();  // all lanes' copies have landed, and the stage before has been read
    const auto now = static_cast<std::uint32_t>(live & 0xffff);
    live >>= 16;
    const int ahead = token + kAhead * kStride;
    if (ahead < end) {
      live |= static_cast<std::uint64_t>(loader.request(range, ahead, free)) << (16 * (kAhead - 1));
    }
    ptx::copy_commit();
    attention.attend(token, now, stage);
    free = stage;
    stage = stage + 1 < Config::kStages ? stage + 1 : 0;
  }
  ptx::copy_wait<0>();
}

/// The warps' shares together, to the output or to a partial result. Threads take pairs of elements of a row.
template <class Config>
__device__ __forceinline__ void merge(SharedMemory<Config>& shared, const Arguments& args,
                                      const schedule::Segment& segment, const parts::RowTile& tile,
                                      int lane) {
  using Element = typename Config::Element;
  const parts::DecodeArguments& decode = args.decode;
  const float* scale = args.values.scale;
  const float value_scale = scale == nullptr ? 1.0F : __ldg(scale + tile.kv_head * args.values.scale_stride);
  const std::int64_t slot = static_cast<std::int64_t>(segment.slot) * decode.geometry.lanes + lane;
  const int pairs = args.dim / 2;
  for (int i = threadIdx.x; i < tile.rows * pairs; i += Config::kThreads) {
    const int row = i / pairs, column = i % pairs * 2;
    float max = -INFINITY;
#pragma unroll
    for (int warp = 0; warp < Config::kWarps; ++warp) max = fmaxf(max, shared.maxima[warp][row]);
    const float base = parts::finite_or_zero(max);
    float sum = 0, x = 0, y = 0;
#pragma unroll
    for (int warp = 0; warp < Config::kWarps; ++warp) {
      const float weight = parts::exp2_fast(shared.maxima[warp][row] - base);
      const auto* output =
          reinterpret_cast<const float*>(shared.stages[warp]) + row * Config::kOutputRow + column;
      sum += weight * shared.sums[warp][row];
      x += weight * output[0];
      y += weight * output[1];
    }
    const parts::RowScale row_scale = parts::finish_row(max, sum);
    float factor = row_scale.factor * value_scale;
    if (segment.slot >= 0) {
      float* out = decode.partial.out + (slot * Config::kColumns + row) * args.dim + column;
      *reinterpret_cast<float2*>(out) = make_float2(x * factor, y * factor);
      if (column == 0) decode.partial.lse[slot * Config::kColumns + row] = row_scale.lse;
      continue;
    }
    const parts::OutputArguments& output = decode.output;
    const int token = tile.token(decode.query, row), head = tile.head(decode.query, row);
    if (output.sink != nullptr) factor *= parts::sink_factor(row_scale.lse, __ldg(output.sink + head));
    Element* out = static_cast<Element*>(output.out) + tile.origin * output.batch_stride +
                   token * output.token_stride + head * output.head_stride + column;
    *reinterpret_cast<std::uint32_t*>(out) = parts::pack<Element>(x * factor, y * factor);
    if (column == 0) parts::write_lse(output, tile, head, token, row_scale.lse);
  }
}

template <class Config>
__device__ __forceinline__ void run_segment(SharedMemory<Config>& shared, const Arguments& args,
                                            const schedule::Segment& segment, const parts::RowTile& tile,
                                            int lane) {
  const int warp = threadIdx.x / 32;
  // With a window the plan knows the last max_tokens tokens alone, whose blocks begin at `origin`.
  const int stored = schedule::length_of(args.decode.geometry, args.decode.cache.lengths, segment.request);
  const int length = max(0, min(stored, args.reach));
  const int skipped = (max(0, length - args.decode.geometry.max_tokens) + Config::kBlockTokens - 1);
  const int origin = skipped / Config::kBlockTokens * Config::kBlockTokens;

  __syncthreads();  // the segment before has been merged
  load_query(shared, args, tile);
  __syncthreads();
  Attention<Config> attention(args, shared.query, shared.stages[warp]);
  Loader<Config> loader(args, shared.stages[warp]);
  attention.start(tile, length);
  const StepRange range{{args.decode.cache.entries + tile.request * args.decode.cache.entries_stride, length,
                         tile.kv_head, 0, 0},
                        origin + segment.block_begin * Config::kBlockTokens,
                        min(origin + segment.block_end * Config::kBlockTokens, length)};
  attend(attention, loader, range);
  __syncwarp();  // all lanes have read the last stage
  attention.store(reinterpret_cast<float*>(shared.stages[warp]), shared.maxima[warp], shared.sums[warp]);
  __syncthreads();
  merge(shared, args, segment, tile, lane);
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  cudaGridDependencySynchronize();            // of what the launch before may still write
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue
  parts::Segments segments(args.decode);
  for (schedule::Segment segment; segments.next(segment);) {
    const parts::RowTile tile = segments.tile_of(segment);
    if (tile.rows > 0) run_segment(shared, args, segment, tile, segments.lane());
  }
}

}  // namespace flashlatent::paged
