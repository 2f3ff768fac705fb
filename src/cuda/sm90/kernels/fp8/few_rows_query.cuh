// Q into shared memory as fp16, its RoPE part as bf16 if the cache's RoPE is bf16, all times a power of two
// that brings the tile's largest value to 2^14, so that bf16 values down to 2^-28 of it are exact. e4m3
// queries have no factor, which is exact.
//
// Columns are in the order in which K's columns reach registers: lane t of a quad reads 32 of a token's 128
// bytes, or 16 of 64 (kInOrder). Four of them are its columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of a
// product's 16; of RoPE in bf16, eight bytes are.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_smem.cuh"
#include "cuda/sm90/load/q_loader.cuh"
#include "cuda/sm90/load/query_edge.cuh"
#include "cuda/sm90/load/query_max.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/convert.cuh"

namespace flashlatent::fp8::few_rows {

/// A computing thread's columns of Q.
template <class Shared>
class QueryShare {
  using Config = typename Shared::Config;

 public:
  /// Rows are at the addresses in shared.row_query.
  __device__ __forceinline__ QueryShare(const Shared& shared, bool is_e4m3) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = row_of(i);
      values_[i] = make_uint4(0, 0, 0, 0);
      if (row >= Config::kRows) continue;
      const bool is_rope = kFirstUnits < kRowUnits && unit_of(i) >= kFirstUnits;
      const int unit = unit_of(i) - (is_rope ? kFirstUnits : 0);
      const uint4* query = is_rope ? shared.row_query[row].rope : shared.row_query[row].first;
      if (query == nullptr) continue;
      if (Config::kE4m3 && is_e4m3) {
        const uint2 codes = __ldg(reinterpret_cast<const uint2*>(query) + unit);
        values_[i] = make_uint4(codes.x, codes.y, 0, 0);
      } else {
        values_[i] = __ldg(query + unit);
      }
    }
  }

  /// Normalises and rotates rows: a warp has whole ones.
  __device__ __forceinline__ void prepare(const sm90::QueryRowEdge& edge) {
    static_assert(Config::kEdges && kCount % 2 == 0);
    edge.apply(reinterpret_cast<uint4(&)[kCount / 2][2]>(values_));
  }

  /// The warp's largest finite magnitude, as bf16.
  __device__ __forceinline__ int warp_max() const {
    int max = 0;
#pragma unroll
    for (const uint4& value : values_) {
      for (std::uint32_t pair : {value.x, value.y, value.z, value.w}) {
        const int low = pair & 0x7fff, high = pair >> 16 & 0x7fff;
        max = ::max(max, low < kInfinite ? low : 0);
        max = ::max(max, high < kInfinite ? high : 0);
      }
    }
    return __reduce_max_sync(0xffffffff, max);
  }

  __device__ __forceinline__ void store(Shared& shared, float scale) const {
    for_each_unit([&](int i, int row, int unit) {
      const bool rope = Config::kE4m3 || unit >= kRopeUnit;
      const int tile = kInOrder ? unit / 8 : rope ? 8 : unit / 16 * 2 + unit / 2 % 2;
      const int quad_lane = kRopeOfHalves && rope ? unit % 4
                            : kInOrder || rope    ? unit % 8 / 2
                                                  : unit % 16 / 4;
      const bool as_half = Config::kE4m3 || !rope;
      const std::uint32_t pairs[4] = {values_[i].x, values_[i].y, values_[i].z, values_[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = sm90::unpack<__nv_bfloat16>(pairs[j]);
        put(shared.q[tile], row, kRopeOfHalves && rope ? unit / 4 : unit, quad_lane, j,
            as_half ? sm90::pack<__half>(two.x * scale, two.y * scale)
                    : sm90::pack<__nv_bfloat16>(two.x * scale, two.y * scale));
      }
    });
    ptx::fence_for_async_proxy();
  }
  /// For e4m3 queries.
  __device__ __forceinline__ void store_codes(Shared& shared) const {
    for_each_unit([&](int i, int row, int unit) {
      const ptx::HalfPairs first = ptx::widen_e4m3(values_[i].x), second = ptx::widen_e4m3(values_[i].y);
      const std::uint32_t pairs[4] = {first.low, first.high, second.low, second.high};
#pragma unroll
      for (int j = 0; j < 4; ++j) put(shared.q[unit / 8], row, unit, unit % 8 / 2, j, pairs[j]);
    });
    ptx::fence_for_async_proxy();
  }

 private:
  /// Computed again at each call: it would take registers that the loop over blocks needs.
  __device__ __forceinline__ static int thread() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
  }

  /// The row of this thread's i-th eight columns, and their place in it. With edges a lane has two words of
  /// each of its warp's rows, 32 apart.
  __device__ __forceinline__ static int row_of(int i) {
    if constexpr (Config::kEdges) return thread() / 32 + i / 2 * (Config::kComputeThreads / 32);
    return (thread() + i * Config::kComputeThreads) / kRowUnits;
  }
  __device__ __forceinline__ static int unit_of(int i) {
    if constexpr (Config::kEdges) return thread() % 32 + i % 2 * 32;
    return (thread() + i * Config::kComputeThreads) % kRowUnits;
  }

  /// This thread's i-th eight columns: a row, and the place in it.
  template <class Take>
  __device__ __forceinline__ static void for_each_unit(Take take) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = row_of(i);
      if (row >= Config::kRows) break;
      take(i, row, unit_of(i));
    }
  }
  /// The j-th pair of eight columns, which are the first half of the lane's columns in a tile if `half` is
  /// even.
  __device__ __forceinline__ static void put(std::uint8_t* tile, int row, int half, int quad_lane, int j,
                                             std::uint32_t pair) {
    *reinterpret_cast<std::uint32_t*>(tile + sm90::unit_offset(row, half % 2 * 4 + j) + quad_lane * 4) = pair;
  }

  static constexpr bool kInOrder = Config::kArrangement != Arrangement::kOneByOne;
  static constexpr bool kRopeOfHalves = kInOrder && !Config::kE4m3;  // a tile of it is 64 bytes twice
  static constexpr int kRopeUnit = (Config::kQkDim - kRopeDim) / 8;
  static constexpr int kInfinite = 0x7f80;
  static constexpr int kRowUnits = Config::kQueryTiles * 8;  // of eight columns
  static constexpr int kFirstUnits = query_parts::first_columns(Config::kQkDim) / 8;
  static constexpr int kCount =
      (Config::kRows * kRowUnits + Config::kComputeThreads - 1) / Config::kComputeThreads;

  uint4 values_[kCount];
};

}  // namespace flashlatent::fp8::few_rows
