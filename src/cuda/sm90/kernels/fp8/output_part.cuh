// One warpgroup's columns of the output: O^T of its columns of V (rows of the accumulators) and all query
// rows of the tile (columns). For both tile sizes.
#pragma once

#include "cuda/sm90/kernels/fp8/poison.cuh"
#include "cuda/sm90/kernels/fp8/products.cuh"
#include "cuda/sm90/merge/column_output.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/merge/team_unit.cuh"

namespace flashlatent::fp8 {

inline constexpr float kNoBase = -3e38F;  // any finite score exceeds it

/// kBarrier_ + which: the named barrier of one warpgroup.
template <class Shared, int kBarrier>
class OutputPart {
 protected:
  using Config = typename Shared::Config;
  static constexpr int kRows = Config::kRows;
  using Columns = sm90::ColumnValues<kRows>;
  using Accumulators = float[Config::kPartChunks][kRows / 2];

  __device__ __forceinline__ OutputPart(Shared& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args), me_(threadIdx.x / 128) {}

  /// The thread's number in this warpgroup. If registers are short, values that follow from it are computed
  /// again at each use.
  __device__ __forceinline__ static int thread() {
    int thread = threadIdx.x % 128;
    if constexpr (kRows > 16) asm volatile("" : "+r"(thread));
    return thread;
  }
  __device__ __forceinline__ static sm90::Fragment fragment() { return sm90::fragment_of(thread()); }
  /// This thread's first query row. Made anew, of 64 rows it is an instruction less without the lane.
  __device__ __forceinline__ static int column() {
    if constexpr (kRows == 64) return thread() % 4 * 2;
    return fragment().column;
  }
  /// This thread's first column of the output; its columns come in pairs, 64 apart.
  __device__ __forceinline__ int first_column() const {
    return me_ * Config::kPartDim + thread() / 32 * 16 + thread() % 32 / 4 * 2;
  }
  __device__ __forceinline__ void meet_alone() const { ptx::named_sync(kBarrier + me_, 128); }

  /// The first row of a segment's partial result, counted among all partial rows.
  __device__ __forceinline__ std::int64_t partial_row(const sm90::Work& work) const {
    return sm90::first_partial_row<kRows>(args_, work);
  }

  /// This thread's columns of a row of values, as in S^T and O^T. `column()` is called for each pair.
  template <class Column>
  __device__ __forceinline__ static Columns columns_of(const float (&row)[kRows], Column column) {
    Columns values;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(&row[8 * j + column()]);
      values[2 * j] = pair.x;
      values[2 * j + 1] = pair.y;
    }
    return values;
  }
  /// Ratios of a group of V, for pairs of tokens 8 i + lane % 4 * 2 + {0, 1}.
  __device__ __forceinline__ static void load_ratios(std::uint32_t (&ratio)[8],
                                                     const std::uint16_t (&of)[64]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) ratio[i] = *reinterpret_cast<const std::uint32_t*>(&of[8 * i + column()]);
  }
  /// This lane's token of a block's first 32, at the warp's columns.
  __device__ __forceinline__ std::uint32_t value_row(int slot) const {
    return ptx::shared_address(shared_.blocks[slot]) + thread() % 32 * fp8_656::kTokenBytes +
           me_ * Config::kPartDim + thread() / 32 * 16;
  }

  __device__ __forceinline__ static void clear(Accumulators& o) {
#pragma unroll
    for (auto& chunk : o) {
#pragma unroll
      for (float& x : chunk) x = 0;
    }
  }
  __device__ __forceinline__ static void rescale(Accumulators& o, const Columns& factor) {
#pragma unroll
    for (auto& chunk : o) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) chunk[i] *= factor[i / 4 * 2 + i % 2];
    }
  }
  /// Hides the accumulators from ptxas: products are under way, or were.
  __device__ __forceinline__ static void pin(Accumulators& o) {
#pragma unroll
    for (auto& chunk : o) ptx::pin_registers(chunk);
  }

  /// For the block in that slot, whose V is next. `seen(n)`: what row n sees, from the block's first token
  /// on.
  template <class Seen>
  __device__ __forceinline__ void keep_from_poison(int slot, std::uint16_t (*ratio)[64],
                                                   std::uint64_t partial, Seen seen) {
    if (partial == 0) return;
    const PartOfV v{shared_.blocks[slot] + me_ * Config::kPartDim, ratio + me_ * Config::kPartGroups};
    const bool found =
        record_poison<Config::kPartDim>(shared_.poisoned_rows + me_ * Config::kPartDim, v, partial, thread(),
                                        [&](int token) { return RowSet::that_see(token, kRows, seen); });
    if (found) shared_.poisoned[me_] = 1;
    meet_alone();
    silence<Config::kPartDim>(v, partial, thread());
    meet_alone();
  }
  __device__ __forceinline__ bool is_poisoned() const {
    return shared_.poisoned[me_] != 0;
  }
  /// Puts what was found into the outputs, and forgets it. The caller then records that there is none.
  __device__ __forceinline__ void spread_poison(Accumulators& o) {
#pragma unroll
    for (int i = 0; i < Config::kPartChunks * kRows / 2; ++i) {
      const int of_v = first_column() + i / (kRows / 2) * 64 + i % 4 / 2;
      const int row = i % (kRows / 2) / 4 * 8 + column() + i % 2;
      if (shared_.poisoned_rows[of_v].contains(row)) o[i / (kRows / 2)][i % (kRows / 2)] = NAN;
    }
    meet_alone();
    for (int i = thread(); i < Config::kPartDim; i += 128) {
      shared_.poisoned_rows[me_ * Config::kPartDim + i].clear();
    }
  }

  /// Returns the final factor of row n's sums; writes the row's lse. Probabilities are at most 2^kLargest;
  /// `first_row()`: as partial_row(). `sink(place)`: the head's sink, if there are any.
  template <int kLargest, class FirstRow>
  __device__ __forceinline__ float finish_row(const sm90::Work& work, FirstRow first_row, int n, float base,
                                              float sum) const {
    return finish_row<kLargest>(work, first_row, n, base, sum,
                                [&](const auto& to) { return __ldg(args_.output.sink + to.head); });
  }
  template <int kLargest, class FirstRow, class Sink>
  __device__ __forceinline__ float finish_row(const sm90::Work& work, FirstRow first_row, int n, float base,
                                              float sum, Sink sink) const {
    const sm90::RowScale scale = sm90::finish_row(base, sum);
    float factor = scale.factor / (1 << kLargest);
    if (n < work.tile.rows) {
      if (work.segment.partial >= 0) {
        args_.partial.lse[first_row() + n] = scale.lse;
      } else {
        const sm90::RowPlace<__nv_bfloat16>& to = shared_.row_place[n];
        *to.lse = sm90::final_lse(args_.output.empty_lse, scale.lse);
        if (args_.output.sink != nullptr) {
          factor *= sm90::sink_factor(scale.lse, sink(to));
        }
      }
    }
    return factor;
  }

  /// Sparse prefill: writes row n's largest score, from its largest probability, which is relative to the
  /// same as `sum`.
  __device__ __forceinline__ void write_largest(const sm90::Work& work, int n, float base, float sum,
                                                float largest) const {
    if (n >= work.tile.rows) return;
    sm90::write_max_logit(args_.max_logits, work.tile, shared_.row_place[n].head, base + log2f(largest),
                          sm90::finish_row(base, sum).lse);
  }

  Shared& shared_;
  const sm90::DecodeArguments& args_;
  const int me_;
};

}  // namespace flashlatent::fp8
