// The loading warpgroup where TMA cannot lay down what wgmma reads: pages of any size, packed keys and
// values, e4m3. Units of 8 elements of a token go through registers to where a box would have put them, as
// elements of the queries' type. Each warp has a quarter of a block's tokens, which it also cleans:
//
//            block 0                     block 1
//   K        load      store             load        store
//   V                  load      store               load      store
//
// A group of units is asked for before the one that is there is stored (d 256: after, for want of registers).
#pragma once

#include "cuda/parts/kv_tokens.cuh"
#include "cuda/parts/plane.h"
#include "cuda/prefill/clean.cuh"
#include "cuda/prefill/job_feed.cuh"
#include "cuda/ptx/convert.cuh"

namespace flashlatent::prefill {

/// Four e4m3 as two pairs of the queries' type: exact.
template <class Element>
__device__ __forceinline__ uint2 widen(std::uint32_t codes) {
  const ptx::HalfPairs halves = ptx::widen_e4m3(codes);
  if constexpr (std::is_same_v<Element, __half>) return make_uint2(halves.low, halves.high);
  // The upper half of fp32 is bf16, which has room for e4m3's three bits of mantissa.
  const auto upper = [](std::uint32_t pair) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    return __byte_perm(__float_as_uint(two.x), __float_as_uint(two.y), 0x7632);
  };
  return make_uint2(upper(halves.low), upper(halves.high));
}

template <class Config>
class UnitLoader {
 public:
  __device__ __forceinline__ UnitLoader(SharedMemory<Config>& shared, const Arguments& args)
      : shared_(shared),
        args_(args),
        warp_(static_cast<int>(threadIdx.x - Config::kComputeThreads) / 32),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    JobFeed<Config> jobs(shared_, args_);
    Job job;
    while (jobs.next(job)) load_blocks(job);
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kUnits = Config::kDim / 8;           // of a token
  static constexpr int kTokens = Config::kBlockTokens / 4;  // of a warp
  static constexpr int kAtOnce = 8;                         // units of a lane, a group
  static constexpr int kGroups = kTokens * kUnits / (32 * kAtOnce);
  static constexpr bool kAhead = Config::kDim < 256;  // two groups are under way
  static_assert(kGroups == (kAhead ? 1 : 2) && kTokens <= 32);

  /// 8 units as they lie in memory: e4m3 in the first half of each.
  struct Group {
    uint4 units[kAtOnce];
  };

  /// A token of this warp's, a lane's: where it is.
  struct Place {
    int page;  // -1: it does not count
    int slot;
  };

  __device__ __forceinline__ void load_blocks(const Job& job) {
    all_ = seen_by_all<Config::kShared>(args_, job);
    if (job.block_begin >= job.block_end) return;
    Place next = look_up(job, job.block_begin);
    Group keys, values;
    if constexpr (kAhead) load(keys, args_.keys, false, job, next, 0);
    for (int block = job.block_begin; block < job.block_end; ++block) {
      const Place place = next;
      const int start = block * Config::kBlockTokens;
      Stage<Config>& stage = shared_.stages[stage_];
      next = look_up(job, block + 1);
      if constexpr (kAhead) load(values, args_.values, true, job, place, 0);
      ptx::wait(stage.keys_empty, parity_ ^ 1);
      const std::uint32_t live = __ballot_sync(0xffffffff, place.page >= 0);
      if (lane_ == 0) set_live(stage, live);
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        if constexpr (!kAhead) load(keys, args_.keys, false, job, place, group);
        store(shared_.keys[stage_], keys, false, group);
      }
      give(stage.keys_full);
      if (kAhead && block + 1 < job.block_end) load(keys, args_.keys, false, job, next, 0);
      ptx::wait(stage.values_empty, parity_ ^ 1);
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        if constexpr (!kAhead) load(values, args_.values, true, job, place, group);
        store(shared_.values[stage_], values, true, group);
      }
      const bool seen_by_some = start < all_.begin || start + Config::kBlockTokens > all_.end;
      if (seen_by_some || live != kAllOfWarp) {
        __syncwarp();
        clean<Config>(shared_, stage_, block_tokens(live), start, all_, warp_);
      }
      give(stage.values_full);
      if (++stage_ == Config::kStages) {
        stage_ = 0;
        parity_ ^= 1;
      }
    }
  }

  static constexpr std::uint32_t kAllOfWarp = 0xffffffff >> (32 - kTokens);

  __device__ __forceinline__ Place look_up(const Job& job, int block) const {
    const int token = block * Config::kBlockTokens + warp_ * kTokens + lane_;
    if (lane_ >= kTokens || block >= job.block_end || token >= job.length) return {-1, 0};
    const int entry = __ldg(job.entries + args_.decode.cache.page_size.quotient(token));
    if (!parts::is_page(args_.decode.cache, entry)) return {-1, 0};
    return {entry, args_.decode.cache.page_size.remainder(token)};
  }

  /// Which of the warp's tokens count, as bits of the block's.
  __device__ __forceinline__ Tokens<Config> block_tokens(std::uint32_t live) const {
    Tokens<Config> tokens;
#pragma unroll
    for (int i = 0; i < Config::kWords; ++i) {
      const int shift = warp_ * kTokens - 64 * i;
      tokens.bits[i] = shift >= 0 && shift < 64 ? std::uint64_t{live} << shift : 0;
    }
    return tokens;
  }

  __device__ __forceinline__ void set_live(Stage<Config>& stage, std::uint32_t live) const {
    using Quarter = std::conditional_t<kTokens == 32, std::uint32_t, std::uint16_t>;
    reinterpret_cast<Quarter*>(stage.live)[warp_] = static_cast<Quarter>(live);
  }

  /// To those that compute, by each warp.
  __device__ __forceinline__ void give(ptx::Barrier& full) const {
    ptx::fence_for_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::arrive(full);
  }

  /// Which unit of which of the warp's tokens unit `index` of a lane is. Lanes that follow one another have
  /// what does in memory: units of a token, or of packed keys tokens of a unit.
  struct Unit {
    int token, unit;
  };
  __device__ __forceinline__ Unit unit_of(int index) const {
    const int i = lane_ + 32 * index;
    if (args_.packed) return {i % kTokens, i / kTokens};
    return {i / kUnits, i % kUnits};
  }
  /// Of packed values a lane has 8 elements of 8 tokens: the first of them.
  __device__ __forceinline__ Unit square_of(int group) const {
    const int i = lane_ + 32 * group;
    return {i % (kTokens / 8) * 8, i / (kTokens / 8)};
  }

  /// `values`: packed ones lie by elements.
  __device__ __forceinline__ void load(Group& to, const parts::Plane& plane, bool values, const Job& job,
                                       Place place, int group) const {
    const std::uint8_t* from = plane.data + job.tile.kv_head * plane.head_stride;
    const std::int64_t offset = place.page * plane.page_stride + place.slot * plane.token_stride;
    const bool squares = values && args_.packed;
    const Unit square = square_of(group);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Unit at = squares ? square : unit_of(group * kAtOnce + i);
      const int page = __shfl_sync(0xffffffff, place.page, at.token);
      const std::int64_t token = __shfl_sync(0xffffffff, offset, at.token);
      to.units[i] = make_uint4(0, 0, 0, 0);
      if (page < 0 || at.unit * 8 >= args_.dim) continue;
      const std::uint8_t* unit = from + token;
      if (squares) {
        unit += (at.unit * 8 + i) * plane.unit_stride;
      } else if (args_.fp8) {
        unit += at.unit / 2 * plane.unit_stride + at.unit % 2 * 8;
      } else {
        unit += at.unit * plane.unit_stride;
      }
      if (args_.fp8) {
        const uint2 half = __ldg(reinterpret_cast<const uint2*>(unit));
        to.units[i].x = half.x;
        to.units[i].y = half.y;
      } else {
        to.units[i] = __ldg(reinterpret_cast<const uint4*>(unit));
      }
    }
  }

  __device__ __forceinline__ void store(Block<Config>& to, Group& from, bool values, int group) const {
    if (args_.fp8) {
#pragma unroll
      for (uint4& unit : from.units) {
        const uint2 low = widen<Element>(unit.x), high = widen<Element>(unit.y);
        unit = make_uint4(low.x, low.y, high.x, high.y);
      }
    }
    if (values && args_.packed) {
      store_square(to, from, square_of(group));
      return;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Unit at = unit_of(group * kAtOnce + i);
      *to.unit(warp_ * kTokens + at.token, at.unit) = from.units[i];
    }
  }

  /// Of 8 elements 8 tokens each, to 8 tokens' 8 elements: each pair of elements by one permutation.
  __device__ __forceinline__ void store_square(Block<Config>& to, const Group& from, Unit at) const {
#pragma unroll
    for (int token = 0; token < 8; ++token) {
      const auto pair = [&](int element) {
        const auto word = [&](const uint4& unit) {
          return token / 2 == 0 ? unit.x : token / 2 == 1 ? unit.y : token / 2 == 2 ? unit.z : unit.w;
        };
        return __byte_perm(word(from.units[element]), word(from.units[element + 1]),
                           token % 2 == 0 ? 0x5410 : 0x7632);
      };
      *to.unit(warp_ * kTokens + at.token + token, at.unit) = make_uint4(pair(0), pair(2), pair(4), pair(6));
    }
  }

  SharedMemory<Config>& shared_;
  const Arguments& args_;
  const int warp_, lane_;
  Range all_ = {};
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace flashlatent::prefill
