// A scoring warpgroup of the kernel for records: scores of its blocks, their values to shared memory, P.
#pragma once

#include "cuda/sm90/kernels/fp8/output_part.cuh"
#include "cuda/sm90/kernels/fp8/records_block.cuh"
#include "cuda/sm90/kernels/fp8/records_query.cuh"
#include "cuda/sm90/kernels/fp8/records_smem.cuh"
#include "cuda/sm90/math/column_exchange.cuh"

namespace flashlatent::fp8::records {

inline constexpr int kAlone = 1;  // + which: the named barrier of one warpgroup

template <class Config>
class Scorer : ScoredBlock<SharedMemory<Config>> {
  using Base = ScoredBlock<SharedMemory<Config>>;
  using Base::kRows, Base::live_, Base::s_, Base::shared_, Base::thread, Base::units_;
  using Columns = sm90::ColumnValues<kRows>;

 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Base(shared, threadIdx.x / 128), args_(args), me_(threadIdx.x / 128) {}

  /// Computes what takes many instructions, once a row and segment.
  __device__ __forceinline__ void prepare(const sm90::RowTile& tile) {
    const int n = threadIdx.x;
    if (n >= kRows) return;
    shared_.base[n] = -INFINITY;
    shared_.finite_base[n] = kNoBase;
    find_row(shared_, args_, tile, n);
    if constexpr (Config::kEdges) {
      if (n == 0) {
        shared_.edges.request = tile.request;
        shared_.edges.token = tile.first_token;
      }
    }
  }
  /// Q of that tile.
  __device__ __forceinline__ void begin(bool has_blocks) {
    meet();
    if (has_blocks) take_query();
  }

  /// All blocks of one segment that has begun.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    const int blocks = work.blocks();
    rows_ = work.tile.rows;
    sums_ = {};
#pragma unroll 1
    for (int mine = me_;; mine += Config::kScorers) {
      const bool has_one = mine<blocks, has_other = mine> 0 && mine - 1 < blocks;
      if (has_other) this->pass_block();
      if (has_one) score();
      if (has_other) take_over();
      if (!has_one) break;
      softmax();
    }
  }

  /// The output's warpgroup then writes the segment's result.
  __device__ __forceinline__ void finish() {
    put(shared_.warp_sum[me_][thread() / 32],
        sm90::over_tokens<kRows>(sums_, thread() % 32, [](float a, float b) { return a + b; }));
    meet_all();
    meet_all();  // statistics and places of rows have been read
  }

 private:
  static constexpr int kColumns = kRows / 4;  // of S^T, a thread's

  __device__ __forceinline__ void meet_alone() const {
    ptx::named_sync(kAlone + me_, 128);
  }
  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.scorers_meet);
    ptx::wait(shared_.scorers_meet, meeting_);
    meeting_ ^= 1;
  }
  __device__ __forceinline__ void meet_all() {
    ptx::arrive(shared_.all_meet);
    ptx::wait(shared_.all_meet, meeting_of_all_);
    meeting_of_all_ ^= 1;
  }

  /// All have done with the previous Q: they have synchronised since.
  __device__ __forceinline__ void take_query() {
    QueryShare<SharedMemory<Config>> share(shared_);
    if constexpr (Config::kEdges) {
      const edges::Rotary& rotary = args_.edges.query;
      if (rotary.positions != nullptr) {
        typename decltype(share)::Angles angles;
        share.find_angles(angles, rotary, rotary.position(shared_.edges.request, shared_.edges.token));
        share.come();
        announce_query();  // loaders need not wait for angles
        share.turn(angles);
      }
    }
    const int warp_max = share.warp_max();
    announce_query();
    if (thread() % 32 == 0) shared_.query_max[threadIdx.x / 32] = warp_max;
    meet();
    const int exponent = sm90::query_exponent(shared_.query_max);
    share.store(shared_, __int_as_float((127 + exponent) << 23));
    scale_ = args_.scale_log2 * __int_as_float((127 - exponent) << 23);
    meet();
  }

  /// The call's first Q has come. An empty item may come first: a second phase could be over before loaders
  /// wait.
  __device__ __forceinline__ void announce_query() {
    if (!has_taken_query_) ptx::arrive(shared_.has_query);
    has_taken_query_ = true;
  }

  /// s_ = K Q^T of this warpgroup's next block, in base 2, with the logarithms of the tokens' units.
  __device__ __forceinline__ void score() {
    Base::score();
    this->to_exponents(scale_);
  }

  /// The other scorer's P is ready: rescales the sums so far to its base.
  __device__ __forceinline__ void take_over() {
    const int other = me_ ^ 1;
    ptx::wait(shared_.has_p[other], other_parity_);
    other_parity_ ^= 1;
    if (shared_.shrinks[other] != 0) [[unlikely]]
      shrink_sums(other);
  }
  __device__ __forceinline__ void shrink_sums(int place) {
    const Columns factor = columns_of(shared_.factor[place]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums_[i] *= factor[i];
  }

  /// From scores to P in shared memory, times the tokens' units. The output's warpgroup has read what is
  /// overwritten, or the values' place would not be free; so has the other scorer, whose P has come since.
  __device__ __forceinline__ void softmax() {
    if (live_ != Base::kAllOfWarp) [[unlikely]]
      this->mask();
    if (thread() == 0) shared_.shrinks[me_] = 0;
    Columns sums;
    const bool exceeds = take_exponentials(sums);
    if (ptx::named_any(kAlone + me_, 128, exceeds)) [[unlikely]]
      rebase(sums);
    ptx::arrive(shared_.has_p[me_]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums_[i] += sums[i];
  }

  /// Computes P, relative to the bases so far, and the sums of this thread's columns, which leave units out.
  /// Is any P too large?
  __device__ __forceinline__ bool take_exponentials(Columns& sums) const {
    const float low_share = sm90::power_of_two(254 - units_.low),
                high_share = sm90::power_of_two(254 - units_.high);
    const Columns base = columns_of(shared_.finite_base);
    float p[kRows / 2];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      p[at] = sm90::exp2_fast(s_[at] - base[i]);
      p[at + 2] = sm90::exp2_fast(s_[at + 2] - base[i]);
      sums[i] = fmaf(p[at], low_share, p[at + 2] * high_share);
      largest = fmaxf(largest, fmaxf(p[at], p[at + 2]));
    }
    sm90::store_probabilities<__half, kRows>(ptx::shared_address(shared_.p[me_]), p, thread());
    ptx::fence_for_async_proxy();  // values, too
    return is_too_large(largest);
  }
  __device__ __forceinline__ static bool is_too_large(float p) {
    return p > 1 << (Config::kLargestP + Config::kSlack);
  }

  /// Raises bases, and computes P again.
  __device__ __forceinline__ void rebase(Columns& sums) {
    Columns max;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      max[i] = fmaxf(s_[at], s_[at + 2]);
    }
    put(shared_.warp_max[me_][thread() / 32],
        sm90::over_tokens<kRows>(max, thread() % 32, [](float a, float b) { return fmaxf(a, b); }));
    meet_alone();
    if (thread() < kRows) settle_base(thread());
    meet_alone();
    if (shared_.shrinks[me_] != 0) shrink_sums(me_);
    take_exponentials(sums);
    meet_alone();
  }

  /// Row n's base. Whether it moves is decided as in take_exponentials(), by the row alone.
  __device__ __forceinline__ void settle_base(int n) {
    const float before = shared_.base[n];
    const auto& of_warp = shared_.warp_max[me_];
    const float max = fmaxf(fmaxf(of_warp[0][n], of_warp[1][n]), fmaxf(of_warp[2][n], of_warp[3][n]));
    const bool moves = is_too_large(sm90::exp2_fast(max - shared_.finite_base[n]));
    const float base = moves ? max : before;
    const float factor = before == -INFINITY ? 1.0F : sm90::exp2_fast(before - base);
    if (factor != 1.0F && n < rows_) shared_.shrinks[me_] = 1;
    shared_.base[n] = base;
    // Rounded up as in math/unit_scores.cuh.
    shared_.finite_base[n] = base == -INFINITY ? kNoBase : __fsub_ru(base, Config::kLargestP);
    shared_.factor[me_][n] = factor;
  }

  /// This thread's columns of a row of kRows values.
  __device__ __forceinline__ static Columns columns_of(const float (&row)[kRows]) {
    Columns values;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(&row[8 * j + sm90::fragment_of(thread()).column]);
      values[2 * j] = pair.x;
      values[2 * j + 1] = pair.y;
    }
    return values;
  }
  /// This lane's two columns after over_tokens().
  __device__ __forceinline__ void put(float (&row)[kRows], float2 values) const {
    *reinterpret_cast<float2*>(&row[sm90::first_of_lane<kRows>(thread() % 32)]) = values;
  }

  const sm90::DecodeArguments& args_;
  const int me_;
  std::uint32_t other_parity_ = 0;                  // of the barrier of the other's next P
  std::uint32_t meeting_ = 0, meeting_of_all_ = 0;  // of the next ones
  int rows_ = 0;                                    // live ones of the tile
  float scale_ = 0;                                 // of scores in units, to base 2
  bool has_taken_query_ = false;                    // the call's first
  Columns sums_;                                    // of this thread's tokens
};

}  // namespace flashlatent::fp8::records
