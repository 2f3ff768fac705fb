// The loading warpgroup of bf16 and fp16: loads keys and values of a CTA's blocks by TMA.
//
// A weight of 0 does not silence NaN, so values that some row must not see are cleaned before they are
// multiplied. Values of dead tokens (tails, invalid pages) become 0. In tokens that only some rows of the
// tile attend to, elements that are not finite become 0 and are recorded for the rows that attend. All four
// warps clean (with segments three), and only blocks at the edge of what rows see.
#pragma once

#include "cuda/sm90/kernels/gqa_128/any_loader.cuh"

namespace flashlatent::gqa_128 {

template <class Config>
class BoxLoader : public AnyLoader<Config, BoxLoader<Config>> {
  using Base = AnyLoader<Config, BoxLoader>;
  friend Base;
  using Base::all_, Base::args_, Base::boxes_, Base::box_tokens_, Base::keys_, Base::lane_, Base::look_up,
      Base::parity_;
  using Base::policy_, Base::shared_, Base::stage_, Base::values_, Base::warp_;

 public:
  __device__ __forceinline__ BoxLoader(SharedMemory<Config>& shared, const Arguments& args,
                                       const CUtensorMap& keys, const CUtensorMap& values,
                                       const CUtensorMap& query)
      : Base(shared, args, keys, values, query) {}

 private:
  __device__ __forceinline__ void load_blocks(const Job& job) {
    all_ = seen_by_all<Config::kShared>(args_, job);
    int entry = look_up(job, job.block_begin);
    for (int block = job.block_begin; block < job.block_end; ++block) {
      const int next_entry = look_up(job, block + 1);
      load(job, block, entry);
      entry = next_entry;
      this->next_stage();
    }
  }

  __device__ __forceinline__ void load(const Job& job, int block, int entry) {
    Stage<Config>& stage = shared_.stages[stage_];
    const int start = block * Config::kBlockTokens;
    const std::uint32_t valid = __ballot_sync(0xffffffff, entry >= 0);
    const Tokens<Config> live = this->live_tokens(valid, job.length - start);
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

  std::uint32_t edge_parity_ = 0;
  std::uint32_t landed_parities_ = 0;  // of segments: one bit for each stage
};

}  // namespace flashlatent::gqa_128
