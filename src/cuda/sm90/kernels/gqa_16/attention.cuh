// A warp's attention over 16 tokens at a time, transposed: tokens on mma's M side, query rows on N, which is
// 8. From e4m3 a warp takes 2 x 16 tokens, so that one half is multiplied while the other waits for operands.
//
//   S^T = K Q^T       16 tokens x kColumns, K from shared memory by ldmatrix, Q in registers
//   P^T               the maximum over tokens: lanes of a column; each warp has its own
//   O^T += V^T P^T    kDim x kColumns; ldmatrix transposes V, movmatrix P
//
// A lane has columns 8 c + 2 t + {0, 1} of rows g and g + 8 (ptx/mma.cuh). Rows of S^T are tokens, rows of
// O^T are elements of V.
//
// e4m3 is loaded by four bytes a lane, which decides the order of elements. A lane has elements
// 4 t + {0, 1, 2, 3} of 16 of K, not 2 t + {0, 1, 8, 9}, and takes Q's in the same order. With V in rows,
// rows g and g + 8 of O^T are elements 2 g and 2 g + 1. With packed V a lane has tokens 4 t + {0, 1, 2, 3},
// and K's rows are taken in the order that makes P's the same.
#pragma once

#include "cuda/sm90/kernels/gqa_16/arguments.h"
#include "cuda/sm90/kernels/gqa_16/config.h"
#include "cuda/sm90/kernels/gqa_16/given.cuh"
#include "cuda/sm90/kernels/gqa_16/values.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/convert.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/ptx/mma.cuh"

namespace flashlatent::gqa_16 {

template <class Config>
class Attention {
 public:
  using Element = typename Config::Product;
  static constexpr int kGroups = Config::kColumns / 8;  // of 8 columns
  static constexpr int kTiles = Config::kDim / 16;      // of 16 elements
  static constexpr int kTokenTiles = Config::kTokenTiles;
  static_assert(kTiles % 2 == 0, "ldmatrix takes two tiles at once");

  __device__ __forceinline__ Attention(const Arguments& args, std::uint8_t* stages)
      : args_(args), stages_(stages), lane_(threadIdx.x % 32), row_(lane_ / 4), column_(lane_ % 4 * 2) {}

  /// Starts loading a tile's Q. The previous segment has been attended to, but need not be stored.
  __device__ __forceinline__ void ask_query(const sm90::RowTile& tile) {
    tile_ = tile;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) load_query(c);
  }

  /// Begins a segment of the tile, of a request of `length` tokens.
  __device__ __forceinline__ void start(int length) {
    length_ = length;
#pragma unroll
    for (auto& tile_values : o_) {
#pragma unroll
      for (auto& group : tile_values) {
#pragma unroll
        for (float& x : group) x = 0;
      }
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        max_[c][i] = -INFINITY;
        sum_[c][i] = 0;
      }
    }
    const int last = max(tile_.rows - 1, 0);
    all_ = {seen(last).begin, seen(0).end};
    const float* scale = args_.keys.scale;
    const float key_scale = scale == nullptr ? 1.0F : __ldg(scale + tile_.kv_head * args_.keys.scale_stride);
#pragma unroll
    for (auto& columns : scale_log2_) {
#pragma unroll
      for (float& x : columns) x = args_.decode.scale_log2 * key_scale;
    }
    if constexpr (Config::kFp8) {
      // A branch around the whole, because a condition for each element would spill registers with 16 columns
      // of d 128.
      if (args_.given_is_bf16) {
        query_to_half<__nv_bfloat16>();
      } else {
        query_to_half<__half>();
      }
    }
  }

  /// Attends to a step's tokens, from `token` on; `live`: those that count.
  __device__ __forceinline__ void attend(int token, std::uint32_t live, int stage) {
    std::uint8_t* planes = stages_ + stage * Config::kStageBytes;
    if (live != Config::kAllLive) Values<Config>::clear_dead(planes, live);
    float s[kTokenTiles][kGroups][4] = {};
    score(s, ptx::shared_address(planes));
    transform(s, token);
    // Compared up to the last token that counts: with one query token all rows see a request's last tokens.
    const bool seen_by_all = token >= all_.begin && token + 32 - __clz(static_cast<int>(live)) <= all_.end;
    if (live != Config::kAllLive) mask_dead(s, live);
    if (!seen_by_all) mask_unseen(s, token);
    std::uint32_t p[kTokenTiles][kGroups][2];
    softmax(s, p);
    // after the outputs have been rescaled: 0 * inf is NaN
    if (!seen_by_all) add_not_finite(planes, token, live);
    multiply(p, ptx::shared_address(planes) + Config::kPlaneBytes);
  }

  /// Writes this warp's results to shared memory: outputs (Config::output_at), maxima and sums.
  __device__ __forceinline__ void store(float* outputs, float* maxima, float* sums) const {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = 8 * c + column_ + i;
        const float sum = over_tokens(sum_[c][i], [](float a, float b) { return a + b; });
        if (row_ == 0) {
          maxima[n] = max_[c][i];
          sums[n] = sum;
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          outputs[Config::output_at(n, element(m, 0))] = o_[m][c][i];
          outputs[Config::output_at(n, element(m, 1))] = o_[m][c][2 + i];
        }
      }
    }
  }

 private:
  static constexpr bool kInterleavedElements = Config::kFp8 && !Config::kPacked;
  static constexpr bool kInterleavedTokens = Config::kFp8 && Config::kPacked;
  static constexpr int kScaleGroups = Config::kFp8 ? kGroups : 1;
  static constexpr int kScaleColumns = Config::kFp8 ? 2 : 1;
  /// A maximum is only raised by a score that exceeds it by this much. Not 0 if outputs are bf16 and the
  /// cache e4m3: P is fp16, which rounds more finely, so under bf16's tolerance the heaviest token need not
  /// have the probability 1.
  __device__ __forceinline__ float slack() const {
    return Config::kFp8 && args_.given_is_bf16 ? 8.0F : 0.0F;
  }

  /// The element of V in a lane's row `half` of tile m.
  __device__ __forceinline__ int element(int m, int half) const {
    return 16 * m + (kInterleavedElements ? 2 * row_ + half : row_ + 8 * half);
  }
  /// Which of 16 tokens row `row` of S^T is; and the tokens of a step in a lane's rows, two of each 16.
  __device__ __forceinline__ static int row_token(int row) {
    return kInterleavedTokens ? row % 8 / 2 * 4 + row % 2 + row / 8 * 2 : row;
  }
  __device__ __forceinline__ int own_token(int i) const {
    return i / 2 * 16 + (kInterleavedTokens ? row_token(row_) + 2 * (i % 2) : row_ + 8 * (i % 2));
  }

  __device__ __forceinline__ float scale_log2(int c, int i) const {
    return Config::kFp8 ? scale_log2_[c % kScaleGroups][i % kScaleColumns] : scale_log2_[0][0];
  }

  /// Loads Q as B operands for all tiles of eight columns: pairs of elements of the lane's row of each eight;
  /// 0 past the last row.
  __device__ __forceinline__ void load_query(int c) {
    const int column = Config::kFp8 ? 2 * column_ : column_;
    const int row = 8 * c + row_;
    const int elements = row < tile_.rows ? args_.dim - column : 0;
    const sm90::QueryArguments& query = args_.decode.query;
    const int near = min(row, max(tile_.rows - 1, 0));
    const auto* from = static_cast<const GivenBits*>(query.first.data) +
                       tile_.origin * query.first.batch_stride +
                       tile_.token(query, near) * query.first.token_stride +
                       tile_.head(query, near) * query.first.head_stride + column;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int element = 16 * k + i * (Config::kFp8 ? 2 : 8);
        query_[k][c][i] =
            element < elements ? __ldg(reinterpret_cast<const std::uint32_t*>(from + element)) : 0;
      }
    }
  }

  /// Converts Q to fp16. bf16 has a larger range, so each row is multiplied by the power of two that brings
  /// its largest element to 2^14 to 2^15, and its scores by the inverse. Elements below 2^-38 of the largest
  /// underflow.
  template <class Given>
  __device__ __forceinline__ void query_to_half() {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) query_to_half<Given>(c);
  }
  template <class Given>
  __device__ __forceinline__ void query_to_half(int c) {
    float largest = 0;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
#pragma unroll
      for (std::uint32_t pair : query_[k][c]) {
        const float2 wide = sm90::unpack<Given>(pair);
        largest = fmaxf(largest, fmaxf(fabsf(wide.x), fabsf(wide.y)));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
    // Exponents are biased by 127. The power must be a number even if all elements are 0, or one is infinite.
    const int up = min(14 + 127 - static_cast<int>(__float_as_uint(largest) >> 23), 113);
    const float factor = __uint_as_float((127 + up) << 23), inverse = __uint_as_float((127 - up) << 23);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
#pragma unroll
      for (std::uint32_t& pair : query_[k][c]) {
        const float2 wide = sm90::unpack<Given>(pair);
        pair = sm90::pack<Element>(wide.x * factor, wide.y * factor);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale_log2_[c % kScaleGroups][i % kScaleColumns] *= __shfl_sync(0xffffffff, inverse, (column_ + i) * 4);
    }
  }

  __device__ __forceinline__ TokenSpan seen(int n) const {
    return tile_.seen_in_window(args_.decode, args_.score.window, length_, n);
  }

  /// Combines x over the lanes that have the same columns.
  template <class Combine>
  __device__ __forceinline__ static float over_tokens(float x, Combine combine) {
#pragma unroll
    for (int step = 4; step <= 16; step *= 2) x = combine(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
  }

  __device__ __forceinline__ void score(float (&s)[kTokenTiles][kGroups][4], std::uint32_t keys) const {
    const std::uint32_t first = keys + Config::key_unit(row_token(lane_ % 16), lane_ / 16);
#pragma unroll
    for (int k = 0; k < kTiles; k += Config::kFp8 ? 2 : 1) {
#pragma unroll
      for (int h = 0; h < kTokenTiles; ++h) {
        const std::uint32_t at = first + h * Config::kTileBytes;
        if constexpr (Config::kFp8) {
          std::uint32_t bytes[4];  // tokens 0 to 7 and 8 to 15 of tile k, then of k + 1
          ptx::load_matrices(bytes, Config::pair_of_units(at, k / 2));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const ptx::HalfPairs low = ptx::widen_e4m3(bytes[2 * i]),
                                 high = ptx::widen_e4m3(bytes[2 * i + 1]);
            const std::uint32_t a[4] = {low.low, high.low, low.high, high.high};
#pragma unroll
            for (int c = 0; c < kGroups; ++c) {
              ptx::mma<Element>(s[h][c], a, query_[k + i][c][0], query_[k + i][c][1]);
            }
          }
        } else {
          std::uint32_t a[4];
          ptx::load_matrices(a, Config::pair_of_units(at, k));
#pragma unroll
          for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(s[h][c], a, query_[k][c][0], query_[k][c][1]);
        }
      }
    }
  }

  /// From products to scores in base 2.
  __device__ __forceinline__ void transform(float (&s)[kTokenTiles][kGroups][4], int token) const {
    const ScoreArguments& score = args_.score;
    const bool plain = score.soft_cap == 0 && score.alibi_slopes == nullptr;
#pragma unroll
    for (int h = 0; h < kTokenTiles; ++h) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[h][c][i] *= scale_log2(c, i % 2);
      }
    }
    if (plain) return;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float slope = 0;
        if (score.alibi_slopes != nullptr) {
          const int n = min(8 * c + column_ + i, max(tile_.rows - 1, 0));
          slope = __ldg(score.alibi_slopes + tile_.head(args_.decode.query, n));
        }
#pragma unroll
        for (int t = 0; t < 2 * kTokenTiles; ++t) {
          float& x = s[t / 2][c][t % 2 * 2 + i];
          if (score.soft_cap != 0) {
            x = score.soft_cap * tanhf(x * sm90::kLn2 / score.soft_cap) * sm90::kLog2E;
          }
          const int distance = token + own_token(t) - (length_ - 1);
          x += slope * sm90::kLog2E * static_cast<float>(distance);
        }
      }
    }
  }

  /// Sets dead tokens' scores to -inf.
  __device__ __forceinline__ void mask_dead(float (&s)[kTokenTiles][kGroups][4], std::uint32_t live) const {
#pragma unroll
    for (int half = 0; half < 2 * kTokenTiles; ++half) {
      if ((live >> own_token(half) & 1) != 0) continue;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        s[half / 2][c][half % 2 * 2] = -INFINITY;
        s[half / 2][c][half % 2 * 2 + 1] = -INFINITY;
      }
    }
  }
  /// Sets scores of tokens that a row does not attend to to -inf.
  __device__ __forceinline__ void mask_unseen(float (&s)[kTokenTiles][kGroups][4], int token) const {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const TokenSpan of_row = seen(8 * c + column_ + i);
#pragma unroll
        for (int half = 0; half < 2 * kTokenTiles; ++half) {
          const int t = token + own_token(half);
          if (t < of_row.begin || t >= of_row.end) s[half / 2][c][half % 2 * 2 + i] = -INFINITY;
        }
      }
    }
  }

  /// From scores to P^T as the B operand, rounded.
  __device__ __forceinline__ void softmax(float (&s)[kTokenTiles][kGroups][4],
                                          std::uint32_t (&p)[kTokenTiles][kGroups][2]) {
    bool above = false;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) above = above || sm90::exceeds(own_max(s, c, i), max_[c][i], slack());
    }
    if (__any_sync(0xffffffff, above)) raise(s);
#pragma unroll
    for (int h = 0; h < kTokenTiles; ++h) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[h][c][i] = sm90::exp2_fast(s[h][c][i] - sm90::finite_or_zero(max_[c][i % 2]));
          sum_[c][i % 2] += s[h][c][i];
        }
        p[h][c][0] = ptx::transpose_matrix(sm90::pack<Element>(s[h][c][0], s[h][c][1]));
        p[h][c][1] = ptx::transpose_matrix(sm90::pack<Element>(s[h][c][2], s[h][c][3]));
      }
    }
  }

  /// The maximum of this lane's scores of a column.
  __device__ __forceinline__ static float own_max(const float (&s)[kTokenTiles][kGroups][4], int c, int i) {
    float max = fmaxf(s[0][c][i], s[0][c][2 + i]);
#pragma unroll
    for (int h = 1; h < kTokenTiles; ++h) max = fmaxf(max, fmaxf(s[h][c][i], s[h][c][2 + i]));
    return max;
  }

  /// Raises the maxima that these scores exceed by more than the slack; rescales the output so far.
  __device__ __forceinline__ void raise(const float (&s)[kTokenTiles][kGroups][4]) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float block = over_tokens(own_max(s, c, i), [](float a, float b) { return fmaxf(a, b); });
        const float max = sm90::settle_base(max_[c][i], block, slack());
        factor[i] = sm90::exp2_fast(max_[c][i] - sm90::finite_or_zero(max));
        max_[c][i] = max;
        sum_[c][i] *= factor[i];
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o_[m][c][i] *= factor[i % 2];
      }
    }
  }

  /// O^T += V^T P^T.
  __device__ __forceinline__ void multiply(const std::uint32_t (&p)[kTokenTiles][kGroups][2],
                                           std::uint32_t values) {
    // In rows, lanes address matrices of (token, unit): bf16 (0, 0), (0, 1), (8, 0), (8, 1). e4m3, whose unit
    // is a tile: (0, 0), (8, 0), (0, 1), (8, 1).
    const int upper = Config::kFp8 ? lane_ / 8 % 2 : lane_ / 16;
    const int unit = Config::kFp8 ? lane_ / 16 : lane_ / 8 % 2;
    const std::uint32_t first = values + (!Config::kPacked ? Config::row_unit(lane_ % 8 + 8 * upper, unit)
                                          : Config::kFp8   ? lane_ * Config::kValueRow
                                                         : lane_ % 16 * Config::kValueRow + lane_ / 16 * 16);
#pragma unroll
    for (int m = 0; m < kTiles; m += Config::kFp8 ? 2 : 1) {
#pragma unroll
      for (int h = 0; h < kTokenTiles; ++h) {
        const std::uint32_t at = first + h * Config::kTileBytes;
        if constexpr (Config::kFp8) {
          multiply_fp8(p[h], at, m);
        } else {
          std::uint32_t a[4];
          if constexpr (Config::kPacked) {
            ptx::load_matrices(a, at + 16 * m * Config::kValueRow);
          } else {
            ptx::load_matrices_transposed(a, Config::pair_of_units(at, m));
          }
#pragma unroll
          for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(o_[m][c], a, p[h][c][0], p[h][c][1]);
        }
      }
    }
  }

  /// Multiplies tiles m and m + 1.
  __device__ __forceinline__ void multiply_fp8(const std::uint32_t (&p)[kGroups][2], std::uint32_t first,
                                               int m) {
    std::uint32_t bytes[4];
    if constexpr (Config::kPacked) {
      // A row is 16 tokens of one element, 16 bytes: elements 0 to 7 and 8 to 15 of tile m, then of m + 1.
      ptx::load_matrices(bytes, first + 16 * m * Config::kValueRow);
    } else {
      // Transposed by pairs of elements: four bytes are elements 2 g and 2 g + 1 of tokens 2 t and 2 t + 1.
      ptx::load_matrices_transposed(bytes, Config::pair_of_units(first, m / 2));
#pragma unroll
      for (std::uint32_t& four : bytes) four = __byte_perm(four, 0, 0x3120);  // by elements
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const ptx::HalfPairs first = ptx::widen_e4m3(bytes[2 * i]), second = ptx::widen_e4m3(bytes[2 * i + 1]);
      // Rows g and g + 8: packed, a register each; otherwise half of each, for tokens 0 to 7 and 8 to 15.
      const std::uint32_t a[4] = {first.low, Config::kPacked ? second.low : first.high,
                                  Config::kPacked ? first.high : second.low, second.high};
#pragma unroll
      for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(o_[m + i][c], a, p[c][0], p[c][1]);
    }
  }

  /// For tokens to which only some rows attend: adds V's elements that are not finite to the outputs of these
  /// rows, and replaces them by 0 (0 * NaN is NaN).
  __device__ __forceinline__ void add_not_finite(std::uint8_t* planes, int token, std::uint32_t live) {
#pragma unroll 1
    for (int t = 0; t < Config::kStepTokens; ++t) {
      if (!(live >> t & 1)) continue;
      bool sees_token[kGroups][2];
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const TokenSpan of_row = seen(8 * c + column_ + i);
          sees_token[c][i] = token + t >= of_row.begin && token + t < of_row.end;
        }
      }
#pragma unroll 1
      for (int first = 0; first < Config::kDim; first += 32) {
        std::uint8_t* value = Values<Config>::at(planes, t, first + lane_);
        const bool inside = first + lane_ < Config::kDim;
        const float own_extra = inside ? Values<Config>::not_finite(value) : 0.0F;
        if (own_extra != 0) Values<Config>::clear(value);
#pragma unroll 1
        for (std::uint32_t all = __ballot_sync(0xffffffff, own_extra != 0); all != 0; all &= all - 1) {
          const int lane = __ffs(static_cast<int>(all)) - 1;
          const int poisoned = first + lane;
          const float extra = __shfl_sync(0xffffffff, own_extra, lane);
#pragma unroll
          for (int c = 0; c < kGroups; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              // Does the lane have this element in one of its tiles?
              const bool own = sees_token[c][i % 2] && element(poisoned / 16, i / 2) == poisoned;
#pragma unroll
              for (int m = 0; m < kTiles; ++m) {
                if (own && m == poisoned / 16) o_[m][c][i] += extra;
              }
            }
          }
        }
      }
    }
    ptx::fence_for_async_proxy();
    __syncwarp();
  }

  const Arguments& args_;
  std::uint8_t* const stages_;
  const int lane_;
  const int row_;     // g
  const int column_;  // 2 t
  sm90::RowTile tile_;
  int length_ = 0;
  TokenSpan all_ = {};  // what all rows see
  float scale_log2_[kScaleGroups][kScaleColumns];
  std::uint32_t query_[kTiles][kGroups][2];
  float o_[kTiles][kGroups][4];
  float max_[kGroups][2];  // base 2, of this warp's tokens
  float sum_[kGroups][2];  // this lane's share
};

}  // namespace flashlatent::gqa_16
