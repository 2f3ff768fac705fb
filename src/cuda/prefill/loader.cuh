// The loading warpgroup: keys and values of a CTA's blocks, by TMA. Blocks at the edge of what is seen are
// cleaned (clean.cuh) by all four warps, of segments by three of them.
#pragma once

#include "cuda/parts/kv_tokens.cuh"
#include "cuda/prefill/clean.cuh"
#include "cuda/prefill/job_feed.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::prefill {

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
    JobFeed<Config> jobs(shared_, args_);
    Job job;
    for (std::uint32_t i = 0; jobs.next(job); ++i) {
      if (warp_ == 1 && args_.query_boxes) ask_for_query(job, i % 2);
      if constexpr (Config::kShared) job.entries = shared_entries(args_, job);
      load_blocks(job);
    }
  }

 private:
  __device__ __forceinline__ void ask_for_query(const Job& job, std::uint32_t parity) {
    for (int warpgroup = 0; warpgroup < Config::kWarpgroups; ++warpgroup) {
      ptx::wait(shared_.query_empty[warpgroup], parity ^ 1);
      if (lane_ == 0) copy_query(job, warpgroup);
      __syncwarp();
    }
  }

  /// 64 rows: whole query tokens, each with the heads of the group.
  __device__ __forceinline__ void copy_query(const Job& job, int warpgroup) {
    const parts::QueryArguments& query = args_.decode.query;
    const bool ragged = query.begins != nullptr;  // then all tokens are one request's
    const int token = query.group.quotient(job.tile.first + warpgroup * 64) + (ragged ? job.tile.origin : 0);
    ptx::Barrier& full = shared_.query_full[warpgroup];
    ptx::arrive_expecting(full, Config::kChunks * sizeof(parts::Tile));
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

  /// The page that this lane's box of the block is in; -1: none.
  __device__ __forceinline__ int look_up(const Job& job, int block) const {
    const int token = block * Config::kBlockTokens + lane_ * box_tokens_;
    if (lane_ >= boxes_ || block >= job.block_end || token >= job.length) return -1;
    const int entry = __ldg(job.entries + args_.decode.cache.page_size.quotient(token));
    return parts::is_page(args_.decode.cache, entry) ? entry : -1;
  }

  __device__ __forceinline__ void load(const Job& job, int block, int entry) {
    Stage<Config>& stage = shared_.stages[stage_];
    const int start = block * Config::kBlockTokens;
    const std::uint32_t valid = __ballot_sync(0xffffffff, entry >= 0);
    const Tokens<Config> live = live_tokens(valid, job.length - start);
    // Seen by some rows only, or dead.
    const bool edge = !live.all() || start < all_.begin || start + Config::kBlockTokens > all_.end;
    if (warp_ == 0) {
      ptx::wait(stage.keys_empty, parity_ ^ 1);
      if (lane_ == 0) {
#pragma unroll
        for (int i = 0; i < Config::kWords; ++i) stage.live[i] = live.bits[i];
      }
      copy(shared_.keys[stage_], keys_, job, start, entry, valid, stage.keys_full);
      ptx::wait(stage.values_empty, parity_ ^ 1);
      copy(shared_.values[stage_], values_, job, start, entry, valid,
           edge ? landed(stage) : stage.values_full);
    }
    if (!edge) return;
    if constexpr (Config::kSegments) {
      if (warp_ > 0) clean_apart(stage, live, start);
      return;
    }
    ptx::wait(shared_.landed, edge_parity_);
    clean<Config>(shared_, stage_, live, start, all_, warp_);
    ptx::fence_for_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::arrive(shared_.cleaned);
    if (warp_ == 0) {
      ptx::wait(shared_.cleaned, edge_parity_);
      if (lane_ == 0) ptx::arrive(stage.values_full);
    }
    edge_parity_ ^= 1;
  }

  /// What counts the bytes of values that are to be cleaned.
  __device__ __forceinline__ ptx::Barrier& landed(Stage<Config>& stage) const {
    if constexpr (Config::kSegments) return stage.values_landed;
    return shared_.landed;
  }

  /// Three warps clean while the first one asks for what comes next: requests are short, and it would wait
  /// for all that is on its way.
  __device__ __forceinline__ void clean_apart(Stage<Config>& stage, const Tokens<Config>& live, int start) {
    ptx::wait(stage.values_landed, landed_parities_ >> stage_ & 1);
    landed_parities_ ^= 1U << stage_;
    for (int quarter = warp_ - 1; quarter < 4; quarter += 3) {
      clean<Config>(shared_, stage_, live, start, all_, quarter);
    }
    ptx::fence_for_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::arrive(shared_.cleaned);
    if (warp_ == 1) {
      ptx::wait(shared_.cleaned, edge_parity_);
      if (lane_ == 0) ptx::arrive(stage.values_full);
    }
    edge_parity_ ^= 1;
  }

  __device__ __forceinline__ Tokens<Config> live_tokens(std::uint32_t valid, int count) const {
    Tokens<Config> live;
#pragma unroll
    for (int i = 0; i < Config::kWords; ++i) live.bits[i] = parts::low_tokens(count - 64 * i);
    if (valid == 0xffffffff >> (32 - boxes_)) return live;
    for (int box = 0; box < boxes_; ++box) {
      if (valid >> box & 1) continue;
#pragma unroll
      for (int i = 0; i < Config::kWords; ++i) {
        const int first = box * box_tokens_ - 64 * i;
        live.bits[i] &= ~(parts::low_tokens(first + box_tokens_) & ~parts::low_tokens(first));
      }
    }
    return live;
  }

  /// By one warp, each lane its box.
  __device__ __forceinline__ void copy(Block<Config>& to, const CUtensorMap& map, const Job& job, int start,
                                       int entry, std::uint32_t valid, ptx::Barrier& full) {
    const int box_bytes = box_tokens_ * parts::kRowBytes;
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

  SharedMemory<Config>& shared_;
  const Arguments& args_;
  const CUtensorMap& keys_;
  const CUtensorMap& values_;
  const CUtensorMap& query_;
  const int warp_, lane_;
  const int box_tokens_, boxes_;
  const std::uint64_t policy_ = ptx::evict_first_policy();  // of segments: their tokens are read once
  Range all_ = {};
  int stage_ = 0;
  std::uint32_t parity_ = 0, edge_parity_ = 0;
  std::uint32_t landed_parities_ = 0;  // of segments: a bit a stage
};

}  // namespace flashlatent::prefill
