// Q into shared memory as fp16, times a power of two that brings the tile's largest value to 2^14, so that
// bf16 values down to 2^-28 of it are exact; its columns in the order in which record_keys.cuh has K's.
#pragma once

#include "cuda/sm90/kernels/fp8/few_rows_smem.cuh"
#include "cuda/sm90/load/q_loader.cuh"
#include "cuda/sm90/load/query_edge.cuh"
#include "cuda/sm90/load/query_max.cuh"
#include "cuda/sm90/math/softmax.cuh"

namespace flashlatent::fp8::records {

/// Finds row n of a tile: the address of its columns, if there is such a row, and its results' place.
template <class Shared>
__device__ __forceinline__ void find_row(Shared& shared, const sm90::DecodeArguments& args,
                                         const sm90::RowTile& tile, int n) {
  shared.row_query[n] = {nullptr, nullptr};
  shared.row_place[n] = sm90::RowPlace<__nv_bfloat16>::find(args, tile, n);
  if (n < tile.rows) {
    shared.row_query[n].first = reinterpret_cast<const uint4*>(
        sm90::row_of_part<__nv_bfloat16>(args.query.first, args.query, tile, n));
  }
}

/// The columns of Q that one of Config::kComputeThreads threads brings. A warp has a chunk; four rows and
/// eight of a row's pieces of eight columns at a time, so that stores have no bank conflicts.
template <class Shared>
class QueryShare {
  using Config = typename Shared::Config;
  static_assert(Config::kComputeThreads / 32 == Config::kQueryTiles);

 public:
  /// Rows are at the addresses in shared.row_query.
  __device__ __forceinline__ explicit QueryShare(const Shared& shared) {
    const int unit = QueryShare::unit();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint4* query = shared.row_query[4 * i + first_row()].first;
      values_[i] = query == nullptr ? make_uint4(0, 0, 0, 0) : __ldg(query + unit);
    }
  }

  /// By which the thread's columns are turned.
  using Angles = edges::Angle[4];
  /// Asks for the angles of a query token's position, if the thread's columns are turned.
  __device__ __forceinline__ static void find_angles(Angles& angles, const edges::Rotary& rotary,
                                                     std::int64_t position) {
    if (!is_turned()) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) angles[i] = rotary.angle(position, (unit() - kTurned) * 4 + i);
  }
  /// Waits for the columns.
  __device__ __forceinline__ void come() {
#pragma unroll
    for (uint4& v : values_) asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
  }
  /// Turns the last columns as cuda/ops/edges.cu does it.
  __device__ __forceinline__ void turn(const Angles& angles) {
    if (!is_turned()) return;
#pragma unroll
    for (uint4& value : values_) {
      float x[8];
      sm90::widen_word(value, x);
      sm90::turn_word(x, angles);
      value = sm90::round_word(x);
    }
  }

  /// The warp's largest finite magnitude, as bf16.
  __device__ __forceinline__ int warp_max() const {
    const int max = largest([](std::uint32_t pair) { return pair; });
    if (max < kInfinite) [[likely]]
      return max;
    return largest(
        [](std::uint32_t pair) { return pair & __vcmpltu2(pair & 0x7FFF7FFFU, kInfinite * 0x10001U); });
  }

  __device__ __forceinline__ void store(Shared& shared, float scale) const {
    std::uint8_t* tile = shared.q[thread() / 32] + first_row() * sm90::kRowBytes + quad_lane() * 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint4& v = values_[i];
      const std::uint32_t pairs[4] = {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                                      __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632)};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = sm90::unpack<__nv_bfloat16>(pairs[j]);
        const int unit = (half() ^ i % 2) * 4 + (j ^ first_row());  // swizzled by the row, 4 i + first_row()
        *reinterpret_cast<std::uint32_t*>(tile + i * 4 * sm90::kRowBytes + unit * 16) =
            sm90::pack<__half>(two.x * scale, two.y * scale);
      }
    }
    ptx::fence_for_async_proxy();
  }

 private:
  static constexpr int kInfinite = 0x7F80;
  static constexpr int kCount = Config::kRows / 4;
  static constexpr int kTurned =
      (Config::kQkDim - sm90::kRotatedColumns) / 8;  // the first unit that is turned

  /// Computed again at each call: it would take registers that the loop over blocks needs.
  __device__ __forceinline__ static int thread() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
  }
  __device__ __forceinline__ static int half() {
    return thread() % 2;
  }
  __device__ __forceinline__ static int quad_lane() {
    return thread() / 2 % 4;
  }
  __device__ __forceinline__ static int first_row() {
    return thread() % 32 / 8;
  }
  /// Which eight columns this thread brings of each of its rows.
  __device__ __forceinline__ static int unit() {
    const int chunk = thread() / 32;
    return chunk / 2 * 16 + quad_lane() * 4 + chunk % 2 * 2 + half();
  }

  __device__ __forceinline__ static bool is_turned() {
    return unit() >= kTurned;
  }

  /// Of the warp. NaN is ignored.
  template <class Finite>
  __device__ __forceinline__ int largest(Finite finite) const {
    std::uint32_t max = 0;
#pragma unroll
    for (const uint4& v : values_) {
      max = sm90::larger_magnitudes(
          max, sm90::larger_magnitudes(sm90::larger_magnitudes(finite(v.x), finite(v.y)),
                                       sm90::larger_magnitudes(finite(v.z), finite(v.w))));
    }
    return __reduce_max_sync(0xffffffff, static_cast<int>(::max(max & 0x7FFF, max >> 16 & 0x7FFF)));
  }

  uint4 values_[kCount];
};

}  // namespace flashlatent::fp8::records
