// The loading warpgroup of e4m3 keys and values. A block's bytes come by TMA to a slot. Each warp converts a
// quarter of the block's tokens, exactly, to the tiles of a stage, which the products read; then the bytes of
// a later block come to the slot. Scales are applied to scores (attention.cuh) and outputs (output.cuh).
//
// Values that some row must not see are cleaned as they are converted (why: box_loader.cuh). e4m3 has NaN,
// but no infinity.
#pragma once

#include <cuda_fp16.h>

#include "cuda/sm90/kernels/gqa_128/any_loader.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/convert.cuh"

namespace flashlatent::gqa_128 {

template <class Config>
class CodeLoader : public AnyLoader<Config, CodeLoader<Config>> {
  using Base = AnyLoader<Config, CodeLoader>;
  friend Base;
  using Base::all_, Base::args_, Base::boxes_, Base::box_tokens_, Base::keys_, Base::lane_, Base::look_up,
      Base::parity_;
  using Base::policy_, Base::shared_, Base::stage_, Base::values_, Base::warp_;
  using Codes = typename CodeSlots<Config>::Codes;

 public:
  __device__ __forceinline__ CodeLoader(SharedMemory<Config>& shared, const Arguments& args,
                                        const CUtensorMap& keys, const CUtensorMap& values,
                                        const CUtensorMap& query)
      : Base(shared, args, keys, values, query) {}

 private:
  static constexpr int kSlots = Config::kCodeSlots;
  static constexpr int kBarrier = 5;                        // named barrier of the loading warpgroup
  static constexpr int kUnits = Config::kDim / 16;          // of 16 bytes a token
  static constexpr int kTokens = Config::kBlockTokens / 4;  // that a warp converts

  __device__ __forceinline__ void load_blocks(const Job& job) {
    all_ = seen_by_all<Config::kShared>(args_, job);
    if (warp_ == 0) {
      for (int i = 0; i < kSlots; ++i) {
        const int block = job.block_begin + i, slot = (slot_ + i) % kSlots, entry = look_up(job, block);
        if (block >= job.block_end) break;
        ask(shared_.key_codes[slot], shared_.key_codes_full[slot], keys_, job, block, entry);
        ask(shared_.value_codes[slot], shared_.value_codes_full[slot], values_, job, block, entry);
      }
    }
    int entry = look_up(job, job.block_begin), later_entry = look_up(job, job.block_begin + kSlots);
    for (int block = job.block_begin; block < job.block_end; ++block) {
      const int next_entry = look_up(job, block + 1), next_later = look_up(job, block + kSlots + 1);
      convert(job, block, entry, later_entry);
      entry = next_entry;
      later_entry = next_later;
      this->next_stage();
      if (++slot_ == kSlots) {
        slot_ = 0;
        slot_parity_ ^= 1;
      }
    }
  }

  /// `entry`: this lane's page of the block; `later_entry`: that of the block whose bytes come to its slot
  /// next.
  __device__ __forceinline__ void convert(const Job& job, int block, int entry, int later_entry) {
    Stage<Config>& stage = shared_.stages[stage_];
    const int start = block * Config::kBlockTokens, later = block + kSlots;
    const Tokens<Config> live = this->live_tokens(__ballot_sync(0xffffffff, entry >= 0), job.length - start);
    const bool asks = warp_ == 0 && later < job.block_end;

    Codes& keys = shared_.key_codes[slot_];
    ptx::wait(stage.keys_empty, parity_ ^ 1);
    if (threadIdx.x == Config::kComputeThreads) {
#pragma unroll
      for (int i = 0; i < Config::kWords; ++i) stage.live[i] = live.bits[i];
    }
    ptx::wait(shared_.key_codes_full[slot_], slot_parity_);
    convert_all(shared_.keys[stage_], keys);
    give(stage.keys_full);
    if (asks) ask(keys, shared_.key_codes_full[slot_], keys_, job, later, later_entry);

    Codes& values = shared_.value_codes[slot_];
    ptx::wait(stage.values_empty, parity_ ^ 1);
    ptx::wait(shared_.value_codes_full[slot_], slot_parity_);
    if (live.all() && start >= all_.begin && start + Config::kBlockTokens <= all_.end) {
      convert_all(shared_.values[stage_], values);
    } else {
      convert_and_clean(shared_.values[stage_], values, live, start);
    }
    give(stage.values_full);
    if (asks) ask(values, shared_.value_codes_full[slot_], values_, job, later, later_entry);
  }

  /// Called by one warp, each lane with its `entry`: copies a block's bytes of keys or values to their slot.
  __device__ __forceinline__ void ask(Codes& to, ptx::Barrier& full, const CUtensorMap& map, const Job& job,
                                      int block, int entry) const {
    const int box_bytes = box_tokens_ * Config::kDim;
    const std::uint32_t valid = __ballot_sync(0xffffffff, entry >= 0);
    if (lane_ == 0) ptx::arrive_expecting(full, __popc(valid) * box_bytes);
    __syncwarp();
    if (entry < 0) return;
    const int token =
        args_.decode.cache.page_size.remainder(block * Config::kBlockTokens + lane_ * box_tokens_);
    std::uint8_t* place = to + lane_ * box_bytes;
    if constexpr (Config::kSegments) {
      ptx::copy_box(place, map, 0, token, job.tile.kv_head, entry, full, policy_);
    } else {
      ptx::copy_box(place, map, 0, token, job.tile.kv_head, entry, full);
    }
  }

  /// Tells the computing warps that this warp's tokens are converted, and waits until all four warps have
  /// read the slot.
  __device__ __forceinline__ void give(ptx::Barrier& full) const {
    ptx::fence_for_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::arrive(full);
    ptx::named_sync(kBarrier, 128);
  }

  /// Sixteen elements as they are multiplied.
  struct Elements {
    uint4 first, second;
  };
  __device__ __forceinline__ static uint2 widen(std::uint32_t codes) {
    const ptx::HalfPairs pairs = ptx::widen_e4m3(codes);
    return {to_elements(pairs.low), to_elements(pairs.high)};
  }
  /// Two fp16 as Element; exact, since they come from e4m3.
  __device__ __forceinline__ static std::uint32_t to_elements(std::uint32_t pair) {
    using Element = typename Config::Element;
    if constexpr (std::is_same_v<Element, __half>) return pair;
    const float2 two = sm90::unpack<__half>(pair);
    return sm90::pack<Element>(two.x, two.y);
  }
  __device__ __forceinline__ static Elements widen(const uint4& codes) {
    const uint2 x = widen(codes.x), y = widen(codes.y), z = widen(codes.z), w = widen(codes.w);
    return {make_uint4(x.x, x.y, y.x, y.y), make_uint4(z.x, z.y, w.x, w.y)};
  }

  /// Where sixteen elements are: which token of the block, and which unit of the token.
  struct Place {
    int token, unit;
  };
  /// The i-th unit that the warp converts. At d 128 a token's tiles are two chunks of 64 columns, in which
  /// its units 0 to 3 and 4 to 7 lie in the same banks. So eight lanes store units 0 to 3 of one token and 4
  /// to 7 of its neighbour, which the swizzle puts into other banks.
  __device__ __forceinline__ Place place(int i) const {
    const int unit = i % kUnits, other = Config::kChunks > 1 && unit >= kUnits / 2;
    return {warp_ * kTokens + (i / kUnits ^ other), unit};
  }
  __device__ __forceinline__ static uint4& codes_at(Codes& codes, Place at) {
    return reinterpret_cast<uint4*>(codes)[at.token * kUnits + at.unit];
  }
  __device__ __forceinline__ static void store(Block<Config>& to, Place at, const Elements& elements) {
    *to.unit(at.token, 2 * at.unit) = elements.first;
    *to.unit(at.token, 2 * at.unit + 1) = elements.second;
  }

  /// Loads four units before it stores the first one. The compiler would not: it must assume that loads and
  /// stores overlap in memory (docs/log/gqa.md, version 2).
  __device__ __forceinline__ void convert_all(Block<Config>& to, Codes& from) const {
    constexpr int kAtOnce = 4;
    static_assert(kTokens * kUnits % (32 * kAtOnce) == 0);
#pragma unroll 1
    for (int first = lane_; first < kTokens * kUnits; first += 32 * kAtOnce) {
      uint4 codes[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) codes[i] = codes_at(from, place(first + 32 * i));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) store(to, place(first + 32 * i), widen(codes[i]));
    }
  }

  /// The same; dead tokens become 0, and so does NaN in tokens that not every row sees, which is recorded.
  __device__ __forceinline__ void convert_and_clean(Block<Config>& to, Codes& from,
                                                    const Tokens<Config>& live, int start) const {
    std::uint32_t poisoned = 0;
#pragma unroll 1
    for (int i = lane_; i < kTokens * kUnits; i += 32) {
      const Place at = place(i);
      uint4 codes = codes_at(from, at);
      if (!live.has(at.token)) {
        codes = make_uint4(0, 0, 0, 0);
      } else if (start + at.token < all_.begin || start + at.token >= all_.end) {
        const unsigned first = take_nan(codes.x) | take_nan(codes.y) << 4,
                       second = take_nan(codes.z) | take_nan(codes.w) << 4;
        note(at.token, 2 * at.unit, first);
        note(at.token, 2 * at.unit + 1, second);
        if ((first | second) != 0) poisoned |= 1U << at.token % kTokens;
      }
      store(to, at, widen(codes));
    }
    poisoned = __reduce_or_sync(0xffffffff, poisoned);
    if (lane_ == 0) shared_.stages[stage_].poisoned[warp_] = poisoned;
  }
  __device__ __forceinline__ void note(int token, int unit, unsigned nan) const {
    NotFinite& noted = shared_.not_finite[stage_][token][unit];
    noted.plus = noted.minus = static_cast<std::uint8_t>(nan);
  }
  /// Replaces NaN among four codes by 0; returns which they were, a bit each.
  __device__ __forceinline__ static unsigned take_nan(std::uint32_t& codes) {
    const std::uint32_t nan = __vcmpeq4(codes & 0x7F7F7F7FU, 0x7F7F7F7FU);
    codes &= ~nan;
    const std::uint32_t bits = nan & 0x08040201U;
    return (bits | bits >> 8 | bits >> 16 | bits >> 24) & 0xF;
  }

  int slot_ = 0;  // of the next block's bytes
  std::uint32_t slot_parity_ = 0;
};

}  // namespace flashlatent::gqa_128
