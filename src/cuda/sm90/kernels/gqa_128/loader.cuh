// The loading warpgroup: loads keys and values of a CTA's blocks by TMA.
//
// A weight of 0 does not silence NaN, so values that some row must not see are cleaned before they are
// multiplied. Values of dead tokens (tails, invalid pages) become 0. In tokens that only some rows of the
// tile attend to, elements that are not finite become 0 and are recorded for the rows that attend. All four
// warps clean (with segments three), and only blocks at the edge of what rows see.
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

template <class Config>
class Loader {
 public:
  __device__ __forceinline__ Loader(SharedMemory<Config>& shared, const Arguments& args,
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
      load_blocks(job);
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

  __device__ __forceinline__ void load_blocks(const Job& job) {
    all_ = seen_by_all<Config::kShared>(args_, job);
    int entry = look_up(job, job.block_begin);
    for (int block = job.block_begin; block < job.block_end; ++block) {
      const int next_entry = look_up(job, block + 1);
      load(job, block, entry);
      entry = next_entry;
      if (++stage_ == Config::kStages) {
        stage_ = 0;
        parity_ ^= 1;
      }
    }
  }

  /// The page of this lane's box of the block; -1: none.
  __device__ __forceinline__ int look_up(const Job& job, int block) const {
    const int token = block * Config::kBlockTokens + lane_ * box_tokens_;
    if (lane_ >= boxes_ || block >= job.block_end || token >= job.length) return -1;
    const int entry = __ldg(job.entries + args_.decode.cache.page_size.quotient(token));
    return sm90::is_page(args_.decode.cache, entry) ? entry : -1;
  }

  __device__ __forceinline__ void load(const Job& job, int block, int entry) {
    Stage<Config>& stage = shared_.stages[stage_];
    const int start = block * Config::kBlockTokens;
    const std::uint32_t valid = __ballot_sync(0xffffffff, entry >= 0);
    const Tokens<Config> live = live_tokens(valid, job.length - start);
    // Are some tokens dead, or not seen by all rows?
    const bool edge = !live.all() || start < all_.begin || start + Config::kBlockTokens > all_.end;
    if (warp_ == 0) {
      ptx::wait(stage.keys_empty, parity_ ^ 1);
      if (lane_ == 0) {
#pragma unroll
        for (int i = 0; i < Config::kWords; ++i) stage.live[i] = live.bits[i];
      }
      copy(shared_.keys[stage_], keys_, job, start, entry, valid, stage.keys_full);
      ptx::wait(stage.values_empty, parity_ ^ 1);
      if (Config::kSegments && !edge && lane_ == 0) ptx::arrive(stage.values_full, kCleaners - 1);
      copy(shared_.values[stage_], values_, job, start, entry, valid,
           edge ? landed(stage) : stage.values_full);
    }
    if (!edge) return;
    if constexpr (Config::kSegments) {
      if (warp_ > 0) clean_apart(stage, live, start);
      return;
    }
    ptx::wait(shared_.landed, edge_parity_);
    clean(live, start, warp_);
    ptx::fence_for_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::arrive(shared_.cleaned);
    if (warp_ == 0) {
      ptx::wait(shared_.cleaned, edge_parity_);
      if (lane_ == 0) ptx::arrive(stage.values_full);
    }
    edge_parity_ ^= 1;
  }

  /// The barrier that counts the bytes of values that are to be cleaned.
  __device__ __forceinline__ ptx::Barrier& landed(Stage<Config>& stage) const {
    if constexpr (Config::kSegments) return stage.values_landed;
    return shared_.landed;
  }

  /// With segments three warps clean while the first warp starts the next loads: requests are short, and it
  /// would otherwise wait for all loads under way. A warp may be several blocks ahead of another, so each
  /// arrives at the block's own barrier.
  __device__ __forceinline__ void clean_apart(Stage<Config>& stage, const Tokens<Config>& live, int start) {
    ptx::wait(stage.values_landed, landed_parities_ >> stage_ & 1);
    landed_parities_ ^= 1U << stage_;
    for (int quarter = warp_ - 1; quarter < 4; quarter += kCleaners) clean(live, start, quarter);
    ptx::fence_for_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::arrive(stage.values_full);
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

  /// Called by one warp; each lane copies its box.
  __device__ __forceinline__ void copy(Block<Config>& to, const CUtensorMap& map, const Job& job, int start,
                                       int entry, std::uint32_t valid, ptx::Barrier& full) {
    const int box_bytes = box_tokens_ * sm90::kRowBytes;
    if (lane_ == 0) ptx::arrive_expecting(full, __popc(valid) * Config::kChunks * box_bytes);
    __syncwarp();
    if (entry < 0) return;
    const int token = args_.decode.cache.page_size.remainder(start + lane_ * box_tokens_);
#pragma unroll
    for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
      std::uint8_t* place = to.chunks[chunk] + lane_ * box_bytes;
      if constexpr (Config::kSegments) {
        ptx::copy_box(place, map, chunk * 64, token, job.tile.kv_head, entry, full, policy_);
      } else {
        ptx::copy_box(place, map, chunk * 64, token, job.tile.kv_head, entry, full);
      }
    }
  }

  /// Cleans a quarter of the tokens.
  __device__ __forceinline__ void clean(const Tokens<Config>& live, int start, int quarter) {
    using Element = typename Config::Element;
    constexpr int kUnits = Config::kDim / 8;
    constexpr int kTokens = Config::kBlockTokens / 4;
    std::uint32_t poisoned = 0;
#pragma unroll 1
    for (int i = lane_; i < kTokens * kUnits; i += 32) {
      const int mine = i / kUnits, unit = i % kUnits;
      const int token = quarter * kTokens + mine;
      const bool dead = !live.has(token);
      if (!dead && start + token >= all_.begin && start + token < all_.end) continue;
      uint4* place = shared_.values[stage_].unit(token, unit);
      if (dead) {
        *place = make_uint4(0, 0, 0, 0);
        continue;
      }
      uint4 value = *place;
      NotFinite noted = {0, 0};
      note<Element>(value.x, 0, noted);
      note<Element>(value.y, 2, noted);
      note<Element>(value.z, 4, noted);
      note<Element>(value.w, 6, noted);
      shared_.not_finite[stage_][token][unit] = noted;
      if ((noted.plus | noted.minus) == 0) continue;
      poisoned |= 1U << mine;
      *place = value;
    }
    poisoned = __reduce_or_sync(0xffffffff, poisoned);
    if (lane_ == 0) shared_.stages[stage_].poisoned[quarter] = poisoned;
  }

  /// Replaces elements of a pair that are not finite by 0 and records them.
  template <class Element>
  __device__ __forceinline__ static void note(std::uint32_t& pair, int index, NotFinite& noted) {
    constexpr std::uint32_t kExponent = sm90::kExponent<Element>;
    if (!sm90::low_is_poison<Element>(pair) && !sm90::high_is_poison<Element>(pair)) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t element = pair >> (16 * i) & 0xffff;
      if ((element & kExponent) != kExponent) continue;
      const bool nan = (element & 0x7fff) != kExponent;
      if (nan || element < 0x8000) noted.plus |= 1 << (index + i);
      if (nan || element >= 0x8000) noted.minus |= 1 << (index + i);
      pair &= i == 0 ? 0xffff0000 : 0x0000ffff;
    }
  }

  SharedMemory<Config>& shared_;
  const Arguments& args_;
  const CUtensorMap& keys_;
  const CUtensorMap& values_;
  const CUtensorMap& query_;
  const int warp_, lane_;
  const int box_tokens_, boxes_;
  const std::uint64_t policy_ = ptx::evict_first_policy();  // of segments, which read their tokens once
  TokenSpan all_ = {};
  int stage_ = 0;
  std::uint32_t parity_ = 0, edge_parity_ = 0;
  std::uint32_t landed_parities_ = 0;  // of segments: one bit for each stage
};

}  // namespace flashlatent::gqa_128
