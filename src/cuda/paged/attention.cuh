// A warp's attention over 16 tokens at a time, transposed: tokens on mma's M side, query rows on N, which
// is 8.
//
//   S^T = K Q^T       16 tokens x kColumns, K from shared memory by ldmatrix
//   P^T               the maximum over tokens: lanes of a column; each warp has its own
//   O^T += V^T P^T    kDim x kColumns; ldmatrix turns V, movmatrix P
//
// A lane has columns 8 c + 2 t + {0, 1} of rows g and g + 8 (ptx/mma.cuh): of S^T those rows are tokens, of
// O^T elements of V. e4m3 comes by four bytes a lane, and the order of elements is what that gives: of 16
// elements of K a lane has 4 t + {0, 1, 2, 3}, in place of 2 t + {0, 1, 8, 9}, and takes Q's accordingly; of
// V in rows, rows g and g + 8 of O^T are elements 2 g and 2 g + 1; of packed V a lane has tokens 4 t + {0, 1,
// 2, 3}, and K's rows are taken in the order that makes P's the same.
#pragma once

#include "cuda/paged/arguments.cuh"
#include "cuda/paged/config.h"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/softmax.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"

namespace flashlatent::paged {

/// What a query row attends to: tokens [begin, end).
struct Visible {
  int begin, end;
};

__device__ __forceinline__ Visible visible_by(const Arguments& args, const parts::RowTile& tile, int length,
                                              int row) {
  const parts::DecodeArguments& decode = args.decode;
  const int end = decode.causal ? length - tile.tokens + tile.token(decode.query, row) + 1 : length;
  return {args.score.window > 0 ? max(end - args.score.window, 0) : 0, end};
}
/// From the first token that any row of the tile attends to, to the last.
__device__ __forceinline__ Visible visible_by_some(const Arguments& args, const parts::RowTile& tile,
                                                   int length) {
  return {visible_by(args, tile, length, 0).begin, visible_by(args, tile, length, max(tile.rows - 1, 0)).end};
}

template <class Config>
class Attention {
 public:
  using Element = typename Config::Product;
  static constexpr int kGroups = Config::kColumns / 8;  // of 8 columns
  static constexpr int kTiles = Config::kDim / 16;      // of 16 elements
  static_assert(kTiles % 2 == 0, "ldmatrix takes two tiles at once");

  __device__ __forceinline__ Attention(const Arguments& args, std::uint8_t* stages)
      : args_(args), stages_(stages), lane_(threadIdx.x % 32), row_(lane_ / 4), column_(lane_ % 4 * 2) {}

  /// A segment of a request of `length` tokens. Q is in shared memory; `row_scales`: what a row's scores are
  /// multiplied by in the end (e4m3).
  __device__ __forceinline__ void start(const parts::RowTile& tile, int length, const std::uint8_t* query,
                                        const float* row_scales) {
    tile_ = tile;
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
    all_ = {visible(last).begin, visible(0).end};
    const float* scale = args_.keys.scale;
    const float key_scale = scale == nullptr ? 1.0F : __ldg(scale + tile_.kv_head * args_.keys.scale_stride);
    load_query(query);
#pragma unroll
    for (int c = 0; c < kScaleGroups; ++c) {
#pragma unroll
      for (int i = 0; i < kScaleColumns; ++i) {
        scale_log2_[c][i] = args_.decode.scale_log2 * key_scale;
        if (Config::kFp8) scale_log2_[c][i] *= row_scales[8 * c + column_ + i];
      }
    }
  }

  /// The 16 tokens from `token` on, of which `live` count.
  __device__ __forceinline__ void attend(int token, std::uint32_t live, int stage) {
    std::uint8_t* keys = stages_ + stage * Config::kStageBytes;
    std::uint8_t* values = keys + Config::kKeyBytes;
    if (Config::kPackedValues && live != 0xffff) clear_dead(values, live);
    float s[kGroups][4] = {};
    score(s, ptx::shared_address(keys));
    transform(s, token);
    const bool seen_by_all = token >= all_.begin && token + Config::kStepTokens <= all_.end;
    if (live != 0xffff || !seen_by_all) {
      mask(s, token, live);
      if (!seen_by_all) spread_poison(values, token, live);
    }
    std::uint32_t p[kGroups][2];
    softmax(s, p);
    multiply(p, ptx::shared_address(values));
  }

  /// This warp's share into shared memory: outputs row by row (kOutputRow floats each), then maxima and sums.
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
          outputs[n * Config::kOutputRow + element(m, 0)] = o_[m][c][i];
          outputs[n * Config::kOutputRow + element(m, 1)] = o_[m][c][2 + i];
        }
      }
    }
  }

 private:
  static constexpr bool kInterleavedElements = Config::kFp8 && !Config::kPackedValues;
  static constexpr bool kInterleavedTokens = Config::kFp8 && Config::kPackedValues;
  static constexpr int kScaleGroups = Config::kFp8 ? kGroups : 1;
  static constexpr int kScaleColumns = Config::kFp8 ? 2 : 1;
  // A maximum moves once a score is above it by this much. fp16 rounds probabilities finer than bf16, whose
  // tolerance applies, so that the one of a token that weighs most need not be 1.
  static constexpr float kSlack = std::is_same_v<Element, typename Config::Element> ? 0.0F : 8.0F;

  /// Which element of V a lane's row `half` of tile m is.
  __device__ __forceinline__ int element(int m, int half) const {
    return 16 * m + (kInterleavedElements ? 2 * row_ + half : row_ + 8 * half);
  }
  /// Which of a step's tokens row `row` of S^T is, and of a lane's rows the one `half`.
  __device__ __forceinline__ static int token_of(int row) {
    return kInterleavedTokens ? row % 8 / 2 * 4 + row % 2 + row / 8 * 2 : row;
  }
  __device__ __forceinline__ int own_token(int half) const {
    return kInterleavedTokens ? token_of(row_) + 2 * half : row_ + 8 * half;
  }

  __device__ __forceinline__ float scale_log2(int c, int i) const {
    return Config::kFp8 ? scale_log2_[c % kScaleGroups][i % kScaleColumns] : scale_log2_[0][0];
  }

  /// Q as B operands of all tiles.
  __device__ __forceinline__ void load_query(const std::uint8_t* query) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      const std::uint8_t* rows = query + 8 * c * Config::kQueryRow;
#pragma unroll
      for (int k = 0; k < kTiles; k += 2) {
        if constexpr (Config::kFp8) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const auto pairs =
                *reinterpret_cast<const uint2*>(rows + row_ * Config::kQueryRow + (k + i) * 32 + column_ * 4);
            query_[k + i][c][0] = pairs.x;
            query_[k + i][c][1] = pairs.y;
          }
        } else {
          std::uint32_t b[4];
          ptx::load_matrices(
              b, ptx::shared_address(rows) + lane_ % 8 * Config::kQueryRow + lane_ / 8 * 16 + k * 32);
          query_[k][c][0] = b[0];
          query_[k][c][1] = b[1];
          query_[k + 1][c][0] = b[2];
          query_[k + 1][c][1] = b[3];
        }
      }
    }
  }

  __device__ __forceinline__ Visible visible(int n) const {
    return visible_by(args_, tile_, length_, n);
  }

  /// Over the lanes that have the same columns.
  template <class Combine>
  __device__ __forceinline__ static float over_tokens(float x, Combine combine) {
#pragma unroll
    for (int step = 4; step <= 16; step *= 2) x = combine(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
  }

  __device__ __forceinline__ void score(float (&s)[kGroups][4], std::uint32_t keys) const {
    const std::uint32_t row = keys + token_of(lane_ % 16) * Config::kKeyRow + lane_ / 16 * 16;
#pragma unroll
    for (int k = 0; k < kTiles; k += Config::kFp8 ? 2 : 1) {
      std::uint32_t a[4];
      if constexpr (Config::kFp8) {
        std::uint32_t bytes[4];  // tokens 0 to 7 and 8 to 15 of tile k, then of k + 1
        ptx::load_matrices(bytes, row + k * 16);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const ptx::HalfPairs low = ptx::widen_e4m3(bytes[2 * i]), high = ptx::widen_e4m3(bytes[2 * i + 1]);
          const std::uint32_t wide[4] = {low.low, high.low, low.high, high.high};
#pragma unroll
          for (int c = 0; c < kGroups; ++c)
            ptx::mma<Element>(s[c], wide, query_[k + i][c][0], query_[k + i][c][1]);
        }
      } else {
        ptx::load_matrices(a, row + k * 32);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(s[c], a, query_[k][c][0], query_[k][c][1]);
      }
    }
  }

  /// From products to scores in base 2.
  __device__ __forceinline__ void transform(float (&s)[kGroups][4], int token) const {
    const ScoreArguments& score = args_.score;
    const bool plain = score.soft_cap == 0 && score.alibi_slopes == nullptr;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[c][i] *= scale_log2(c, i % 2);
        if (plain) continue;
        float x = s[c][i] * parts::kLn2;
        if (score.soft_cap != 0) x = score.soft_cap * tanhf(x / score.soft_cap);
        if (score.alibi_slopes != nullptr) {
          const int n = min(8 * c + column_ + i % 2, max(tile_.rows - 1, 0));
          const float slope = __ldg(score.alibi_slopes + tile_.head(args_.decode.query, n));
          x += slope * static_cast<float>(token + own_token(i / 2) - (length_ - 1));
        }
        s[c][i] = x * parts::kLog2E;
      }
    }
  }

  __device__ __forceinline__ void mask(float (&s)[kGroups][4], int token, std::uint32_t live) const {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = own_token(i / 2);
        if (!(live >> t & 1) || !sees(8 * c + column_ + i % 2, token + t)) s[c][i] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ bool sees(int n, int token) const {
    const Visible range = visible(n);
    return token >= range.begin && token < range.end;
  }

  /// From scores to P^T as the B operand, rounded; the output so far shrinks to the new maximum.
  __device__ __forceinline__ void softmax(float (&s)[kGroups][4], std::uint32_t (&p)[kGroups][2]) {
    bool above = false;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) above = above || fmaxf(s[c][i], s[c][2 + i]) > max_[c][i] + kSlack;
    }
    if (__any_sync(0xffffffff, above)) raise(s);
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float base = parts::finite_or_zero(max_[c][i]);
        s[c][i] = parts::exp2_fast(s[c][i] - base);
        s[c][2 + i] = parts::exp2_fast(s[c][2 + i] - base);
        sum_[c][i] += s[c][i] + s[c][2 + i];
      }
      p[c][0] = ptx::transpose_matrix(parts::pack<Element>(s[c][0], s[c][1]));
      p[c][1] = ptx::transpose_matrix(parts::pack<Element>(s[c][2], s[c][3]));
    }
  }

  /// The maxima become what they are with these scores.
  __device__ __forceinline__ void raise(const float (&s)[kGroups][4]) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float block =
            over_tokens(fmaxf(s[c][i], s[c][2 + i]), [](float a, float b) { return fmaxf(a, b); });
        const float max = fmaxf(max_[c][i], block);
        factor[i] = parts::exp2_fast(max_[c][i] - parts::finite_or_zero(max));
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
  __device__ __forceinline__ void multiply(const std::uint32_t (&p)[kGroups][2], std::uint32_t values) {
#pragma unroll
    for (int m = 0; m < kTiles; m += Config::kFp8 ? 2 : 1) {
      if constexpr (Config::kFp8) {
        multiply_fp8(p, values, m);
      } else {
        std::uint32_t a[4];
        if constexpr (Config::kPackedValues) {
          const int row = 16 * m + lane_ % 16;
          ptx::load_matrices(a, values + row * Config::kValueRow + Config::packed_unit(row, lane_ / 16) * 16);
        } else {
          // Matrices of tokens by elements: (0, 0), (0, 8), (8, 0), (8, 8).
          const int token = lane_ % 8 + lane_ / 16 * 8, column = lane_ / 8 % 2 * 8;
          ptx::load_matrices_transposed(a, values + token * Config::kValueRow + (16 * m + column) * 2);
        }
#pragma unroll
        for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(o_[m][c], a, p[c][0], p[c][1]);
      }
    }
  }

  /// Tiles m and m + 1.
  __device__ __forceinline__ void multiply_fp8(const std::uint32_t (&p)[kGroups][2], std::uint32_t values,
                                               int m) {
    std::uint32_t bytes[4];
    if constexpr (Config::kPackedValues) {
      // A row is 16 tokens of an element, 16 bytes: elements 0 to 7 and 8 to 15 of tile m, then of m + 1.
      ptx::load_matrices(bytes, values + (16 * m + lane_) * Config::kValueRow);
    } else {
      // Turned by pairs of elements: 2 g and 2 g + 1 of tokens 2 t and 2 t + 1 in four bytes.
      const int token = lane_ % 8 + lane_ / 8 % 2 * 8;
      ptx::load_matrices_transposed(bytes, values + token * Config::kValueRow + 16 * (m + lane_ / 16));
#pragma unroll
      for (std::uint32_t& four : bytes) four = __byte_perm(four, 0, 0x3120);  // by elements
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const ptx::HalfPairs first = ptx::widen_e4m3(bytes[2 * i]), second = ptx::widen_e4m3(bytes[2 * i + 1]);
      // Of rows g and g + 8: packed, a register each; else half of each, for tokens 0 to 7 and 8 to 15.
      const std::uint32_t a[4] = {first.low, Config::kPackedValues ? second.low : first.high,
                                  Config::kPackedValues ? first.high : second.low, second.high};
#pragma unroll
      for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(o_[m + i][c], a, p[c][0], p[c][1]);
    }
  }

  /// Where an element of V is, in its stage.
  __device__ __forceinline__ static std::uint8_t* value_at(std::uint8_t* values, int token, int element) {
    if constexpr (Config::kPackedValues) {
      const int byte = token * Config::kElementBytes;
      return values + element * Config::kValueRow + Config::packed_unit(element, byte / 16) * 16 + byte % 16;
    } else {
      return values + token * Config::kValueRow + element * Config::kElementBytes;
    }
  }
  __device__ __forceinline__ static void clear(std::uint8_t* value) {
    if constexpr (Config::kFp8) {
      *value = 0;
    } else {
      *reinterpret_cast<std::uint16_t*>(value) = 0;
    }
  }
  __device__ __forceinline__ static bool is_poison(const std::uint8_t* value) {
    if constexpr (Config::kFp8) {
      return (*value & 0x7f) == 0x7f;
    } else {
      return parts::low_is_poison<Element>(*reinterpret_cast<const std::uint16_t*>(value));
    }
  }

  /// Packed values come by eight tokens or more: those that do not count become zeros here.
  __device__ __forceinline__ void clear_dead(std::uint8_t* values, std::uint32_t live) const {
    for (int element = lane_; element < Config::kDim; element += 32) {
      for (int t = 0; t < Config::kStepTokens; ++t) {
        if (!(live >> t & 1)) clear(value_at(values, t, element));
      }
    }
    __syncwarp();
  }

  /// Tokens that some rows attend to and others do not: what is not finite in their V (0 * NaN is NaN) goes
  /// into the outputs of those that do here, and becomes 0.
  __device__ __forceinline__ void spread_poison(std::uint8_t* values, int token, std::uint32_t live) {
#pragma unroll 1
    for (int t = 0; t < Config::kStepTokens; ++t) {
      if (!(live >> t & 1)) continue;
#pragma unroll 1
      for (int first = 0; first < Config::kDim; first += 32) {
        std::uint8_t* value = value_at(values, t, first + lane_);
        const bool inside = first + lane_ < Config::kDim;
        const bool found = inside && is_poison(value);
        if (found) clear(value);
#pragma unroll 1
        for (std::uint32_t all = __ballot_sync(0xffffffff, found); all != 0; all &= all - 1) {
          const int poisoned = first + __ffs(static_cast<int>(all)) - 1;
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int c = 0; c < kGroups; ++c) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                if (element(m, i / 2) == poisoned && sees(8 * c + column_ + i % 2, token + t))
                  o_[m][c][i] = NAN;
              }
            }
          }
        }
      }
    }
    __syncwarp();
  }

  const Arguments& args_;
  std::uint8_t* const stages_;
  const int lane_;
  const int row_;     // g
  const int column_;  // 2 t
  parts::RowTile tile_;
  int length_ = 0;
  Visible all_ = {};  // by all rows
  float scale_log2_[kScaleGroups][kScaleColumns];
  std::uint32_t query_[kTiles][kGroups][2];
  float o_[kTiles][kGroups][4];
  float max_[kGroups][2];  // base 2, of this warp's tokens
  float sum_[kGroups][2];  // this lane's share
};

}  // namespace flashlatent::paged
