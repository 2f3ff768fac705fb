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
#include "cuda/paged/prefix.cuh"
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
  alignas(16) std::uint8_t outputs[Config::kWarps][Config::kOutputsApart ? Config::kOutputBytes : 16];
  int output_of[Config::kWarps];       // where a warp's outputs are, from this struct's begin
  float row_scales[Config::kColumns];  // e4m3: what a row's scores are multiplied by
  float maxima[Config::kWarps][Config::kColumns];
  float sums[Config::kWarps][Config::kColumns];
};

/// Q as fp16, for e4m3: bf16 reaches further, so that a row is multiplied by the power of two that brings its
/// largest element between 2^14 and 2^15, and its scores by `inverse`. What underflows then is below 2^-38 of
/// the largest. The lanes that have a row, kLanes in line, do this together.
template <class Element, int kLanes>
__device__ __forceinline__ uint4 query_as_half(uint4 value, float& inverse) {
  std::uint32_t pairs[4] = {value.x, value.y, value.z, value.w};
  float2 wide[4];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<Element, __half>) {
      wide[i] = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
    } else {
      wide[i] = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pairs[i]));
    }
    largest = fmaxf(largest, fmaxf(fabsf(wide[i].x), fabsf(wide[i].y)));
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  }
  // Exponents are biased by 127; where all are 0 or one is infinite the power must still be a number.
  const int up = min(14 + 127 - static_cast<int>(__float_as_uint(largest) >> 23), 113);
  const float factor = __uint_as_float((127 + up) << 23);
  inverse = __uint_as_float((127 - up) << 23);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = parts::pack<__half>(wide[i].x * factor, wide[i].y * factor);
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

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
    if constexpr (Config::kFp8) {
      static_assert(Config::kColumns * kUnits % 32 == 0, "whole warps take part");
      float inverse;
      value = query_as_half<Element, kUnits>(value, inverse);
      if (unit == 0) shared.row_scales[row] = inverse;
    }
    *reinterpret_cast<uint4*>(shared.query + row * Config::kQueryRow + unit * 16) = value;
  }
}

/// A segment, as a warp sees it.
struct Job {
  schedule::Segment segment;
  parts::RowTile tile;
  int length;  // of the request
  prefix::Share prefix;
  StepRange range;
  Visible visible;  // tokens that some row of the tile attends to
};

template <class Config>
__device__ __forceinline__ Job job_of(const Arguments& args, const schedule::Segment& segment,
                                      const parts::RowTile& tile) {
  // With a window the plan knows the last max_tokens tokens alone, whose blocks begin at `origin`.
  const schedule::Geometry& g = args.decode.geometry;
  const int stored = schedule::length_of(g, args.decode.cache.lengths, segment.request);
  const prefix::Share prefix =
      args.prefix.shares == nullptr ? prefix::Share{} : args.prefix.shares[segment.request];
  const int own = max(0, min(stored, args.reach));
  const int length = prefix.tokens + own;
  const int skipped = (max(0, own - g.max_tokens) + Config::kBlockTokens - 1);
  const int origin = prefix.tokens + skipped / Config::kBlockTokens * Config::kBlockTokens;
  return {segment,
          tile,
          length,
          prefix,
          {{args.decode.cache.entries + tile.request * args.decode.cache.entries_stride, length, tile.kv_head,
            0, 0},
           origin + segment.block_begin * Config::kBlockTokens,
           min(origin + segment.block_end * Config::kBlockTokens, length)},
          visible_by_some(args, tile, length)};
}

/// This warp's steps, segment after segment, through its ring of stages: those of the next segment are under
/// way while this one's result is written.
template <class Config>
class Stream {
 public:
  __device__ __forceinline__ Stream(const Arguments& args, std::uint8_t* stages) : loader_(args, stages) {}

  /// Asks for a segment's first steps; all stages but one, output_stage(), may be written.
  __device__ __forceinline__ void begin(const Job& job) {
    end_ = min(job.range.end, job.visible.end);
    token_ = job.range.begin + static_cast<int>(threadIdx.x) / 32 * Config::kStepTokens;
    // With a window: steps that nobody sees are not read.
    while (token_ + Config::kStepTokens <= job.visible.begin) token_ += kStride;
    live_ = 0;
    loader_.look_up(job.range, token_);
    for (int i = 0, to = stage_; i < kAhead; ++i, to = after(to)) {
      const int token = token_ + i * kStride;
      if (token < end_)
        live_ |= static_cast<std::uint64_t>(loader_.request(job.range, token, to)) << (16 * i);
      loader_.look_up(job.range, token + kStride);
      ptx::copy_commit();
    }
  }

  /// All steps of the segment that has begun.
  __device__ __forceinline__ void run(Attention<Config>& attention, const Job& job) {
#pragma unroll 1
    for (; token_ < end_; token_ += kStride) {
      ptx::copy_wait<kAhead - 1>();
      __syncwarp();  // all lanes' copies have landed, and the stage before has been read
      const auto now = static_cast<std::uint32_t>(live_ & 0xffff);
      live_ >>= 16;
      const int ahead = token_ + kAhead * kStride;
      if (ahead < end_) {
        live_ |= static_cast<std::uint64_t>(loader_.request(job.range, ahead, output_stage()))
                 << (16 * (kAhead - 1));
        loader_.look_up(job.range, ahead + kStride);
      }
      ptx::copy_commit();
      attention.attend(token_, now, stage_);
      stage_ = after(stage_);
    }
    ptx::copy_wait<0>();
    __syncwarp();  // all lanes have read the last stage
  }

  /// The one that was used last.
  __device__ __forceinline__ int output_stage() const {
    return stage_ > 0 ? stage_ - 1 : Config::kStages - 1;
  }

 private:
  static constexpr int kStride = Config::kBlockTokens;
  static constexpr int kAhead = Config::kStages - 1;

  __device__ __forceinline__ static int after(int stage) {
    return stage + 1 < Config::kStages ? stage + 1 : 0;
  }

  Loader<Config> loader_;
  int stage_ = 0;  // of the step to attend next
  int token_ = 0, end_ = 0;
  std::uint64_t live_ = 0;  // which tokens count, of the steps under way: 16 bits each, the next one's lowest
};

/// The warps' shares together, to the output or to a partial result. Threads take pairs of elements of a row.
template <class Config>
__device__ __forceinline__ void merge(SharedMemory<Config>& shared, const Arguments& args, const Job& job,
                                      int lane) {
  using Element = typename Config::Element;
  const parts::DecodeArguments& decode = args.decode;
  const schedule::Segment& segment = job.segment;
  const parts::RowTile& tile = job.tile;
  const bool kept = job.prefix.splits > 0 && segment.block_begin == 0;
  const float* scale = args.values.scale;
  const float value_scale = scale == nullptr ? 1.0F : __ldg(scale + tile.kv_head * args.values.scale_stride);
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
      const auto* output = reinterpret_cast<const float*>(reinterpret_cast<const std::uint8_t*>(&shared) +
                                                          shared.output_of[warp]) +
                           row * Config::kOutputRow + column;
      sum += weight * shared.sums[warp][row];
      x += weight * output[0];
      y += weight * output[1];
    }
    const parts::RowScale row_scale = parts::finish_row(max, sum);
    float factor = row_scale.factor * value_scale;
    if (segment.slot >= 0 || kept) {
      const PartialRows partial = partial_row<Config>(args, segment, tile, lane, row);
      *reinterpret_cast<float2*>(partial.out + column) = make_float2(x * factor, y * factor);
      if (column == 0) *partial.lse = row_scale.lse;
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

/// The next segment that has rows.
template <class Config>
__device__ __forceinline__ bool next_job(const Arguments& args, parts::Segments<>& segments, Job& job) {
  schedule::Segment segment;
  while (segments.next(segment)) {
    const parts::RowTile tile = segments.tile_of(segment);
    if (tile.rows == 0) continue;
    job = job_of<Config>(args, segment, tile);
    return true;
  }
  return false;
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  // What the launch before may still write is waited for; where that is results of prefixes, at the end: it
  // has waited itself for what came before it, and let this launch begin then.
  const bool shares_prefixes = args.prefix.shares != nullptr;
  if (!shares_prefixes) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the combine step may take its place in the queue
  const int warp = threadIdx.x / 32;
  parts::Segments<> segments(args.decode);
  Stream<Config> stream(args, shared.stages[warp]);
  Job job, next;
  bool more = next_job<Config>(args, segments, job);
  if (more) stream.begin(job);
  for (; more; job = next) {
    __syncthreads();  // the segment before has been merged
    load_query(shared, args, job.tile);
    __syncthreads();
    Attention<Config> attention(args, shared.stages[warp]);
    attention.start(job.tile, job.length, shared.query, shared.row_scales);
    stream.run(attention, job);
    const int output_stage = stream.output_stage();
    more = next_job<Config>(args, segments, next);
    if (more) stream.begin(next);
    std::uint8_t* outputs = Config::kOutputsApart ? shared.outputs[warp]
                                                  : shared.stages[warp] + output_stage * Config::kStageBytes;
    if (threadIdx.x % 32 == 0) shared.output_of[warp] = static_cast<int>(outputs - shared_bytes);
    attention.store(reinterpret_cast<float*>(outputs), shared.maxima[warp], shared.sums[warp]);
    __syncthreads();
    merge(shared, args, job, segments.lane());
  }
  if (!shares_prefixes) return;
  __syncthreads();  // all that is kept is written
  cudaGridDependencySynchronize();
  add_prefixes<Config>(args);
}

}  // namespace flashlatent::paged
