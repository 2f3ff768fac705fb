// How records (mxfp8_528 and nvfp4_288) come to shared memory, for ListedRowLoader: by one bulk copy a token,
// or, if its scales are elsewhere in the page, by two. A stage has the 16 tokens that one loading warp loads
// and one scoring warp reads, in the places that record_keys.cuh has for them.
#pragma once

#include "cuda/sm90/kernels/fp8/listed_row_loader.cuh"
#include "cuda/sm90/kernels/fp8/record_keys.cuh"
#include "cuda/sm90/load/record_rows.cuh"

namespace flashlatent::fp8 {

/// The source of dead tokens: zeros, which are a token in either format.
__device__ constexpr uint4 kDeadRecord[mxfp8_528::kTokenBytes / 16] = {};

/// What a stage holds.
struct Held {
  std::uint16_t live;    // which of its tokens count
  std::uint16_t record;  // their format: a sm90::Record
};

/// One token.
struct RecordPlace {
  const std::uint8_t *data, *scales;
  sm90::Record record;
  std::uint32_t live;  // of the warp's tokens of both blocks
};

/// What both kinds of stages have in common.
class RecordCopies {
 protected:
  using Rows = sm90::RecordRows;

 public:
  using Row = RecordPlace;
  static constexpr int kArrivals = 1;  // beside the bytes

  /// This lane's token.
  __device__ __forceinline__ Row locate(const sm90::CacheArguments& cache, const sm90::ListRange& lists,
                                        sm90::ListPlace place, int entry) const {
    const sm90::ListedToken found = sm90::token_of(cache, lists, place, entry, /*kv_head=*/0);
    const sm90::ListedCache& of = cache.listed[place.second];
    const bool live = found.data != nullptr;
    Row row;
    row.record = of.record;
    row.data = live ? found.data : reinterpret_cast<const std::uint8_t*>(kDeadRecord);
    row.scales = row.data + (live ? Rows::scales_offset(of, found.in_page) : Rows::data_bytes(of.record));
    row.live = __ballot_sync(0xffffffff, live);
    return row;
  }

 protected:
  /// The format of the first or the second block of a pair.
  __device__ __forceinline__ static sm90::Record record_of(const Row& row, int which) {
    return static_cast<sm90::Record>(
        __shfl_sync(0xffffffff, static_cast<int>(row.record), which * kWarpTokens));
  }
  __device__ __forceinline__ static Held held(const Row& row, sm90::Record record, int which) {
    return {static_cast<std::uint16_t>(row.live >> which * kWarpTokens), static_cast<std::uint16_t>(record)};
  }
  __device__ __forceinline__ static int scale_bytes(sm90::Record record) {
    return Rows::is_e2m1(record) ? nvfp4_288::kScaleBytes : mxfp8_528::kScaleBytes;
  }

  // Q, page tables, results and instructions stay in L2 instead (loader.cuh).
  const std::uint64_t policy_ = ptx::evict_first_policy();
};

/// Whole tokens, in stages that all warps take in turn.
template <class Shared>
class CopiesOfRecords : public RecordCopies {
  using Config = typename Shared::Config;

 public:
  /// The first or the second block of a pair, to the next stage of this warp.
  __device__ __forceinline__ void copy(Shared& shared, const Row& row, int thread, int /*token*/, int which) {
    const int lane = thread % 32;
    const std::uint32_t stage = turn_ + thread / 32;
    const int slot = stage % Config::kSlots;
    turn_ += 4;
    const sm90::Record record = record_of(row, which);
    const int data = Rows::data_bytes(record), scales = scale_bytes(record);
    ptx::wait(shared.empty[slot], (stage / Config::kSlots & 1) ^ 1);
    ptx::Barrier& full = shared.full[slot];
    if (lane == 0) {
      shared.held[slot] = held(row, record, which);
      ptx::arrive_expecting(full, kWarpTokens * (data + scales));
    }
    __syncwarp();
    if (lane / kWarpTokens == which) {
      const int pitch = Rows::is_e2m1(record) ? records::Nvfp4Keys::kPitch : records::Mxfp8Keys<>::kPitch;
      std::uint8_t* to = shared.stages[slot] + lane % kWarpTokens * pitch;
      if (row.scales == row.data + data) {
        ptx::copy_bytes(to, row.data, data + scales, full, policy_);
      } else {
        ptx::copy_bytes(to, row.data, data, full, policy_);
        ptx::copy_bytes(to + data, row.scales, scales, full, policy_);
      }
    }
    __syncwarp();
  }

 private:
  std::uint32_t turn_ = 0;  // stages of all warps and blocks so far
};

/// Halves of mxfp8_528's columns, the last one first, with scales, and whole tokens of nvfp4_288, in stages
/// that belong to a warp.
template <class Shared>
class CopiesOfHalfRecords : public RecordCopies {
  using Config = typename Shared::Config;
  using Halves = records::Mxfp8Keys<true>;

 public:
  /// The first or the second block of a pair.
  __device__ __forceinline__ void copy(Shared& shared, const Row& row, int thread, int /*token*/, int which) {
    const int lane = thread % 32;
    const bool mine = lane / kWarpTokens == which;
    const sm90::Record record = record_of(row, which);
    const int token = lane % kWarpTokens;
    if (Rows::is_e2m1(record)) {
      ptx::Barrier& full = begin(shared, thread, held(row, record, which), nvfp4_288::kTokenBytes);
      if (mine) {
        std::uint8_t* to = stage_ + token * records::Nvfp4Keys::kPitch;
        copy_with_scales(to, row.data, nvfp4_288::kCodeBytes, row.scales, nvfp4_288::kScaleBytes, full);
      }
      __syncwarp();
      return;
    }
    constexpr int kHalf = mxfp8_528::kDim / 2;
    ptx::Barrier& first = begin(shared, thread, held(row, record, which), kHalf + mxfp8_528::kScaleBytes);
    if (mine) {
      std::uint8_t* to = stage_ + token * Halves::kPitch;
      copy_with_scales(to, row.data + kHalf, kHalf, row.scales, mxfp8_528::kScaleBytes, first);
    }
    __syncwarp();
    ptx::Barrier& second = begin(shared, thread, held(row, record, which), kHalf);
    if (mine) ptx::copy_bytes(stage_ + token * Halves::kPitch, row.data, kHalf, second, policy_);
    __syncwarp();
  }

 private:
  /// Waits for the warp's next stage, and announces bytes of each of its tokens.
  __device__ __forceinline__ ptx::Barrier& begin(Shared& shared, int thread, Held held, int bytes) {
    const int warp = thread / 32, slot = turn_ % Config::kWarpStages;
    ptx::wait(shared.empty[warp][slot], (turn_ / Config::kWarpStages & 1) ^ 1);
    ++turn_;
    ptx::Barrier& full = shared.full[warp][slot];
    if (thread % 32 == 0) {
      shared.held[warp][slot] = held;
      ptx::arrive_expecting(full, kWarpTokens * bytes);
    }
    stage_ = shared.stages[warp][slot];
    __syncwarp();
    return full;
  }
  __device__ __forceinline__ void copy_with_scales(std::uint8_t* to, const std::uint8_t* data, int data_bytes,
                                                   const std::uint8_t* scales, int scale_bytes,
                                                   ptx::Barrier& full) const {
    if (scales == data + data_bytes) {
      ptx::copy_bytes(to, data, data_bytes + scale_bytes, full, policy_);
    } else {
      ptx::copy_bytes(to, data, data_bytes, full, policy_);
      ptx::copy_bytes(to + data_bytes, scales, scale_bytes, full, policy_);
    }
  }

  std::uint32_t turn_ = 0;  // stages of this warp so far
  std::uint8_t* stage_ = nullptr;
};

}  // namespace flashlatent::fp8
