// A warp's attention over 16 tokens at a time, transposed: tokens on mma's M side, query rows on N, which
// is 8.
//
//   S^T = K Q^T       16 tokens x kColumns, K from shared memory by ldmatrix
//   P^T               the maximum over tokens: lanes of a column; each warp has its own
//   O^T += V^T P^T    kDim x kColumns; ldmatrix turns V, movmatrix P
//
// A lane has columns 8 c + 2 t + {0, 1} of rows g and g + 8 (ptx/mma.cuh): of S^T those rows are tokens, of
// O^T elements of V. e4m3 comes by four bytes a lane, and the order of elements is what that gives: of 16
// elements of K a lane has 4 t + {0, 1, 2, 3}, in place of 2 t + {0, 1, 8, 9}, and takes Q's accordingly;
// rows g and g + 8 of O^T are elements 2 g and 2 g + 1.
#pragma once

#include <cuda_fp8.h>

#include "cuda/paged/arguments.cuh"
#include "cuda/paged/config.h"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/mask.cuh"
#include "cuda/parts/softmax.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"

namespace flashlatent::paged {

/// Two e4m3 as a pair of Element: exact.
template <class Element>
__device__ __forceinline__ std::uint32_t widen(std::uint32_t pair) {
  const __half2 halves(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3));
  if constexpr (std::is_same_v<Element, __half>) return *reinterpret_cast<const std::uint32_t*>(&halves);
  const float2 values = __half22float2(halves);
  return parts::pack<Element>(values.x, values.y);
}

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
  using Element = typename Config::Element;
  static constexpr int kGroups = Config::kColumns / 8;  // of 8 columns
  static constexpr int kTiles = Config::kDim / 16;      // of 16 elements

  __device__ __forceinline__ Attention(const Arguments& args, std::uint8_t* query, std::uint8_t* stages)
      : args_(args),
        query_(query),
        stages_(stages),
        lane_(threadIdx.x % 32),
        row_(lane_ / 4),
        column_(lane_ % 4 * 2) {}

  /// A segment of a request of `length` tokens. Q is in shared memory.
  __device__ __forceinline__ void start(const parts::RowTile& tile, int length) {
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
    scale_log2_ = args_.decode.scale_log2 * key_scale;
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
  /// Which element of V a lane's row `half` of tile m is.
  __device__ __forceinline__ int element(int m, int half) const {
    return 16 * m + (Config::kFp8 ? 2 * row_ + half : row_ + 8 * half);
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
    const std::uint32_t row = keys + lane_ % 16 * Config::kKeyRow + lane_ / 16 * 16;
    if constexpr (Config::kFp8) {
#pragma unroll
      for (int k = 0; k < kTiles; k += 2) {  // 32 elements at once; past the last there are 16 of padding
        std::uint32_t bytes[4];
        ptx::load_matrices(bytes, row + k * 16);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (k + i >= kTiles) break;
          const std::uint32_t low = bytes[2 * i], high = bytes[2 * i + 1];
          const std::uint32_t a[4] = {widen<Element>(low & 0xffff), widen<Element>(high & 0xffff),
                                      widen<Element>(low >> 16), widen<Element>(high >> 16)};
#pragma unroll
          for (int c = 0; c < kGroups; ++c) {
            const std::uint8_t* q = query_ + (8 * c + row_) * Config::kQueryRow + (k + i) * 32 + column_ * 4;
            const uint2 b = *reinterpret_cast<const uint2*>(q);
            ptx::mma<Element>(s[c], a, b.x, b.y);
          }
        }
      }
    } else {
      const std::uint32_t query =
          ptx::shared_address(query_) + lane_ % 8 * Config::kQueryRow + lane_ / 8 * 16;
#pragma unroll
      for (int k = 0; k < kTiles; k += 2) {
        std::uint32_t b[kGroups][4];
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          ptx::load_matrices(b[c], query + 8 * c * Config::kQueryRow + k * 32);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (k + i >= kTiles) break;
          std::uint32_t a[4];
          ptx::load_matrices(a, row + (k + i) * 32);
#pragma unroll
          for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(s[c], a, b[c][2 * i], b[c][2 * i + 1]);
        }
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
        s[c][i] *= scale_log2_;
        if (plain) continue;
        float x = s[c][i] * parts::kLn2;
        if (score.soft_cap != 0) x = score.soft_cap * tanhf(x / score.soft_cap);
        if (score.alibi_slopes != nullptr) {
          const int n = min(8 * c + column_ + i % 2, max(tile_.rows - 1, 0));
          const float slope = __ldg(score.alibi_slopes + tile_.head(args_.decode.query, n));
          x += slope * static_cast<float>(token + row_ + i / 2 * 8 - (length_ - 1));
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
        const int t = row_ + i / 2 * 8;
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
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      float factor[2];
      bool grew = false;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float block =
            over_tokens(fmaxf(s[c][i], s[c][2 + i]), [](float a, float b) { return fmaxf(a, b); });
        const float max = fmaxf(max_[c][i], block);
        const float base = parts::finite_or_zero(max);
        factor[i] = parts::exp2_fast(max_[c][i] - base);
        grew = grew || factor[i] != 1.0F;
        max_[c][i] = max;
        s[c][i] = parts::exp2_fast(s[c][i] - base);
        s[c][2 + i] = parts::exp2_fast(s[c][2 + i] - base);
        sum_[c][i] = sum_[c][i] * factor[i] + s[c][i] + s[c][2 + i];
      }
      p[c][0] = ptx::transpose_matrix(parts::pack<Element>(s[c][0], s[c][1]));
      p[c][1] = ptx::transpose_matrix(parts::pack<Element>(s[c][2], s[c][3]));
      if (!__any_sync(0xffffffff, grew)) continue;
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
      // A row is 16 tokens of an element, 16 bytes. A lane gets tokens 4 t + {0, 1, 2, 3} of element lane / 4
      // of each eight; what it needs are tokens 2 t + {0, 1, 8, 9}: it reads those itself.
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Elements 2 g + i % 2 of tile m + i / 2.
        const std::uint32_t row =
            values + (16 * (m + i / 2) + 2 * row_ + i % 2) * Config::kValueRow + column_;
        bytes[i] = m + i / 2 < kTiles ? ptx::load_2_bytes(row) | ptx::load_2_bytes(row + 8) << 16 : 0;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (m + i >= kTiles) break;
        const std::uint32_t even = bytes[2 * i], odd = bytes[2 * i + 1];
        const std::uint32_t a[4] = {widen<Element>(even & 0xffff), widen<Element>(odd & 0xffff),
                                    widen<Element>(even >> 16), widen<Element>(odd >> 16)};
#pragma unroll
        for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(o_[m + i][c], a, p[c][0], p[c][1]);
      }
    } else {
      // Turned by pairs of elements: 2 g and 2 g + 1 of tokens 2 t and 2 t + 1 in four bytes.
      const int token = lane_ % 8 + lane_ / 8 % 2 * 8;
      const int tile = min(m + lane_ / 16, kTiles - 1);
      ptx::load_matrices_transposed(bytes, values + token * Config::kValueRow + 16 * tile);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (m + i >= kTiles) break;
        const std::uint32_t low = bytes[2 * i], high = bytes[2 * i + 1];  // tokens 0 to 7, 8 to 15
        const std::uint32_t a[4] = {
            widen<Element>(__byte_perm(low, 0, 0x4420)), widen<Element>(__byte_perm(low, 0, 0x4431)),
            widen<Element>(__byte_perm(high, 0, 0x4420)), widen<Element>(__byte_perm(high, 0, 0x4431))};
#pragma unroll
        for (int c = 0; c < kGroups; ++c) ptx::mma<Element>(o_[m + i][c], a, p[c][0], p[c][1]);
      }
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
  std::uint8_t* const query_;
  std::uint8_t* const stages_;
  const int lane_;
  const int row_;     // g
  const int column_;  // 2 t
  parts::RowTile tile_;
  int length_ = 0;
  Visible all_ = {};  // by all rows
  float scale_log2_ = 0;
  float o_[kTiles][kGroups][4];
  float max_[kGroups][2];  // base 2, of this warp's tokens
  float sum_[kGroups][2];  // this lane's share
};

}  // namespace flashlatent::paged
