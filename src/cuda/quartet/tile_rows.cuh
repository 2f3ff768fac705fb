// What all that compute do together at a segment's edges: where its query rows are, Q, how many tokens each
// row sees.
#pragma once

#include "cuda/direct/query.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/quartet/smem_layout.cuh"

namespace flashlatent::quartet {

inline constexpr float kNoBase = -3e38F;  // any finite score exceeds it

template <class Config>
class TileRows {
 public:
  __device__ __forceinline__ TileRows(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : shared_(shared), args_(args) {}

  /// What takes many instructions, once a row and segment.
  __device__ __forceinline__ void prepare(const parts::RowTile& tile) {
    const int n = threadIdx.x;
    if (n >= Config::kRows) return;
    shared_.row_behind[n] = args_.causal ? tile.tokens - 1 - tile.token(args_.query, n) : 0;
    shared_.row_query[n] = nullptr;
    shared_.row_place[n] = parts::RowPlace<__nv_bfloat16>::find(args_, tile, n);
    if (n >= tile.rows) return;
    shared_.row_query[n] =
        reinterpret_cast<const uint4*>(parts::query_row<__nv_bfloat16>(args_.query, tile, n));
  }

  /// Q of that tile, whose rows all have found. Returns what scores are to be multiplied by, to base 2.
  __device__ __forceinline__ float take_query() {
    const direct::QueryShare<SharedMemory<Config>> share(shared_);
    const int warp_max = share.warp_max();
    ptx::arrive(shared_.has_query);
    if (threadIdx.x % 32 == 0) shared_.query_max[threadIdx.x / 32] = warp_max;
    meet();
    const int exponent = direct::query_exponent(shared_.query_max);
    share.store(shared_, __int_as_float((127 + exponent) << 23));
    meet();
    return args_.scale_log2 * __int_as_float((127 - exponent) << 23);
  }

  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.meeting);
    ptx::wait(shared_.meeting, meeting_);
    meeting_ ^= 1;
  }

  /// How many of so many tokens query row n attends to.
  __device__ __forceinline__ int limit(const parts::Work& work, int n) const {
    return work.segment.length - shared_.row_behind[n];
  }
  /// Tokens of a block that some rows of the tile attend to and others do not. `limit`: of the first row, in
  /// tokens of the block.
  __device__ __forceinline__ static std::uint64_t partial_tokens(std::uint64_t live, int limit) {
    return live & ~parts::low_tokens(limit);
  }

 private:
  SharedMemory<Config>& shared_;
  const parts::DecodeArguments& args_;
  std::uint32_t meeting_ = 0;  // of the next one
};

/// Of a segment's partial result, the first row, counted in those of all slots.
__device__ __forceinline__ std::int64_t partial_row(const parts::DecodeArguments& args,
                                                    const parts::Work& work) {
  return (static_cast<std::int64_t>(work.segment.slot) * args.geometry.lanes +
          args.lanes.remainder(blockIdx.x)) *
         parts::kTileRows;
}

/// One lane reads, the one that gives the slot back, so that its arrival orders the reading.
__device__ __forceinline__ std::uint64_t read_live(const std::uint64_t& of_slot) {
  std::uint64_t live = 0;
  if (threadIdx.x % 32 == 0) live = of_slot;
  return __shfl_sync(0xffffffff, live, 0);
}

/// This thread's columns of a row of values, as it has them in S^T and O^T. direct has its own: with 32
/// rows it makes the column anew for each pair, for registers.
template <int kRows>
__device__ __forceinline__ etap::ColumnValues<kRows> columns_of(const float (&row)[kRows], int column) {
  etap::ColumnValues<kRows> values;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(&row[8 * j + column]);
    values[2 * j] = pair.x;
    values[2 * j + 1] = pair.y;
  }
  return values;
}

}  // namespace flashlatent::quartet
