// How records (mxfp8_528 and nvfp4_288) come to shared memory, for ListedRowLoader: by one bulk copy a token,
// or, if its scales are elsewhere in the page, by two. A stage has the 16 tokens that one loading warp loads
// and one scoring warp reads, in the places that record_keys.cuh has for them.
#pragma once

#include "cuda/sm90/kernels/fp8/block_loader.cuh"
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

/// Copies of a warp's 16 tokens of a block to its stages: whole tokens, or halves of mxfp8_528's columns
/// (Config::kWholeTokens), the last half first, since scales may follow it. Each scoring warp has stages of
/// its own, of which it takes one after another: a barrier's parity would not tell it another warp's uses
/// from its own.
template <class Shared>
class CopiesOfRecords {
  using Config = typename Shared::Config;
  using Rows = sm90::RecordRows;
  using Mxfp8Keys = records::Mxfp8Keys<Config::kWholeTokens>;

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

  /// The first or the second block of a pair.
  __device__ __forceinline__ void copy(Shared& shared, const Row& row, int thread, int /*token*/, int which) {
    const auto record =
        static_cast<sm90::Record>(__shfl_sync(0xffffffff, static_cast<int>(row.record), which * kWarpTokens));
    const Held held = {static_cast<std::uint16_t>(row.live >> which * kWarpTokens),
                       static_cast<std::uint16_t>(record)};
    begun_ = which % Config::kScorers;
    if (Rows::is_e2m1(record)) {
      begin(shared, thread, held, nvfp4_288::kTokenBytes);
      copy_tokens<nvfp4_288::kCodeBytes, nvfp4_288::kScaleBytes, records::Nvfp4Keys::kPitch>(row, thread % 32,
                                                                                             which, 0);
      return;
    }
    constexpr int kColumns = Mxfp8Keys::kStageColumns, kSecond = mxfp8_528::kDim - kColumns;
    begin(shared, thread, held, kColumns + mxfp8_528::kScaleBytes);
    copy_tokens<kColumns, mxfp8_528::kScaleBytes, Mxfp8Keys::kPitch>(row, thread % 32, which, kSecond);
    if constexpr (kSecond > 0) {
      begin(shared, thread, held, kSecond);
      copy_tokens<kSecond, 0, Mxfp8Keys::kPitch>(row, thread % 32, which, 0);
    }
  }

 private:
  /// Waits for the scoring warp's next stage, and announces bytes of each of its tokens.
  __device__ __forceinline__ void begin(Shared& shared, int thread, Held held, int bytes) {
    const int warp = thread / 32;
    const std::uint32_t turn = begun_ == 0 ? turns_[0] : turns_[1];
    const int slot = turn % Config::kWarpStages;
    ptx::wait(shared.empty[begun_][warp][slot], (turn / Config::kWarpStages & 1) ^ 1);
    (begun_ == 0 ? turns_[0] : turns_[1]) += 1;
    full_ = &shared.full[begun_][warp][slot];
    if (thread % 32 == 0) {
      shared.held[begun_][warp][slot] = held;
      ptx::arrive_expecting(*full_, kWarpTokens * bytes);
    }
    stage_ = shared.stages[begun_][warp][slot];
    __syncwarp();
  }

  /// Copies kBytes of each token, from `offset` on, and kScales bytes of scales, which may follow them.
  template <int kBytes, int kScales, int kPitch>
  __device__ __forceinline__ void copy_tokens(const Row& row, int lane, int which, int offset) const {
    if (lane / kWarpTokens == which) {
      std::uint8_t* to = stage_ + lane % kWarpTokens * kPitch;
      const std::uint8_t* from = row.data + offset;
      const bool apart = kScales > 0 && row.scales != from + kBytes;
      ptx::copy_bytes(to, from, apart ? kBytes : kBytes + kScales, *full_, policy_);
      if (apart) ptx::copy_bytes(to + kBytes, row.scales, kScales, *full_, policy_);
    }
    __syncwarp();
  }

  // Q, page tables, results and instructions stay in L2 instead (loader.cuh).
  const std::uint64_t policy_ = ptx::evict_first_policy();
  int begun_ = 0;                // the scorer of the block that is copied
  std::uint32_t turns_[2] = {};  // stages of each scorer's warp so far
  std::uint8_t* stage_ = nullptr;
  ptx::Barrier* full_ = nullptr;
};

template <class Shared>
struct LoaderOfTokens<Shared, Tokens::kRecords> {
  using Type = ListedRowLoader<Shared, Shared::Config::kListsInRegisters, CopiesOfRecords<Shared>,
                               Shared::Config::kBlocksAhead>;
};

/// Prepares the barriers of all stages; by one thread.
template <class Shared>
__device__ __forceinline__ void init_stages(Shared& shared) {
  using Config = typename Shared::Config;
  for (int i = 0; i < Config::kScorers * 4 * Config::kWarpStages; ++i) {
    ptx::init((&shared.full[0][0][0])[i], LoaderOf<Shared>::kArrivals);
    ptx::init((&shared.empty[0][0][0])[i], 32);
  }
}

}  // namespace flashlatent::fp8
