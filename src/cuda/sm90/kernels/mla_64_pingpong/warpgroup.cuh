// What a computing warpgroup does with the blocks of a segment, and hands to the other one. line.cuh,
// team.cuh and share.cuh write the result.
//
// The 64 x d_v output is cut into a left and a right half, one a warpgroup, in registers. Warpgroup 0 scores
// even blocks, warpgroup 1 odd blocks; each multiplies its own P, and the other's P, which comes through
// shared memory, by its half of V:
//
//   warpgroup 0 (left)                          warpgroup 1 (right)
//   S0 = Q K0^T                    --turn-->
//   max, P0                        --P0,max-->  S1 = Q K1^T
//   O_l += P0 V0_l                              O_r += P0 V0_r, meanwhile max, exponentials of S1
//   O_l += P1 V1_l                 <--P1,max--  O_r += P1 V1_r
//
// The odd block's P comes in halves of 32 tokens: products with the first half run while the second's
// exponentials are taken. If blocks are converted to units of tokens (Config::kUnits), S1 comes after P0
// V0_r.
//
// What is subtracted from scores (the running maximum, math/softmax.cuh) passes from block to block, so that
// both halves have the same scale.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/copy_query.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/phases.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/poison.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/query_units.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/smem_layout.cuh"
#include "cuda/sm90/load/cache_scale.cuh"
#include "cuda/sm90/load/q_loader.cuh"
#include "cuda/sm90/load/query_max.cuh"
#include "cuda/sm90/math/finite_scores.cuh"
#include "cuda/sm90/math/fragment.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/pv_mma.cuh"
#include "cuda/sm90/math/qk_mma.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/math/unit_scores.cuh"
#include "cuda/sm90/walk/kv_tokens.cuh"
#include "cuda/sm90/walk/row_tile.cuh"
#include "cuda/sm90/walk/work_queue.cuh"

namespace flashlatent::mla_64_pingpong {

/// One of the two computing warpgroups: its half of the output and its rows' statistics. kMe = 0: even blocks
/// and the left half; kMe = 1: odd blocks and the right half. Only the loop over blocks is compiled for each
/// warpgroup (Config::kSharesCode).
template <class Config>
class Warpgroup {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Warpgroup(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                       const sm90::QueryMaps& query_maps, int me)
      : shared_(shared),
        args_(args),
        query_maps_(query_maps),
        thread_(threadIdx.x % 128),
        me_(me),
        fragment_(sm90::fragment_of(thread_)),
        cache_scale_(sm90::cache_scale<typename Config::Loader>(args.cache)) {}

  /// Starts loading Q of the next segment, as soon as both warpgroups are done with the previous Q.
  __device__ __forceinline__ void request_query(const sm90::Work& next) {
    if (next.is_end() || next.blocks() == 0 || !args_.query.rows_in_boxes) return;
    if (ptx::elect_one()) {
      ptx::wait(shared_.q_empty, parities_[kQuery] ^ 1);
      copy_query(shared_, args_, query_maps_, next.tile);
    }
    __syncwarp();
  }

  /// All blocks of one segment.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    start(work);
    const int blocks = work.blocks();
    if (blocks == 0) return;
    take_query(work.tile);
    seen_ = seen(work, 0).end - (work.segment.block_begin + me_) * 64;
    if (is_left()) {
      for (int left = blocks; left > 0; left -= 2, seen_ -= 128) attend_left(work, left > 1);
    } else {
      for (int left = blocks; left > 0; left -= 2, seen_ -= 128) attend_right(work, left > 1);
    }
    __syncwarp();
    if (thread_ % 32 == 0) ptx::arrive(shared_.q_empty);
  }

 protected:
  static constexpr bool kUnits = Config::kUnits;

  /// The units of tokens of this warpgroup's block, from the thread's first column of a fragment on.
  __device__ __forceinline__ const float* units(int block) const {
    if constexpr (kUnits) return shared_.state[block].units + fragment_.column;
    return nullptr;
  }

  /// The rows' sums of each warpgroup, in any order, when both are done with all blocks.
  using RowSums = float[2][64];
  __device__ __forceinline__ const RowSums& add_up_rows(const sm90::Work& work) {
    const sm90::RowPair mine{sm90::quad_sum(sum_.low), sm90::quad_sum(sum_.high)};
    RowSums& row_sum = place_of_sums();
    const int& poisoned = shared_.poisoned[parities_[kMeeting]];
    // With a single place no warpgroup writes zeros to it while the other may still read.
    if (fragment_.column == 0 && !(kUnits && work.blocks() == 0)) {
      const int place = kUnits ? me_ ^ 1 : me_;  // bases of the other's blocks, which this warpgroup was the
                                                 // last to read
      row_sum[place][fragment_.row] = mine.low;
      row_sum[place][fragment_.row + 8] = mine.high;
    }
    meet();
    if (!Config::kRowsAlike && poisoned != 0) spread_poison();
    return row_sum;
  }
  __device__ __forceinline__ RowSums& place_of_sums() {
    if constexpr (kUnits) {
      return shared_.row_base;
    } else if constexpr (Config::kTurns) {
      return shared_.row_sums.sums;  // both synchronise once more after reading it
    } else {
      return shared_.row_sums.of[parities_[kMeeting]];  // the other place may still be read
    }
  }

  /// The number of the segment's partial result, among those of all row tiles.
  __device__ __forceinline__ std::int64_t slot_of(const sm90::Work& work) const {
    const schedule::Geometry& g = args_.geometry;
    return static_cast<std::int64_t>(work.segment.partial) * g.lanes + args_.lanes.remainder(blockIdx.x);
  }

  /// With a vote ptxas places the left warpgroup's loop first: 128 heads then take 0.235 ms, otherwise 0.236.
  __device__ __forceinline__ bool is_left() const {
    return Config::kSharesCode ? !__any_sync(0xffffffff, me_ != 0) : me_ == 0;
  }

  __device__ __forceinline__ void start(const sm90::Work& work) {
#pragma unroll
    for (float& x : o_) x = 0;
    base_ = {-INFINITY, -INFINITY};
    sum_ = {0, 0};
    slack_ = {0, 0};
    if constexpr (Config::kTurns) {
      if (fragment_.column == 0) shared_.row_sums.begin(me_, fragment_.row);
    }
  }

  __device__ __forceinline__ TokenPrefix seen(const sm90::Work& work, int row) const {
    if constexpr (!Config::kSpans) return work.tile.seen_in_context(args_, work.segment.length, row);
    return work.tile.seen(args_, work.segment.length, row);
  }

  /// The first token of this warpgroup's block.
  __device__ __forceinline__ int start_token(const sm90::Work& work) const {
    return seen(work, 0).end - seen_;
  }

  /// Synchronises both warpgroups. Not by a named barrier: racecheck loses track of one that is waited for
  /// while another completes.
  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.meeting);
    ptx::wait(shared_.meeting, parities_.next(kMeeting));
  }

  /// Q is in shared memory.
  __device__ __forceinline__ void take_query(const sm90::RowTile& tile) {
    if (Config::kAtOnce || Config::kQueryInLine || args_.query.rows_in_boxes) {
      ptx::wait(shared_.q_full, parities_[kQuery]);
    } else {
      meet();  // the previous segment has read its Q
      sm90::load_query<Element, sm90::kTileRows, Config::kQkChunks, Config::kComputeThreads>(
          shared_.q[0].bytes, args_.query, tile, threadIdx.x);
      meet();
    }
    parities_.next(kQuery);
    if constexpr (kUnits) convert_query(tile.rows);
  }

  /// For values in units of tokens.
  __device__ __forceinline__ void convert_query(int rows) {
    const QueryShare<Config> share(shared_, threadIdx.x);
    const std::uint32_t warp_max =
        sm90::QueryMax<Config::kQkChunks, Config::kComputeThreads>(shared_.q, threadIdx.x, rows).of_warp();
    if (thread_ % 32 == 0) shared_.query_max.of_warp[threadIdx.x / 32] = warp_max;
    meet();
    const int exponent = sm90::query_exponent(shared_.query_max.of_warp);
    share.multiply(__int_as_float((127 + exponent) << 23));
    scale_ = args_.scale_log2 * __int_as_float((127 - exponent) << 23);
    meet();
  }

  /// The left warpgroup's work on an even block and the odd block after it, if there is one.
  __device__ __forceinline__ void attend_left(const sm90::Work& work, bool has_odd) {
    score<0>();
    const sm90::RowPair factor = take_maximum<0>(work);
    shrink_sum(factor);
    take_exponentials<0, 0, 4>();
    if constexpr (kUnits) release_rope<0>();
    hand_over_base<0>();
    hand_over_probabilities<0, 4>(kEven);
    rescale(factor);
    multiply<0, 0, 4>(0);
    settle_slack();
    finish_product<0>(0);
    if (!has_odd) return;
    take_over_base(1);
    take_over_probabilities<0, 2>();
    multiply<0, 0, 2>(1);
    ptx::wait(shared_.handed_over[kOddSecond], parities_.next(kSecondHalf));
    take_over_probabilities<2, 4>();
    multiply<0, 2, 4>(1);
    finish_product<0>(1);
  }

  /// The right warpgroup's work on both blocks. It scores while the left one takes exponentials, and takes
  /// its own exponentials while the even block's product runs.
  __device__ __forceinline__ void attend_right(const sm90::Work& work, bool has_odd) {
    if constexpr (!kUnits) {
      settle_slack();
      take_turn();
      if (has_odd) score<1>();
    }
    take_over_base(0);
    take_over_probabilities<0, 4>();
    multiply<1, 0, 4>(0);
    if (!has_odd) {
      finish_product<1>(0);
      return;
    }
    // A converted block comes late, and what the even block frees must be filled meanwhile.
    if constexpr (kUnits) score<1>();
    const sm90::RowPair factor = take_maximum<1>(work);
    shrink_sum(factor);
    take_exponentials<1, 0, 2>();
    if constexpr (!kUnits) finish_product<1>(0);
    hand_over_base<1>();
    hand_over_probabilities<0, 2>(kOddFirst);
    rescale(factor);
    multiply<1, 0, 2>(1);
    take_exponentials<1, 2, 4>();
    if constexpr (kUnits) release_rope<1>();
    hand_over_probabilities<2, 4>(kOddSecond);
    multiply<1, 2, 4>(1);
    finish_product<1>(1);
  }

  /// The right warpgroup's QK^T starts as soon as the left one's is under way: then one warpgroup has
  /// products for the tensor cores while the other takes exponentials.
  __device__ __forceinline__ void give_turn() {
    if (thread_ % 32 == 0) ptx::arrive(shared_.scored);
  }
  __device__ __forceinline__ void take_turn() {
    ptx::wait(shared_.scored, parities_.next(kTurn));
  }

  /// s = Q K^T of this warpgroup's block, chunk by chunk as tiles land.
  template <int kMe>
  __device__ __forceinline__ void score() {
    typename Config::State& state = shared_.state[kMe];
#pragma unroll
    for (int i = 0; i < Config::kQkChunks; ++i) {
      const int chunk = Config::chunk_order(kMe, i);
      const int barrier = Config::full_of(chunk);
      if (i == 0 || barrier != Config::full_of(Config::chunk_order(kMe, i - 1))) {
        ptx::wait(state.full[barrier], parities_[kBlock]);
        if constexpr (Config::Loader::kReaderFences) ptx::fence_for_async_proxy();
      }
      if (i == 0) take_live(state);
      ptx::wgmma_fence();
      // RoPE is never converted.
      const sm90::Tile &q = shared_.q[chunk], &k = shared_.kv[kMe].tiles[chunk];
      if (chunk < Config::kVChunks) {
        sm90::qk_chunk<typename Config::Operand>(s_, descriptors_, q, k, i > 0);
      } else {
        sm90::qk_chunk<Element>(s_, descriptors_, q, k, i > 0);
      }
      if constexpr (kUnits && kMe == 1) {
        if (i == 0) {
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>();
          ptx::pin_registers(o_);
          release_half<1>(0);
        }
      }
    }
    ptx::wgmma_commit();
    if constexpr (kMe == 0 && !kUnits) give_turn();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
    parities_.next(kBlock);
    if constexpr (!kUnits) release_rope<kMe>();
  }
  /// With the block's units, if there are any.
  template <int kMe>
  __device__ __forceinline__ void release_rope() {
#pragma unroll
    for (int chunk = Config::kVChunks; chunk < Config::kQkChunks; ++chunk) release(kMe, chunk);
  }

  /// As sm90::DecodeArguments has them, with the scale of the cache.
  __device__ __forceinline__ float scale_log2() const {
    return args_.scale_log2 * cache_scale_;
  }
  __device__ __forceinline__ float positive_scale() const {
    if constexpr (!sm90::kLeavesCacheScale<typename Config::Loader>) return args_.positive_scale;
    return scale_log2() > 0 ? scale_log2() : 1.0F;
  }

  /// Masks scores and settles the base by their maximum. Returns the factor of the output so far.
  template <int kMe>
  __device__ __forceinline__ sm90::RowPair take_maximum(const sm90::Work& work) {
    float scale = 1;
    if constexpr (kUnits) {
      sm90::add_units(s_, units(kMe), scale_);
    } else {
      if constexpr (!Config::kFewBlocks) sm90::scale_unless_positive(s_, scale_log2());
      scale = positive_scale();
    }
    const std::uint64_t partial = Config::kRowsAlike ? 0 : sm90::partial_tokens(live_, {seen_});
    // With few blocks both of what is rare is one branch.
    const bool scales = Config::kFewBlocks && !(args_.scale_log2 > 0);
    if (live_ != sm90::kAllLive || partial != 0 || scales) {
      if (scales) sm90::multiply(s_, args_.scale_log2);
      const bool finite = Config::Loader::kZeroesDead || sm90::all_finite(s_);
      const int start = Config::kRowsAlike ? 0 : start_token(work);
      const auto from_start = [&](int row) -> TokenPrefix {
        return {Config::kRowsAlike ? sm90::kTileRows : seen(work, row).end - start};
      };
      sm90::mask_scores(s_, live_, from_start(fragment_.row), from_start(fragment_.row + 8), fragment_);
      if constexpr (Config::Loader::kZeroesDead) {
        if (partial != 0) silence<kMe>(work, partial);
      } else if (ptx::named_any(kAlone + kMe, 128, !finite)) {
        silence<kMe>(work, partial);
      }
    }
    const sm90::RowPair before = base_;
    if constexpr (Config::kTurns) {
      const sm90::RowPair raw = sm90::row_max(s_);
      const sm90::RowPair block{raw.low * scale, raw.high * scale};
      if (fragment_.column == 0)
        shared_.row_sums.raise(me_, fragment_.row, block);  // not in registers: spilled
      base_ = {sm90::settle_base(before.low, block.low, slack_.low),
               sm90::settle_base(before.high, block.high, slack_.high)};
    } else {
      base_ = kUnits ? sm90::row_base_of_units(s_, before) : sm90::row_base(s_, scale, before, slack_);
    }
    return sm90::shrink(before, base_);
  }

  __device__ __forceinline__ void shrink_sum(sm90::RowPair factor) {
    sum_ = {sum_.low * factor.low, sum_.high * factor.high};
  }

  /// From scores to probabilities, in s_, for tokens [16 kBegin, 16 kEnd).
  template <int kMe, int kBegin, int kEnd>
  __device__ __forceinline__ void take_exponentials() {
    auto& s = reinterpret_cast<float(&)[8 * (kEnd - kBegin)]>(s_[8 * kBegin]);
    sm90::RowPair sum;
    if constexpr (kUnits) {
      sum = sm90::exponentials_of_units(s, units(kMe) + 16 * kBegin, base_);
    } else {
      sum = Config::kFewBlocks ? sm90::exponentials_by_row(s, positive_scale(), base_)
                               : sm90::exponentials(s, positive_scale(), base_);
    }
    sum_ = {sum_.low + sum.low, sum_.high + sum.high};
  }

  /// The slack for the next block, computed while a product runs. This warpgroup's half of the blocks stands
  /// for all.
  __device__ __forceinline__ void settle_slack() {
    if constexpr (kUnits) return;
    slack_ = {sm90::slack_of(sm90::quad_sum(sum_.low), true),
              sm90::slack_of(sm90::quad_sum(sum_.high), true)};
  }

  /// Which tokens of the block count. Call before any of its tiles is freed: the loader then writes the next
  /// block's. One lane reads, the one that frees tiles, so that its arrival orders the read.
  __device__ __forceinline__ void take_live(const typename Config::State& state) {
    if constexpr (kUnits) {
      const int lane = thread_ % 32;
      const std::uint32_t low = __ballot_sync(0xffffffff, !signbit(state.units[lane]));
      const std::uint32_t high = __ballot_sync(0xffffffff, !signbit(state.units[32 + lane]));
      live_ = std::uint64_t{high} << 32 | low;
    } else {
      std::uint64_t live = 0;
      if (thread_ % 32 == 0) live = state.live[parities_[kBlock]];
      live_ = __shfl_sync(0xffffffff, live, 0);
    }
  }

  template <int kMe>
  __device__ __forceinline__ void silence(const sm90::Work& work, std::uint64_t partial) {
    silence_block<Config, kMe>(shared_, args_, work, live_, partial, thread_, parities_,
                               [&] { return start_token(work); });
  }

  template <int kMe>
  __device__ __forceinline__ void hand_over_base() {
    if (fragment_.column == 0) {
      shared_.row_base[kMe][fragment_.row] = base_.low;
      shared_.row_base[kMe][fragment_.row + 8] = base_.high;
    }
  }

  /// Packs P of tokens [16 kBegin, 16 kEnd) into p_, and stores it to shared memory. Each warp hands its 16
  /// rows to a warp of the other warpgroup; it has itself read the previous P there, or seen its block's
  /// tiles refilled.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void hand_over_probabilities(HandOver part) {
    sm90::pack_probabilities<typename Config::Operand, kBegin, kEnd>(p_, s_);
    __syncwarp();
    sm90::store_fragment<kBegin, kEnd>(shared_.p, p_, thread_);
    ptx::arrive(shared_.handed_over[part]);
  }

  template <int kBegin, int kEnd>
  __device__ __forceinline__ void take_over_probabilities() {
    __syncwarp();  // for racecheck, which sees this warp's own P there before
    sm90::load_fragment<kBegin, kEnd>(p_, shared_.p, thread_);
  }

  /// Waits for the other warpgroup's probabilities, and rescales the sums so far to their base.
  __device__ __forceinline__ void take_over_base(int block) {
    ptx::wait(shared_.handed_over[block], parities_.next(kHandOver));
    const sm90::RowPair before = base_;
    base_ = {shared_.row_base[block][fragment_.row], shared_.row_base[block][fragment_.row + 8]};
    const sm90::RowPair factor = sm90::shrink(before, base_);
    if constexpr (!kUnits)
      slack_ = {fmaxf(slack_.low - (base_.low - before.low), 0.0F),
                fmaxf(slack_.high - (base_.high - before.high), 0.0F)};
    shrink_sum(factor);
    rescale(factor);
  }

  /// o_ += p_ V, for this half of `block`'s V. P is in registers: from shared memory wgmma would read it
  /// along with V, and shared memory is as busy as the tensor cores.
  template <int kMe, int kBegin, int kEnd>
  __device__ __forceinline__ void multiply(int block) {
    if (kBegin == 0) ptx::pin_registers(o_);
    ptx::wgmma_fence();
    sm90::pv<typename Config::Operand, Config::kHalfDim, kBegin, kEnd, Config::kPvColumns>(
        o_, p_, descriptors_, shared_.kv[block].tiles + kMe * Config::kHalfChunks);
    ptx::wgmma_commit();
  }

  /// Waits for the product with `block`'s V and frees its tiles: the product is their last reader.
  template <int kMe>
  __device__ __forceinline__ void finish_product(int block) {
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o_);
    release_half<kMe>(block);
  }
  template <int kMe>
  __device__ __forceinline__ void release_half(int block) {
#pragma unroll
    for (int i = 0; i < Config::kHalfChunks; ++i) release(block, kMe * Config::kHalfChunks + i);
  }

  __device__ __forceinline__ void rescale(sm90::RowPair factor) {
    if (sm90::shrinks(factor)) sm90::rescale(o_, factor);
  }

  /// Frees a tile, by its last readers: one arrival a warp, once all its lanes are done, or each lane's.
  __device__ __forceinline__ void release(int block, int chunk) {
    if (Config::barrier_of(chunk) != chunk) return;
    constexpr bool kAllArrive = Config::Loader::kAllReadersArrive;
    ptx::Barrier& empty = shared_.state[block].empty[chunk];
    if constexpr (kAllArrive) ptx::arrive(empty);
    if constexpr (!kAllArrive || Config::kCluster > 1) {
      __syncwarp();
      if (thread_ % 32 != 0) return;
    }
    if constexpr (!kAllArrive) ptx::arrive(empty);
    if constexpr (Config::kCluster > 1) ptx::arrive_at(ptx::rank_in_cluster() ^ 1, empty);
  }

  __device__ __forceinline__ void spread_poison() {
    mla_64_pingpong::spread_poison<Config>(shared_, o_, me_, fragment_, parities_, [&] { meet(); });
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const sm90::QueryMaps& query_maps_;
  const ptx::Descriptors<(Config::kCluster * Config::kTeam > 1)> descriptors_{&shared_};
  const int thread_;
  const int me_;
  const sm90::Fragment fragment_;
  const float cache_scale_;
  Parities parities_;
  int seen_ = 0;            // tokens from its block on that the tile's first row attends to
  std::uint64_t live_ = 0;  // which of its tokens count
  float scale_ = 0;         // of scores in units of tokens, to base 2
  sm90::RowPair base_;      // what is subtracted from scores, base 2
  sm90::RowPair slack_;     // how far a score may be above it
  sm90::RowPair sum_;       // this thread's share
  std::uint32_t p_[4][4];
  float s_[32];
  float o_[Config::kHalfDim / 2];
};

}  // namespace flashlatent::mla_64_pingpong
