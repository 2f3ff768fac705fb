// The scoring warpgroup of the 64-row kernel for records: Q, scores of blocks, their values and P to shared
// memory, and what rows end with.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_listed.cuh"
#include "cuda/sm90/kernels/fp8/output_part.cuh"
#include "cuda/sm90/kernels/fp8/records64_smem.cuh"
#include "cuda/sm90/kernels/fp8/records_block.cuh"
#include "cuda/sm90/kernels/fp8/rows64_query.cuh"
#include "cuda/sm90/math/column_exchange.cuh"

namespace flashlatent::fp8::records64 {

template <class Config>
class Scorer : records::ScoredBlock<SharedMemory<Config>> {
  using Base = records::ScoredBlock<SharedMemory<Config>>;
  using Base::kRows, Base::live_, Base::s_, Base::shared_, Base::thread, Base::units_;
  using Columns = sm90::ColumnValues<kRows>;

 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                    const sm90::QueryMaps& query_maps)
      : Base(shared, 0), args_(args), query_(shared, args, query_maps) {}

  /// Finds an item's rows, and takes their Q, if there is any, when the item before has been scored and the
  /// outputs have read what its rows ended with.
  __device__ __forceinline__ void begin(const sm90::Work& work, bool takes_query) {
    ptx::wait(shared_.rows_read, rows_parity_ ^ 1);
    rows_parity_ ^= 1;
    if (thread() < kRows) find_row(work.tile, thread());
    if (takes_query) scale_ = query_.take(work);
  }
  /// The item whose Q has been taken has no blocks.
  __device__ __forceinline__ void forget() { query_.forget_angles(); }

  /// All blocks of the item here, and what its rows end with.
  __device__ __forceinline__ void attend(const sm90::WorkPosition& position) {
    const sm90::Work& work = position.get();
    const int blocks = work.blocks();
    rows_ = work.tile.rows;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums_[i] = 0;
    if (thread() < kRows) {
      shared_.base[thread()] = -INFINITY;
      shared_.finite_base[thread()] = kNoBase;
    }
    meet();
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      Base::score();
      ptx::arrive(shared_.calm);
      this->to_exponents(scale_);
      softmax(i == 0);
    }
    finish(work);
    if (blocks > 0) ask_ahead(position.ahead());
  }

 private:
  static constexpr int kColumns = kRows / 4;  // of S^T, a thread's

  __device__ __forceinline__ static void meet() {
    ptx::named_sync(rows64::kScorerBarrier, 128);
  }

  /// Loads the next item's Q. All products with the present one are done.
  __device__ __forceinline__ void ask_ahead(const sm90::WorkPosition& next) {
    if (thread() == 0) query_.say_next(next.get().is_end() ? nullptr : &next.get());
    query_.ask_ahead();
  }

  /// From scores to P in shared memory, times the tokens' units, and hands the block over. What is
  /// overwritten has been read: both output warpgroups have done with the block before the previous one, or
  /// the values' places would not be free. `is_first`: there are no bases yet.
  __device__ __forceinline__ void softmax(bool is_first) {
    const int place = block_++ % Config::kPlaces;
    if (live_ != Base::kAllOfWarp) [[unlikely]]
      this->mask();
    if (thread() == 0) shared_.shrinks[place] = 0;
    Columns sums;
    bool exceeds = is_first;
#pragma unroll 1
    do {
      if (exceeds) [[unlikely]]
        rebase(place);
      exceeds = ptx::named_any(rows64::kScorerBarrier, 128, take_exponentials(place, sums));
    } while (exceeds);
    ptx::arrive(shared_.has_p[place]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums_[i] += sums[i];
  }

  /// Computes P, relative to the bases so far, and the sums of this thread's columns, which leave units out.
  /// Is any P too large?
  __device__ __forceinline__ bool take_exponentials(int place, Columns& sums) const {
    const float low_share = sm90::power_of_two(254 - units_.low),
                high_share = sm90::power_of_two(254 - units_.high);
    float p[kRows / 2];
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 two =
          *reinterpret_cast<const float2*>(&shared_.finite_base[8 * j + sm90::fragment_of(thread()).column]);
      const float base[2] = {two.x, two.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * j + i;
        p[at] = sm90::exp2_fast(s_[at] - base[i]);
        p[at + 2] = sm90::exp2_fast(s_[at + 2] - base[i]);
        sums[2 * j + i] = fmaf(p[at], low_share, p[at + 2] * high_share);
        largest = fmaxf(largest, fmaxf(p[at], p[at + 2]));
      }
    }
    sm90::store_probabilities<__half, kRows>(ptx::shared_address(shared_.p[place]), p, thread());
    ptx::fence_for_async_proxy();  // values, too
    return is_too_large(largest);
  }
  __device__ __forceinline__ static bool is_too_large(float p) {
    return p > 1 << (Config::kLargestP + Config::kSlack);
  }

  /// Raises bases.
  __device__ __forceinline__ void rebase(int place) {
    Columns max;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      max[i] = fmaxf(s_[at], s_[at + 2]);
    }
    put(shared_.warp_max[thread() / 32],
        sm90::over_tokens<kRows>(max, thread() % 32, [](float a, float b) { return fmaxf(a, b); }));
    meet();
    if (thread() < kRows) settle_base(place, thread());
    meet();
    if (shared_.shrinks[place] == 0) return;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(
          &shared_.factor[place][8 * j + sm90::fragment_of(thread()).column]);
      sums_[2 * j] *= factor.x;
      sums_[2 * j + 1] *= factor.y;
    }
  }

  /// Row n's base. Whether it moves is decided as in take_exponentials(), by the row alone.
  __device__ __forceinline__ void settle_base(int place, int n) {
    const float before = shared_.base[n];
    const auto& of_warp = shared_.warp_max;
    const float max = fmaxf(fmaxf(of_warp[0][n], of_warp[1][n]), fmaxf(of_warp[2][n], of_warp[3][n]));
    const bool moves = is_too_large(sm90::exp2_fast(max - shared_.finite_base[n]));
    const float base = moves ? max : before;
    const float factor = before == -INFINITY ? 1.0F : sm90::exp2_fast(before - base);
    if (factor != 1.0F && n < rows_) shared_.shrinks[place] = 1;
    shared_.base[n] = base;
    // Rounded up as in math/unit_scores.cuh.
    shared_.finite_base[n] = base == -INFINITY ? kNoBase : __fsub_ru(base, Config::kLargestP);
    shared_.factor[place][n] = factor;
  }

  /// Row n's places in the results, and its sink, to avoid trips to memory at the end.
  __device__ __forceinline__ void find_row(const sm90::RowTile& tile, int n) const {
    const auto place = sm90::RowPlace<typename Config::Element>::find(args_, tile, n);
    shared_.rows[n] = {place.out, place.lse, 0, n < tile.rows ? sm90::sink_of(args_.output, place.head) : 0};
  }
  /// What the item's rows end with.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    put(shared_.warp_sum[thread() / 32],
        sm90::over_tokens<kRows>(sums_, thread() % 32, [](float a, float b) { return a + b; }));
    meet();
    if (thread() < kRows) finish_row(work, thread());
    ptx::arrive(shared_.finished);
  }
  __device__ __forceinline__ void finish_row(const sm90::Work& work, int n) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += shared_.warp_sum[i][n];
    constexpr float kUnit = 1.0F / (1 << Config::kLargestP);
    const sm90::RowScale scale = sm90::finish_row(shared_.base[n], sum * kUnit);
    float factor = scale.factor * kUnit;
    Row& row = shared_.rows[n];
    if (n < work.tile.rows) {
      if (work.segment.partial >= 0) {
        args_.partial.lse[sm90::first_partial_row<kRows>(args_, work) + n] = scale.lse;
      } else {
        *row.lse = sm90::final_lse(args_.output.empty_lse, scale.lse);
        if (args_.output.sink != nullptr) factor *= sm90::sink_factor(scale.lse, row.sink);
      }
    }
    row.factor = factor;
  }

  /// This lane's two columns after over_tokens().
  __device__ __forceinline__ void put(float (&row)[kRows], float2 values) const {
    *reinterpret_cast<float2*>(&row[sm90::first_of_lane<kRows>(thread() % 32)]) = values;
  }

  const sm90::DecodeArguments& args_;
  rows64::Query<SharedMemory<Config>> query_;
  std::uint32_t block_ = 0;        // blocks so far
  std::uint32_t rows_parity_ = 0;  // of the barrier of the next item's rows
  int rows_ = 0;                   // live ones of the tile
  float scale_ = 0;                // of scores in units, to base 2
  Columns sums_;                   // of this thread's tokens
};

/// All items. Q of an item that shapes tell is loaded before the loader announces the item.
template <class Config>
__device__ __forceinline__ void score_items(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                            const sm90::QueryMaps& query_maps) {
  Scorer<Config> scorer(shared, args, query_maps);
  sm90::Work work;
  bool known = false;  // the item's tile, before it is announced
  if constexpr (Config::kAlone) {
    work = few_rows::part_by_shapes(args);
    known = !work.is_end();
    sm90::wait_for_launch_before();
  }
  // One place in the code takes Q: what runs once an item is fetched from afar.
  for (sm90::WorkPosition position(shared.segments); known || !position.get().is_end(); position.next()) {
    if (!known) work = position.get();
    const bool takes_query = known || work.blocks() > 0;
    scorer.begin(work, takes_query);
    known = false;
    if (takes_query && position.get().blocks() <= 0) scorer.forget();
    scorer.attend(position);
  }
}

}  // namespace flashlatent::fp8::records64
