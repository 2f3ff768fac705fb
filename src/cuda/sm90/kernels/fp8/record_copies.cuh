// How records (mxfp8_528 and nvfp4_288) come to shared memory, for ListedRowLoader: by one bulk copy a token,
// or, if its scales are elsewhere in the page, by two. A stage has the 16 tokens that one loading warp loads
// and one scoring warp reads.
#pragma once

#include "cuda/sm90/kernels/fp8/listed_row_loader.cuh"
#include "cuda/sm90/load/record_rows.cuh"

namespace flashlatent::fp8 {

/// The source of dead tokens: zeros, which are a token in either format.
__device__ constexpr uint4 kDeadRecord[mxfp8_528::kTokenBytes / 16] = {};

/// Bytes from one token of a stage to the next, such that keys are read without bank conflicts
/// (record_keys.cuh).
__device__ __forceinline__ int record_pitch(sm90::Record record) {
  return sm90::RecordRows::is_e2m1(record) ? nvfp4_288::kTokenBytes + 32 : mxfp8_528::kTokenBytes;
}

template <class Shared>
class CopiesOfRecords {
  using Config = typename Shared::Config;
  using Rows = sm90::RecordRows;

 public:
  static constexpr int kArrivals = 1;  // beside the bytes

  struct Row {
    const std::uint8_t *data, *scales;
    sm90::Record record;
    std::uint32_t live;  // of the warp's tokens of both blocks
  };
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

  /// The first or the second block of a pair, to the next stage of this warp.
  __device__ __forceinline__ void copy(Shared& shared, const Row& row, int thread, int /*token*/, int which) {
    const int lane = thread % 32;
    const std::uint32_t stage = turn_ + thread / 32;
    const int slot = stage % Config::kSlots;
    turn_ += 4;
    const auto record = static_cast<sm90::Record>(
        __shfl_sync(0xffffffff, static_cast<int>(row.record), which * kWarpTokens));
    const int data = Rows::data_bytes(record);
    const int scales = Rows::is_e2m1(record) ? nvfp4_288::kScaleBytes : mxfp8_528::kScaleBytes;
    ptx::wait(shared.empty[slot], (stage / Config::kSlots & 1) ^ 1);
    ptx::Barrier& full = shared.full[slot];
    if (lane == 0) {
      shared.held[slot] = {static_cast<std::uint16_t>(row.live >> which * kWarpTokens),
                           static_cast<std::uint16_t>(record)};
      ptx::arrive_expecting(full, kWarpTokens * (data + scales));
    }
    __syncwarp();
    if (lane / kWarpTokens == which) {
      std::uint8_t* to = shared.stages[slot] + lane % kWarpTokens * record_pitch(record);
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
  // Q, page tables, results and instructions stay in L2 instead (loader.cuh).
  const std::uint64_t policy_ = ptx::evict_first_policy();
  std::uint32_t turn_ = 0;  // stages of all warps and blocks so far
};

}  // namespace flashlatent::fp8
