// What both loaders of gqa_128 have in common: jobs, queries, pages of a block, which of its tokens count.
#pragma once

#include "cuda/sm90/kernels/gqa_128/jobs.cuh"
#include "cuda/sm90/kernels/gqa_128/segment_jobs.cuh"
#include "cuda/sm90/kernels/gqa_128/smem_layout.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/kv_tokens.cuh"

namespace flashlatent::gqa_128 {

/// The tokens of a block, one bit each.
template <class Config>
struct Tokens {
  std::uint64_t bits[Config::kWords];

  __device__ __forceinline__ bool has(int token) const {
    std::uint64_t word = bits[0];
#pragma unroll
    // unrolled, so that the bits need no stack
    for (int i = 1; i < Config::kWords; ++i) word = token / 64 == i ? bits[i] : word;
    return word >> token % 64 & 1;
  }
  __device__ __forceinline__ bool all() const {
    std::uint64_t common = sm90::kAllLive;
#pragma unroll
    for (std::uint64_t word : bits) common &= word;
    return common == sm90::kAllLive;
  }
};

/// Derived: BoxLoader or CodeLoader, whose load_blocks(job) loads a job's blocks.
template <class Config, class Derived>
class AnyLoader {
 public:
  /// Loads for all of this CTA's jobs.
  __device__ __forceinline__ void run() {
    std::conditional_t<Config::kSegments, SegmentJobs<Config>, Jobs<Config>> jobs(args_);
    for (std::uint32_t i = 0;; ++i) {
      const std::uint32_t slot = i % kJobSlots, parity = i / kJobSlots % 2;
      if (warp_ == 0) put(jobs.next(), slot, parity);
      ptx::wait(shared_.jobs_full[slot], parity);
      Job job = shared_.jobs[slot];
      if (warp_ != 0) ptx::arrive(shared_.jobs_empty[slot]);
      if (job.tile.rows == 0) return;
      if (warp_ == 1 && args_.query_boxes) ask_for_query(job, i % 2);
      if constexpr (Config::kShared) job.entries = shared_entries(args_, job);
      static_cast<Derived&>(*this).load_blocks(job);
    }
  }

 protected:
  __device__ __forceinline__ AnyLoader(SharedMemory<Config>& shared, const Arguments& args,
                                       const CUtensorMap& keys, const CUtensorMap& values,
                                       const CUtensorMap& query)
      : shared_(shared),
        args_(args),
        keys_(keys),
        values_(values),
        query_(query),
        warp_(static_cast<int>(threadIdx.x - Config::kComputeThreads) / 32),
        lane_(threadIdx.x % 32),
        box_tokens_(args.decode.cache.box_tokens),
        boxes_(Config::kBlockTokens / box_tokens_) {}

  /// The page of this lane's box of the block; -1: none.
  __device__ __forceinline__ int look_up(const Job& job, int block) const {
    const int token = block * Config::kBlockTokens + lane_ * box_tokens_;
    if (lane_ >= boxes_ || block >= job.block_end || token >= job.length) return -1;
    const int entry = __ldg(job.entries + args_.decode.cache.page_size.quotient(token));
    return sm90::is_page(args_.decode.cache, entry) ? entry : -1;
  }

  __device__ __forceinline__ Tokens<Config> live_tokens(std::uint32_t valid, int count) const {
    Tokens<Config> live;
#pragma unroll
    for (int i = 0; i < Config::kWords; ++i) live.bits[i] = sm90::low_tokens(count - 64 * i);
    if (valid == 0xffffffff >> (32 - boxes_)) return live;
    for (int box = 0; box < boxes_; ++box) {
      if (valid >> box & 1) continue;
#pragma unroll
      for (int i = 0; i < Config::kWords; ++i) {
        const int first = box * box_tokens_ - 64 * i;
        live.bits[i] &= ~(sm90::low_tokens(first + box_tokens_) & ~sm90::low_tokens(first));
      }
    }
    return live;
  }

  /// Advances to the ring's next stage.
  __device__ __forceinline__ void next_stage() {
    if (++stage_ == Config::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  /// Gives a job to the computing warps and to the other loading warps.
  __device__ __forceinline__ void put(const Job& job, std::uint32_t slot, std::uint32_t parity) {
    ptx::wait(shared_.jobs_empty[slot], parity ^ 1);
    if (lane_ == 0) {
      shared_.jobs[slot] = job;
      ptx::arrive(shared_.jobs_full[slot]);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void ask_for_query(const Job& job, std::uint32_t parity) {
    for (int warpgroup = 0; warpgroup < Config::kWarpgroups; ++warpgroup) {
      ptx::wait(shared_.query_empty[warpgroup], parity ^ 1);
      if (lane_ == 0) copy_query(job, warpgroup);
      __syncwarp();
    }
  }

  /// Loads 64 rows: whole query tokens, each with all heads of the group.
  __device__ __forceinline__ void copy_query(const Job& job, int warpgroup) {
    const sm90::QueryArguments& query = args_.decode.query;
    const bool ragged = query.begins != nullptr;  // then all tokens count as one request's
    const int token = query.group.quotient(job.tile.first + warpgroup * 64) + (ragged ? job.tile.origin : 0);
    ptx::Barrier& full = shared_.query_full[warpgroup];
    ptx::arrive_expecting(full, Config::kChunks * sizeof(sm90::Tile));
#pragma unroll
    for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
      ptx::copy_box(shared_.query[warpgroup][chunk].bytes, query_, chunk * 64,
                    job.tile.kv_head * query.group.value, token, ragged ? 0 : job.tile.origin, full);
    }
  }

 protected:
  SharedMemory<Config>& shared_;
  const Arguments& args_;
  const CUtensorMap& keys_;
  const CUtensorMap& values_;
  const CUtensorMap& query_;
  const int warp_, lane_;
  const int box_tokens_, boxes_;
  const std::uint64_t policy_ = ptx::evict_first_policy();  // of segments, which read their tokens once
  TokenSpan all_ = {};                                      // what all rows of the job see
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::gqa_128
