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

/// Where a loading warp's tokens of two blocks are.
struct alignas(16) RecordPlaces {
  const std::uint8_t *data[2 * kWarpTokens], *scales[2 * kWarpTokens];
};

/// Copies of a warp's 16 tokens of a block to its stages, by one lane: if each lane copies its own token,
/// ptxas makes a loop over lanes of it, in which a copy takes 100 clocks. Whole tokens, or halves of
/// mxfp8_528's columns (Config::kWholeTokens), the last half first, since scales may follow it. Each scoring
/// warp has stages of its own, of which it takes one after another: a barrier's parity would not tell it
/// another warp's uses from its own.
template <class Shared>
class CopiesOfRecords {
  using Config = typename Shared::Config;
  using Rows = sm90::RecordRows;
  using Mxfp8Keys = records::Mxfp8Keys<Config::kWholeTokens>;

 public:
  /// A lane's token.
  struct Row {
    sm90::Record record;
    bool scales_apart;   // do they not follow a token's data?
    std::uint32_t live;  // of the warp's tokens of both blocks
  };
  static constexpr int kArrivals = 1;   // beside the bytes
  static constexpr bool kLoops = true;  // instructions of copies are many

  /// This lane's token.
  __device__ __forceinline__ Row locate(Shared& shared, const sm90::CacheArguments& cache,
                                        const sm90::ListRange& lists, sm90::ListPlace place,
                                        int entry) const {
    const sm90::ListedToken found = sm90::token_of(cache, lists, place, entry, /*kv_head=*/0);
    const sm90::ListedCache& of = cache.listed[place.second];
    const bool live = found.data != nullptr;
    const std::uint8_t* data = live ? found.data : reinterpret_cast<const std::uint8_t*>(kDeadRecord);
    RecordPlaces& places = shared.places[threadIdx.x % 128 / 32];
    places.data[threadIdx.x % 32] = data;
    if (of.scales_apart) {
      places.scales[threadIdx.x % 32] =
          data + (live ? Rows::scales_offset(of, found.in_page) : Rows::data_bytes(of.record));
    }
    return {of.record, of.scales_apart, __ballot_sync(0xffffffff, live)};
  }

  /// The first or the second block of a pair.
  __device__ __forceinline__ void copy(Shared& shared, const Row& row, int thread, int /*token*/, int which) {
    // A block's tokens are of one list, so any lane's value is the block's.
    const auto of_block = [which](auto of_lane) {
      return __shfl_sync(0xffffffff, static_cast<int>(of_lane), which * kWarpTokens);
    };
    const auto record = static_cast<sm90::Record>(of_block(row.record));
    const bool apart = of_block(row.scales_apart) != 0;
    const Held held = {static_cast<std::uint16_t>(row.live >> which * kWarpTokens),
                       static_cast<std::uint16_t>(record)};
    begun_ = which % Config::kScorers;
    if (Rows::is_e2m1(record)) {
      begin(shared, thread, held, nvfp4_288::kTokenBytes);
      copy_tokens<nvfp4_288::kCodeBytes, nvfp4_288::kScaleBytes, records::Nvfp4Keys::kPitch>(shared, thread,
                                                                                             which, 0, apart);
      return;
    }
    constexpr int kColumns = Mxfp8Keys::kStageColumns, kSecond = mxfp8_528::kDim - kColumns;
    begin(shared, thread, held, kColumns + mxfp8_528::kScaleBytes);
    copy_tokens<kColumns, mxfp8_528::kScaleBytes, Mxfp8Keys::kPitch>(shared, thread, which, kSecond, apart);
    if constexpr (kSecond > 0) {
      begin(shared, thread, held, kSecond);
      copy_tokens<kSecond, 0, Mxfp8Keys::kPitch>(shared, thread, which, 0, false);
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

  /// Copies kBytes of each token, from `offset` on, and kScales bytes of scales: `apart`, or behind them.
  template <int kBytes, int kScales, int kPitch>
  __device__ __forceinline__ void copy_tokens(const Shared& shared, int thread, int which, int offset,
                                              bool apart) const {
    if (ptx::elect_one()) {
      const RecordPlaces& places = shared.places[thread / 32];
      const auto first = [which](const std::uint8_t* const(&of)[2 * kWarpTokens]) {
        return ptx::shared_address(of + which * kWarpTokens);
      };
      copy_all<kPitch>(stage_, first(places.data), offset, apart ? kBytes : kBytes + kScales);
      if (apart) copy_all<kPitch>(stage_ + kBytes, first(places.scales), 0, kScales);
    }
    __syncwarp();
  }
  /// So many bytes of each token. `places`: the address of the tokens' addresses, of which some come at once.
  template <int kPitch>
  __device__ __forceinline__ void copy_all(std::uint8_t* to, std::uint32_t places, int offset,
                                           int bytes) const {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int begin = 0; begin < kWarpTokens; begin += kAtOnce) {
      const std::uint8_t* from[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i += 2) {
        const uint4 two = ptx::load_shared_16_bytes(places + (begin + i) * sizeof(from[0]));
        from[i] = reinterpret_cast<const std::uint8_t*>(two.x | static_cast<std::uint64_t>(two.y) << 32);
        from[i + 1] = reinterpret_cast<const std::uint8_t*>(two.z | static_cast<std::uint64_t>(two.w) << 32);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        ptx::copy_bytes(to + (begin + i) * kPitch, from[i] + offset, bytes, *full_, policy_);
      }
    }
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
