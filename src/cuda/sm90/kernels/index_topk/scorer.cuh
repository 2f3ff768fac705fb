// A warpgroup's half of a tile: the scores of 64 keys for each query token of the group. Keys are rows of
// wgmma's M side and come from registers; heads are columns. The sum over heads stays in a thread, but for
// two steps over the four lanes that share a row.
#pragma once

#include "cuda/sm90/kernels/index_topk/queries.cuh"
#include "cuda/sm90/ptx/maximum.cuh"
#include "cuda/sm90/ptx/mma.cuh"
#include "cuda/sm90/ptx/wgmma_e4m3.cuh"

namespace flashlatent::cuda::indexer {

/// A thread's part of 64 keys: rows r and r + 8 of its warp's 16 (r = lane / 4), for each 32 columns a
/// fragment.
struct Keys {
  std::uint32_t fragments[index_keys::kGroups][4];
};

__device__ __forceinline__ void swap_if(bool condition, std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t x = condition ? b : a, y = condition ? a : b;
  a = x;
  b = y;
}

/// Lane c of row r reads 8 c to 8 c + 7 of each 32 bytes. Rows lie 128 bytes apart, and the half of a warp
/// that is served at a time has four of them: each begins at other 32 bytes, so that all banks are used.
__device__ __forceinline__ void read_fp8(Keys& keys, const std::uint8_t* tile, int row, int lane) {
  const int turn = row & 3;
  uint2 words[2][index_keys::kGroups];
#pragma unroll
  for (int i = 0; i < index_keys::kGroups; ++i) {
    const int offset = (i ^ turn) * 32 + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words[half][i] = *reinterpret_cast<const uint2*>(tile + (row + half * 8) * 128 + offset);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint2(&w)[index_keys::kGroups] = words[half];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      swap_if(turn & 1, w[i].x, w[i + 1].x);
      swap_if(turn & 1, w[i].y, w[i + 1].y);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      swap_if(turn & 2, w[i].x, w[i + 2].x);
      swap_if(turn & 2, w[i].y, w[i + 2].y);
    }
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      keys.fragments[i][half] = w[i].x;
      keys.fragments[i][2 + half] = w[i].y;
    }
  }
}

/// e2m1 as they lie in memory: of each of the two rows four bytes for each 32 columns, and the rows' scales.
struct Mxfp4Rows {
  std::uint32_t words[2][index_keys::kGroups];
  std::uint32_t scales[2];
};

/// The same of e2m1: four bytes of each 16. Rows lie 64 bytes apart, and a warp is served at once.
__device__ __forceinline__ void read_mxfp4(Mxfp4Rows& rows, const std::uint8_t* tile, int row, int lane) {
  const int turn = row >> 1 & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t(&w)[index_keys::kGroups] = rows.words[half];
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      w[i] = *reinterpret_cast<const std::uint32_t*>(tile + (row + half * 8) * 64 + (i ^ turn) * 16 +
                                                     lane % 4 * 4);
    }
    swap_if(turn & 1, w[0], w[1]);
    swap_if(turn & 1, w[2], w[3]);
    swap_if(turn & 2, w[0], w[2]);
    swap_if(turn & 2, w[1], w[3]);
  }
}

/// Which 32 columns of the two rows are still to be multiplied, a bit each, and the scale that the last
/// product was relative to.
struct Pass {
  std::uint32_t left[2];
  int base[2] = {0, 0};
};

/// Makes fragments of those columns that are left and whose scales are near the largest of these; others are
/// zeros. Scales become exponents. Rows whose scales are all near have one pass, whatever rows beside them
/// have.
__device__ __forceinline__ void widen(Keys& keys, const Mxfp4Rows& rows, Pass& pass) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Scales scales(rows.scales[half]);
    int base = 0;
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      if (pass.left[half] >> i & 1) base = max(base, scales.each[i]);
    }
    pass.base[half] = base;
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      const int exponent = scales.each[i] - base + kMostExponent;
      const bool now = (pass.left[half] >> i & 1) != 0 && exponent >= kLeastExponent;
      const Expanded expanded = expand_e2m1(rows.words[half][i], exponent);
      keys.fragments[i][half] = now ? expanded.low : 0;
      keys.fragments[i][2 + half] = now ? expanded.high : 0;
      if (now) pass.left[half] &= ~(1U << i);
    }
  }
}

/// relu that keeps NaN.
__device__ __forceinline__ float relu(float x) {
  return ptx::max_with_nan(x, 0);
}

/// Weighted sums over heads of two rows. Each is in two parts, so that half as many additions follow one
/// another.
struct Totals {
  float first[2] = {0, 0}, second[2] = {0, 0};
};

/// Adds kColumns heads, whose weights lie as weight_place() says.
template <int kColumns>
__device__ __forceinline__ void add_heads(Totals& totals, const float (&dots)[kColumns / 2],
                                          const float* weights, int lane) {
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    const float4 w = *reinterpret_cast<const float4*>(weights + j * 16 + lane % 4 * 4);
    const float(&x)[kColumns / 2] = dots;
    totals.first[0] = fmaf(w.x, relu(x[8 * j]), totals.first[0]);
    totals.first[1] = fmaf(w.y, relu(x[8 * j + 1]), totals.first[1]);
    totals.second[0] = fmaf(w.x, relu(x[8 * j + 2]), totals.second[0]);
    totals.second[1] = fmaf(w.y, relu(x[8 * j + 3]), totals.second[1]);
    totals.first[0] = fmaf(w.z, relu(x[8 * j + 4]), totals.first[0]);
    totals.first[1] = fmaf(w.w, relu(x[8 * j + 5]), totals.first[1]);
    totals.second[0] = fmaf(w.z, relu(x[8 * j + 6]), totals.second[0]);
    totals.second[1] = fmaf(w.w, relu(x[8 * j + 7]), totals.second[1]);
  }
}

/// q . k of one query token and a chunk of heads.
template <int kColumns>
__device__ __forceinline__ void multiply(float (&dots)[kColumns / 2], const Keys& keys, std::uint64_t query) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < index_keys::kGroups; ++i) {
    ptx::WgmmaE4m3<kColumns>::rs(dots, keys.fragments[i], query + i * ptx::kStepOfE4m3, i > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(dots);
}

/// Scales that lie far apart, of keys or of a query token, take a factor for each 32 columns. Such products
/// are a warp's own, eight heads at a time: beside those of a warpgroup registers would not suffice.
inline constexpr int kRareHeads = 8;

/// dots += q . k, times a factor for each of the two rows. `query`: the chunk's queries in shared memory, of
/// which kRareHeads from `first` on are multiplied. `factors`: of all heads of the chunk for each 32 columns,
/// or null.
template <int kColumns>
__device__ __forceinline__ void multiply_rarely(float (&dots)[4], const Keys& keys, const std::uint8_t* query,
                                                int first, const float (&row_factors)[2],
                                                const float* factors, int lane) {
  const int head = first + lane / 4;
  const std::uint8_t* row = query + head * index_keys::kDim + lane % 4 * 4;
#pragma unroll
  for (int i = 0; i < index_keys::kGroups; ++i) {
    float part[4] = {};
    const auto word = [&](int unit) {
      return *reinterpret_cast<const std::uint32_t*>(row + (unit ^ (head & 7)) * 16);
    };
    ptx::mma_e4m3(part, keys.fragments[i], word(2 * i), word(2 * i + 1));
    float2 factor = make_float2(1, 1);
    if (factors != nullptr) {
      factor = *reinterpret_cast<const float2*>(factors + i * kColumns + first + lane % 4 * 2);
    }
    dots[0] = fmaf(part[0] * row_factors[0], factor.x, dots[0]);
    dots[1] = fmaf(part[1] * row_factors[0], factor.y, dots[1]);
    dots[2] = fmaf(part[2] * row_factors[1], factor.x, dots[2]);
    dots[3] = fmaf(part[3] * row_factors[1], factor.y, dots[3]);
  }
}

__device__ __forceinline__ void add_rare_heads(Totals& totals, const float (&dots)[4], const float* weights,
                                               int first, int lane) {
  const float2 w = *reinterpret_cast<const float2*>(weights + weight_place(first + lane % 4 * 2));
  totals.first[0] = fmaf(w.x, relu(dots[0]), totals.first[0]);
  totals.first[1] = fmaf(w.y, relu(dots[1]), totals.first[1]);
  totals.second[0] = fmaf(w.x, relu(dots[2]), totals.second[0]);
  totals.second[1] = fmaf(w.y, relu(dots[3]), totals.second[1]);
}

/// A warpgroup's walk over its halves of tiles.
template <int kColumns, IndexFormat kFormat, bool kFp4Query>
class Scorer {
 public:
  using SharedLayout = Layout<kFormat, kFp4Query>;

  __device__ __forceinline__ Scorer(const ScoreArguments& arguments, std::uint8_t* shared,
                                    const SharedLayout& layout, Fixed& fixed)
      : arguments_(arguments),
        shared_(shared),
        keys_(shared + layout.keys),
        weights_(reinterpret_cast<float*>(shared + layout.weights)),
        factors_(reinterpret_cast<float*>(shared + layout.factors)),
        fixed_(fixed) {}

  __device__ __forceinline__ void score(const Run& run) {
    int last_group = -1;
    Walk walk(arguments_, run);
    for (int n = 0; !walk.done(); ++n, walk.next()) {
      if (walk.number() != last_group) {
        last_group = walk.number();
        ptx::named_sync(1, kConsumers);
        load_queries<kFp4Query>(arguments_, walk.group(), threadIdx.x, shared_, weights_, factors_, fixed_);
        ptx::fence_for_async_proxy();
        ptx::named_sync(1, kConsumers);
      }
      const int stage = n % kStages;
      ptx::wait(fixed_.full[stage], n / kStages & 1);
      if constexpr (kFormat == IndexFormat::kFp8_132) {
        score_fp8(walk, stage);
      } else {
        score_mxfp4(walk, stage);
      }
    }
  }

 private:
  static constexpr int kBytes = index_keys::data_bytes(kFormat), kStages = stages_of(kFormat);

  __device__ __forceinline__ const std::uint8_t* tile_of(int stage) const {
    return keys_ + stage * kTile * kBytes;
  }
  __device__ __forceinline__ bool exists(int stage, int row) const {
    return (fixed_.exists[stage][row / 32] >> row % 32 & 1) != 0;
  }
  /// Call when this thread's keys are in registers.
  __device__ __forceinline__ void free_stage(int stage) {
    __syncwarp();
    if (lane_ == 0) ptx::arrive(fixed_.empty[stage]);
  }

  __device__ __forceinline__ void score_fp8(const Walk& walk, int stage) {
    Keys keys;
    read_fp8(keys, tile_of(stage), row_, lane_);
    const float scales[2] = {__uint_as_float(fixed_.scales[stage][row_]),
                             __uint_as_float(fixed_.scales[stage][row_ + 8])};
    const bool there[2] = {exists(stage, row_), exists(stage, row_ + 8)};
    free_stage(stage);
    score_keys(walk, keys, scales, there);
  }

  __device__ __forceinline__ void score_mxfp4(const Walk& walk, int stage) {
    Mxfp4Rows rows;
    read_mxfp4(rows, tile_of(stage), row_, lane_);
    rows.scales[0] = fixed_.scales[stage][row_];
    rows.scales[1] = fixed_.scales[stage][row_ + 8];
    const bool there[2] = {exists(stage, row_), exists(stage, row_ + 8)};
    free_stage(stage);
    // Keys that do not exist have no columns.
    const Pass begin = {{there[0] ? 0xFU : 0, there[1] ? 0xFU : 0}};
    Pass first = begin;
    Keys keys;
    widen(keys, rows, first);
    float scales[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales[half] = first.base[half] == 0xFF ? ue8m0(0xFF) : scale_of_base(first.base[half]);
    }
    const int warpgroup = threadIdx.x / 128;
    if (ptx::named_any(2 + warpgroup, 128, (first.left[0] | first.left[1]) != 0)) {
      score_in_passes(walk, rows, begin, first, scales, there);
    } else {
      score_keys(walk, keys, scales, there);
    }
  }

  /// Scores of keys that one product suffices for.
  __device__ __forceinline__ void score_keys(const Walk& walk, const Keys& keys, const float (&scales)[2],
                                             const bool (&there)[2]) const {
    for (int token = 0; token < walk.group().rows; ++token) {
      Totals totals;
      for (int chunk = 0; chunk < arguments_.shape.head_chunks; ++chunk) {
        if (is_apart(token)) {
          add_rarely(totals, token, chunk, [&](auto multiply) { multiply(keys, {1, 1}); });
        } else {
          float dots[kColumns / 2];
          multiply<kColumns>(dots, keys, ptx::descriptor_k_major(ptx::shared_address(query(token, chunk))));
          add_heads<kColumns>(totals, dots, weights(token, chunk), lane_);
        }
      }
      store(walk, token, totals, scales, there);
    }
  }

  /// Where scales of a key lie far apart: a product for those near the largest, then for those near the
  /// largest of the rest, and so on; four suffice. Other keys' later products are 0.
  __device__ __forceinline__ void score_in_passes(const Walk& walk, const Mxfp4Rows& rows, const Pass& begin,
                                                  const Pass& first, const float (&scales)[2],
                                                  const bool (&there)[2]) const {
#pragma unroll 1
    for (int token = 0; token < walk.group().rows; ++token) {
      Totals totals;
#pragma unroll 1
      for (int chunk = 0; chunk < arguments_.shape.head_chunks; ++chunk) {
        add_rarely(totals, token, chunk, [&](auto multiply) {
          Pass pass = begin;
#pragma unroll 1
          for (int i = 0; i < index_keys::kGroups; ++i) {
            const bool done[2] = {pass.left[0] == 0, pass.left[1] == 0};
            Keys keys;
            widen(keys, rows, pass);
            float factors[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int apart = pass.base[half] - first.base[half];
              factors[half] = done[half] ? 0 : exp2f(static_cast<float>(apart));
            }
            multiply(keys, factors);
          }
        });
      }
      store(walk, token, totals, scales, there);
    }
  }

  /// A chunk's heads, kRareHeads at a time. `products` calls what it is given with keys and a factor for each
  /// row, once or several times.
  template <class Products>
  __device__ __forceinline__ void add_rarely(Totals& totals, int token, int chunk, Products products) const {
    const float* factors =
        is_apart(token) ? factors_ + part_of(token, chunk) * kColumns * index_keys::kGroups : nullptr;
#pragma unroll 1
    for (int first = 0; first < kColumns; first += kRareHeads) {
      float dots[4] = {};
      products([&](const Keys& keys, const float(&row_factors)[2]) {
        multiply_rarely<kColumns>(dots, keys, query(token, chunk), first, row_factors, factors, lane_);
      });
      add_rare_heads(totals, dots, weights(token, chunk), first, lane_);
    }
  }

  __device__ __forceinline__ int part_of(int token, int chunk) const {
    return token * arguments_.shape.head_chunks + chunk;
  }
  __device__ __forceinline__ const std::uint8_t* query(int token, int chunk) const {
    return shared_ + part_of(token, chunk) * kColumns * index_keys::kDim;
  }
  __device__ __forceinline__ const float* weights(int token, int chunk) const {
    return weights_ + part_of(token, chunk) * kColumns;
  }
  /// Has a head of the query token scales that lie too far apart?
  __device__ __forceinline__ bool is_apart(int token) const {
    if constexpr (!kFp4Query) return false;
    return fixed_.apart[token] != 0;
  }

  __device__ __forceinline__ void store(const Walk& walk, int token, const Totals& totals,
                                        const float (&scales)[2], const bool (&there)[2]) const {
    float first = totals.first[0] + totals.first[1], second = totals.second[0] + totals.second[1];
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      first += __shfl_xor_sync(0xFFFFFFFF, first, step);
      second += __shfl_xor_sync(0xFFFFFFFF, second, step);
    }
    // Lane 0 of a row's four stores the first row's score, lane 1 the second one's.
    const int mine = lane_ % 4;
    if (mine >= 2) return;
    const float score = mine == 0 ? first * scales[0] : second * scales[1];
    const int place = walk.first_place() + row_ + mine * 8;
    const bool seen =
        (mine == 0 ? there[0] : there[1]) && (arguments_.call.candidates > 0 || place < fixed_.seen[token]);
    arguments_.scores[(walk.group().row + token - arguments_.first_row) * arguments_.score_stride + place] =
        seen ? sortable(score) : kNoToken;
  }

  const ScoreArguments& arguments_;
  std::uint8_t* const shared_;
  std::uint8_t* const keys_;
  float* const weights_;
  float* const factors_;
  Fixed& fixed_;
  const int lane_ = threadIdx.x % 32;
  const int row_ = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  ///< Of the tile; and eight further on.
};

}  // namespace flashlatent::cuda::indexer
