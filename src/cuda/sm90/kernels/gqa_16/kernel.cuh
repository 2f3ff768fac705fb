// gqa_16: decode from separate keys and values in pages, for any group of query heads (PagedAttention, arXiv
// 2309.06180). Memory binds: keys and values are read once, and everything else is kept small beside that.
//
// A CTA has `tiles_a_cta` row tiles side by side, of as many KV heads. Their keys and values are neighbours
// in a page, and memory is faster if they are loaded together. The warps of a tile take its steps of 16
// tokens round-robin:
//
//   TMA or cp.async, kStages - 1 steps ahead, into stages of the warp's own: no warp waits for another
//   S^T = K Q^T, softmax, O^T += V^T P^T (attention.cuh)
//
// At the segment's end warps write their outputs to shared memory, and a tile's warps merge them.
#pragma once

#include "cuda/sm90/kernels/gqa_16/attention.cuh"
#include "cuda/sm90/kernels/gqa_16/output.cuh"
#include "cuda/sm90/kernels/gqa_16/prefix.cuh"
#include "cuda/sm90/kernels/gqa_16/splits.cuh"
#include "cuda/sm90/kernels/gqa_16/steps.cuh"
#include "cuda/sm90/walk/segments.cuh"
#include "plan/shares.h"

namespace flashlatent::gqa_16 {

__device__ __forceinline__ Job job_of(const Arguments& args, const schedule::Segment& segment,
                                      const sm90::RowTile& tile) {
  // With a window the plan counts the last max_tokens tokens only, whose blocks begin at `origin`.
  const schedule::Geometry& g = args.decode.geometry;
  // Without a window the segment has the request's length, which spares a trip to memory.
  int stored = g.max_tokens == args.reach
                   ? segment.length
                   : schedule::length_of(g, args.decode.cache.lengths, segment.request);
  prefix::Share prefix = {};
  if (args.prefix.shares != nullptr) {
    const prefix::Share planned = args.prefix.shares[segment.request];
    stored = min(args.prefix.lengths[segment.request], args.reach);
    if (prefix::sees_prefix(planned.tokens, stored, args.prefix.unseen)) prefix = planned;
  }
  const int length = max(0, min(stored, args.reach));
  const int own = length - prefix.tokens;
  const int skipped = max(0, own - g.max_tokens) + g.block_tokens - 1;
  const int origin = prefix.tokens + (skipped & -g.block_tokens);
  return {segment,
          tile,
          length,
          prefix,
          {{args.decode.cache.entries + tile.request * args.decode.cache.entries_stride, length, tile.kv_head,
            0, 0},
           origin + segment.block_begin * g.block_tokens,
           tile.rows == 0 ? 0 : origin + min(segment.block_end * g.block_tokens, length - origin)},
          tile.seen_by_some(args.decode, args.score.window, length)};
}

/// This warp's steps, segment after segment, through its ring of stages. The next segment's steps are under
/// way while this segment's result is written.
template <class Config>
class Stream {
 public:
  __device__ __forceinline__ Stream(const Arguments& args, SharedMemory<Config>& shared, const Role& role)
      : loader_(args, shared.stages[role.warp], shared.full[role.warp]),
        turn_(role.turn),
        stride_(role.turns * Config::kStepTokens) {
    loader_.prepare();
  }

  /// Starts loading a segment's first steps. All stages but output_stage() must be free.
  __device__ __forceinline__ void begin(const Job& job) {
    end_ = min(job.range.end, job.seen_by_some.end);
    token_ = job.range.begin + turn_ * Config::kStepTokens;
    // With a window, skips steps that no row sees.
    while (token_ + Config::kStepTokens <= job.seen_by_some.begin) token_ += stride_;
    live_ = 0;
    loader_.announce(job.range, token_, stride_);
    for (int i = 0, to = stage_; i < kAhead && token_ + i * stride_ < end_; ++i, to = after(to)) {
      live_ |= static_cast<std::uint64_t>(loader_.request(to)) << (kBits * i);
    }
  }

  /// Computes all steps of the segment that has begun.
  __device__ __forceinline__ void run(Attention<Config>& attention) {
#pragma unroll 1
    for (; token_ < end_; token_ += stride_) {
      __syncwarp();  // all lanes have read the previous stage
      const auto live = static_cast<std::uint32_t>(live_) & Config::kAllLive;
      live_ >>= kBits;
      if (token_ + kAhead * stride_ < end_) {
        live_ |= static_cast<std::uint64_t>(loader_.request(output_stage())) << (kBits * (kAhead - 1));
      }
      loader_.wait(stage_, parity_);
      attention.attend(token_, live, stage_);
      stage_ = after(stage_);
      if (stage_ == 0) parity_ ^= 1;
    }
    __syncwarp();  // all lanes have read the last stage
  }

  /// The stage that was used last.
  __device__ __forceinline__ int output_stage() const {
    return stage_ > 0 ? stage_ - 1 : Config::kStages - 1;
  }

 private:
  static constexpr int kAhead = Config::kStages - 1;
  static constexpr int kBits = Config::kStepTokens;
  static_assert(kBits * kAhead <= 64, "live_ below");

  __device__ __forceinline__ static int after(int stage) {
    return stage + 1 < Config::kStages ? stage + 1 : 0;
  }

  Loader<Config> loader_;
  const int turn_, stride_;
  int stage_ = 0;  // of the next step
  std::uint32_t parity_ = 0;
  int token_ = 0, end_ = 0;
  std::uint64_t live_ = 0;  // tokens that count, of the steps under way, the next step's lowest
};

/// Sets the next segment that has rows. If the CTA's first tile has none, no other tile has.
__device__ __forceinline__ bool next_job(const Arguments& args, sm90::Segments<>& segments, int tile,
                                         Job& job) {
  schedule::Segment segment;
  while (segments.next(segment)) {
    if (sm90::row_tile(args.decode, segment.request, segment.round, segments.lane()).rows == 0) continue;
    const sm90::RowTile own =
        sm90::row_tile(args.decode, segment.request, segment.round, segments.lane() + tile);
    if (args.team > 1) {
      // schedule::share_begin(), for a team size that is a power of two.
      const int rank = static_cast<int>(ptx::rank_in_cluster()), bits = __ffs(args.team) - 1;
      const int blocks = segment.block_end - segment.block_begin;
      segment.block_end = segment.block_begin + (blocks * (rank + 1) >> bits);
      segment.block_begin += blocks * rank >> bits;
    }
    job = job_of(args, segment, own);
    return true;
  }
  return false;
}

/// Merges the kept results with those of prefixes, as soon as these are complete.
template <class Config>
__device__ __forceinline__ void add_prefixes(SharedMemory<Config>& shared, const Arguments& args,
                                             const Role& role, int lane, int& kept) {
  cudaGridDependencySynchronize();
  for (int i = 0; i < kept; ++i) {
    const KeptSegment segment = shared.kept[i];
    const sm90::RowTile tile =
        sm90::row_tile(args.decode, segment.segment.request, segment.segment.round, lane);
    add_prefix<Config>(args, segment, tile, lane, role.turn, role.turns);
    if (merges(args, segment.segment)) {
      merge_splits<Config>(args, segment.segment, tile, lane, role.turn, role.turns);
    }
  }
  kept = 0;
  __syncthreads();
}

/// Finishes a segment: all warps write their outputs to shared memory, and its result is written.
template <class Config>
__device__ __forceinline__ void finish(SharedMemory<Config>& shared, const Arguments& args, const Role& role,
                                       const Attention<Config>& attention, const Job& job, int lane,
                                       int output_stage) {
  std::uint8_t* outputs = Config::kOutputsApart
                              ? shared.outputs[role.warp]
                              : shared.stages[role.warp] + output_stage * Config::kStageBytes;
  if (threadIdx.x % 32 == 0) {
    shared.output_of[role.warp] = static_cast<int>(outputs - reinterpret_cast<std::uint8_t*>(&shared));
  }
  attention.store(reinterpret_cast<float*>(outputs), shared.maxima[role.warp], shared.sums[role.warp]);
  ptx::fence_for_async_proxy();  // orders these accesses before the next copy into this stage
  __syncthreads();
  if (args.team > 1) {
    merge_team(shared, args, job, role, lane);
  } else {
    merge(shared, args, job, role, lane);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  const Role role = role_of<Config>(args);
  if (args.team > 1) {
    if (threadIdx.x == 0) {
      ptx::init(shared.inbox_full, 1);
      ptx::publish_barriers();
    }
    __syncwarp();
    ptx::cluster_arrive();  // merge_team() waits
  }
  Stream<Config> stream(args, shared, role);
  // Waits for the previous launch, which may still write what this one reads. If that launch computes the
  // prefixes, the wait comes at the end: that launch has waited for the one before it, and only then let this
  // one begin.
  const bool shares_prefixes = args.prefix.shares != nullptr;
  if (!shares_prefixes) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // lets the next launch take its place in the queue
  __syncwarp();                               // the warp's barriers are ready
  const int worker = static_cast<int>(args.team == 1 ? blockIdx.x : blockIdx.x >> (__ffs(args.team) - 1));
  const sm90::PartPlace<> part(args.decode.geometry, args.ctas_a_part.quotient(worker),
                               args.ctas_a_part.remainder(worker) * role.tiles);
  sm90::Segments<> segments(args.decode, part);
  Attention<Config> attention(args, shared.stages[role.warp]);
  int kept = 0;  // segments that wait for their prefix
  // One loop with each piece of code once, although a segment begins between the previous segment's last
  // steps and its result: instructions are loaded from memory, too.
  Job job, next;
  for (bool begun = false;; begun = true) {
    const bool more = next_job(args, segments, role.tile, next);  // early, since it reads from memory
    if (begun) stream.run(attention);
    const int output_stage = stream.output_stage();
    if (more) {
      // Q before keys: behind all other loads of the device it would arrive late.
      attention.ask_query(next.tile);
      stream.begin(next);
    }
    if (begun) {
      finish<Config>(shared, args, role, attention, job, segments.lane() + role.tile, output_stage);
      if (keeps(job)) {
        if (threadIdx.x == 0) shared.kept[kept] = {job.segment, job.prefix};
        ++kept;
      }
      __syncthreads();  // before stages are filled again; also, all kept results have been written
      if (merges(args, job.segment) && !keeps(job)) {
        merge_splits<Config>(args, job.segment, job.tile, segments.lane() + role.tile, role.turn, role.turns);
      }
      if (kept == kMostKept || (shares_prefixes && !more)) {
        add_prefixes(shared, args, role, segments.lane() + role.tile, kept);
      }
    } else if (args.team > 1 && !more) {
      ptx::cluster_wait();
    }
    if (!more) break;
    job = next;
    attention.start(job.length);
  }
}

}  // namespace flashlatent::gqa_16
