// A scoring warpgroup of the kernel for records: scores of its blocks, their values to shared memory, P.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_query.cuh"
#include "cuda/sm90/kernels/fp8/output_part.cuh"
#include "cuda/sm90/kernels/fp8/record_keys.cuh"
#include "cuda/sm90/kernels/fp8/records_smem.cuh"
#include "cuda/sm90/math/column_exchange.cuh"
#include "cuda/sm90/math/fragment.cuh"

namespace flashlatent::fp8::records {

inline constexpr int kAlone = 1;  // + which: the named barrier of one warpgroup

template <class Config>
class Scorer : protected OutputPart<SharedMemory<Config>, kAlone> {
  using Base = OutputPart<SharedMemory<Config>, kAlone>;
  using Base::args_, Base::kRows, Base::me_, Base::shared_;
  using Base::fragment, Base::meet_alone, Base::thread;
  using Columns = typename Base::Columns;

 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Base(shared, args) {}

  /// Computes what takes many instructions, once a row and segment.
  __device__ __forceinline__ void prepare(const sm90::RowTile& tile) {
    const int n = threadIdx.x;
    if (n >= kRows) return;
    shared_.base[n] = -INFINITY;
    shared_.finite_base[n] = kNoBase;
    shared_.row_query[n] = {nullptr, nullptr};
    shared_.row_place[n] = sm90::RowPlace<__nv_bfloat16>::find(args_, tile, n);
    if (n >= tile.rows) return;
    shared_.row_query[n].first = reinterpret_cast<const uint4*>(
        sm90::row_of_part<__nv_bfloat16>(args_.query.first, args_.query, tile, n));
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
      const bool has_one = mine < blocks;
      if (has_one) score(first_block_ + mine);
      if (mine > 0 && mine - 1 < blocks) take_over();
      if (!has_one) break;
      softmax();
    }
    first_block_ += blocks;
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
  static constexpr std::uint32_t kAllOfWarp = (1U << kWarpTokens) - 1;

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
    const few_rows::QueryShare<SharedMemory<Config>> share(shared_, /*is_e4m3=*/false);
    const int warp_max = share.warp_max();
    // An empty item may come first: a second phase could be over before loaders wait.
    if (!has_taken_query_) ptx::arrive(shared_.has_query);
    has_taken_query_ = true;
    if (thread() % 32 == 0) shared_.query_max[threadIdx.x / 32] = warp_max;
    meet();
    const int exponent = sm90::query_exponent(shared_.query_max);
    share.store(shared_, __int_as_float((127 + exponent) << 23));
    scale_ = args_.scale_log2 * __int_as_float((127 - exponent) << 23);
    meet();
  }

  /// s_ = K Q^T of this warpgroup's block, in base 2. `block`: counted over all segments.
  __device__ __forceinline__ void score(std::uint32_t block) {
    const std::uint32_t stage = block * 4 + thread() / 32;
    const int slot = stage % Config::kSlots;
    ptx::wait(shared_.full[slot], stage / Config::kSlots & 1);
    const Held held = shared_.held[slot];
    live_ = held.live;
    const bool is_e2m1 = sm90::RecordRows::is_e2m1(static_cast<sm90::Record>(held.record));
    if (__any_sync(0xffffffff, is_e2m1)) {
      multiply<Nvfp4Keys>(shared_.stages[slot]);
    } else {
      multiply<Mxfp8Keys<>>(shared_.stages[slot]);
    }
    ptx::arrive(shared_.empty[slot]);  // by all lanes, which have read it
    free_parity_ ^= 1;
    const float low = scale_ * sm90::power_of_two(units_.low), high = scale_ * sm90::power_of_two(units_.high);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) s_[i] *= i % 4 < 2 ? low : high;
  }

  /// s_ = K Q^T of the block of these keys, which become the values of its place, too.
  template <class Keys>
  __device__ __forceinline__ void multiply(const std::uint8_t* stage) {
    constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;
    const std::uint64_t q =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0));
    const int lane = thread() % 32;
    Keys keys(ptx::shared_address(stage) + lane / 4 * Keys::kPitch, lane % 4, [] {});
    fp8::Operands a[2];
    keys.load(0);
#pragma unroll
    for (int i = 0; i < Config::kChunks; ++i) {
      if (i >= 2) ptx::wgmma_wait<1>();
      keys.widen(a[i % 2], i);
      if (i + 1 < Config::kChunks) keys.load(i + 1);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(s_, a[i % 2], q + i * kTileStep, i > 0);
      ptx::wgmma_commit();
      if (i % (Config::kChunks / 2) == 0) {
        ptx::wait(shared_.free[me_][i / (Config::kChunks / 2)], free_parity_ ^ 1);
      }
      sm90::store_fragment(shared_.values[me_][i], a[i % 2], thread());
    }
    units_ = keys.units();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
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
    if (live_ != kAllOfWarp) [[unlikely]] {
      const int row = thread() % 32 / 4;
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        if ((live_ >> (row + i / 2 % 2 * 8) & 1) == 0) s_[i] = -INFINITY;
      }
    }
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
    const float low_log = sm90::log2_of(units_.low), high_log = sm90::log2_of(units_.high);
    const float low_share = sm90::power_of_two(254 - units_.low),
                high_share = sm90::power_of_two(254 - units_.high);
    const Columns base = columns_of(shared_.finite_base);
    float p[kRows / 2];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      p[at] = sm90::exp2_fast(s_[at] + low_log - base[i]);
      p[at + 2] = sm90::exp2_fast(s_[at + 2] + high_log - base[i]);
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
    const float low_log = sm90::log2_of(units_.low), high_log = sm90::log2_of(units_.high);
    Columns max;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      max[i] = fmaxf(s_[at] + low_log, s_[at + 2] + high_log);
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
    return Base::columns_of(row, [] { return fragment().column; });
  }
  /// This lane's two columns after over_tokens().
  __device__ __forceinline__ void put(float (&row)[kRows], float2 values) const {
    *reinterpret_cast<float2*>(&row[sm90::first_of_lane<kRows>(thread() % 32)]) = values;
  }

  std::uint32_t first_block_ = 0;  // of the segment, counted over all segments
  std::uint32_t other_parity_ = 0;                  // of the barrier of the other's next P
  std::uint32_t free_parity_ = 0;                   // of the barriers of the values' next place
  std::uint32_t meeting_ = 0, meeting_of_all_ = 0;  // of the next ones
  int rows_ = 0;                                    // live ones of the tile
  float scale_ = 0;                                 // of scores in units, to base 2
  std::uint32_t live_ = 0;                          // which of the warp's tokens count
  bool has_taken_query_ = false;                    // the call's first
  Units units_;                                     // of this thread's tokens
  Columns sums_;                                    // of this thread's tokens
  float s_[kRows / 2];
};

}  // namespace flashlatent::fp8::records
