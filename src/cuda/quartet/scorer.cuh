// The warpgroup that scores: S^T = K Q^T of every block, for the two that multiply.
//
// K comes to registers as it is in the cache and is brought to fp16 there, in units of its token
// (parts/fp8_units.cuh), so that all groups of a token add up in one sum. Units go into the exponents.
#pragma once

#include "cuda/direct/products.cuh"
#include "cuda/etap/softmax.cuh"
#include "cuda/quartet/tile_rows.cuh"

namespace flashlatent::quartet {

inline constexpr int kScorerBarrier = 1;  // named, of its 128 threads

template <class Config>
class Scorer {
 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : shared_(shared), rows_(shared, args) {}

  /// All blocks of one segment.
  __device__ __forceinline__ void attend(const parts::Work& work) {
    rows_.meet();
    const int blocks = work.blocks();
    if (blocks <= 0) return;
    scale_ = rows_.take_query();
    int limit = rows_.limit(work, 0) - work.segment.block_begin * 64;  // of the first row, from the block on
#pragma unroll 1
    for (int left = blocks; left > 0; --left) {
      score();
      publish(work, limit);
      slot_.next();
      limit -= 64;
    }
  }

 private:
  static constexpr int kRows = Config::kRows;

  __device__ __forceinline__ static int thread() {
    return threadIdx.x % 128;
  }
  __device__ __forceinline__ static parts::Fragment fragment() {
    return parts::fragment_of(thread());
  }

  /// Of a token's scales.
  struct KeyScales {
    std::uint32_t unit;  // its exponent
    bool exact;          // are they powers of two?

    __device__ __forceinline__ static KeyScales of(std::uint32_t token) {
      const uint4 bits = ptx::load_shared_16_bytes(token + fp8_656::kScaleOffset);
      const float scales[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                               __uint_as_float(bits.w)};
      return {parts::unit_exponent(fmaxf(fmaxf(scales[0], scales[1]), fmaxf(scales[2], scales[3]))),
              ((bits.x | bits.y | bits.z | bits.w) & 0x7FFFFF) == 0};
    }
    /// What RoPE is multiplied by: two bf16.
    __device__ __forceinline__ std::uint32_t inverse_pair() const { return (254 - unit) * 0x00800080U; }
  };

  /// s_ = K Q^T of the next block, in units of tokens.
  __device__ __forceinline__ void score() {
    const int slot = slot_.slot();
    ptx::wait(shared_.full[slot], slot_.parity());
    const std::uint32_t token =
        ptx::shared_address(shared_.blocks[slot]) + fragment().row * fp8_656::kTokenBytes;
    const std::uint32_t second = token + 8 * fp8_656::kTokenBytes;
    const std::uint32_t row = token + fragment().column * 16;  // 32 bytes a lane of the quad
    const std::uint64_t q =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0));
    const KeyScales low = KeyScales::of(token), high = KeyScales::of(second);
    const direct::KeyBytes rope = direct::KeyBytes::at(row + fp8_656::kRopeOffset),
                           more_rope = direct::KeyBytes::at(row + fp8_656::kRopeOffset + 16);
    direct::KeyBytes bytes = direct::KeyBytes::at(row);
    units_[0] = low.unit;
    units_[1] = high.unit;
    direct::Operands a[2];
    direct::take_rope(a[1], rope, more_rope);
    scale_rope(a[1], low.inverse_pair(), high.inverse_pair());
    ptx::pin_registers(s_);
    ptx::wgmma_fence();
    direct::multiply<__nv_bfloat16, kRows>(s_, a[1], q + 8 * kTileStep, false);
    ptx::wgmma_commit();
    // Asked while these run.
    if (ptx::named_any(kScorerBarrier, 128, !low.exact || !high.exact)) [[unlikely]] {
      score_rounded(token, row, q);
    } else {
      // Of either token, a group's two fp16, and the next one's.
      std::uint32_t ratios[2];
      float next[2] = {ratio_of(token, 0, units_[0]), ratio_of(second, 0, units_[1])};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i % 2 == 0) {
          ratios[0] = two(next[0]);
          ratios[1] = two(next[1]);
        } else if (i + 1 < 8) {
          next[0] = ratio_of(token, i / 2 + 1, units_[0]);
          next[1] = ratio_of(second, i / 2 + 1, units_[1]);
        }
        if (i >= 1) ptx::wgmma_wait<1>();
        widen_keys(a[i % 2], bytes, ratios[0], ratios[1]);
        if (i + 1 < 8) bytes = direct::KeyBytes::at(row + key_offset(i + 1));
        ptx::wgmma_fence();
        direct::multiply<__half, kRows>(s_, a[i % 2], q + i * kTileStep, true);
        ptx::wgmma_commit();
      }
    }
  }

  /// The latent's share where scales are no powers of two: values are rounded as code that works in bf16
  /// does, since an lse shows fp16's own rounding of a ratio. fp16 has room for all of their 8 bits.
  __device__ __forceinline__ void score_rounded(std::uint32_t token, std::uint32_t row, std::uint64_t q) {
    ptx::wgmma_wait<0>();
    direct::Operands a;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      const int group = i / 2;
      const float ratios[2] = {ratio_of(token, group, units_[0]),
                               ratio_of(token + 8 * fp8_656::kTokenBytes, group, units_[1])};
      direct::widen_keys(a, direct::KeyBytes::at(row + group * fp8_656::kGroup + i % 2 * 16));
#pragma unroll
      for (auto& k : a) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 two = parts::unpack<__half>(k[j]);
          const float ratio = ratios[j % 2];
          const float2 rounded =
              parts::unpack<__nv_bfloat16>(parts::pack<__nv_bfloat16>(two.x * ratio, two.y * ratio));
          k[j] = parts::pack<__half>(rounded.x, rounded.y);
        }
      }
      ptx::wgmma_fence();
      direct::multiply<__half, kRows>(s_, a, q + i * kTileStep, true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
  }
  /// What a group's values are multiplied by: its scale in units of the token.
  __device__ __forceinline__ static float ratio_of(std::uint32_t token, int group, std::uint32_t unit) {
    return ptx::load_float(token + fp8_656::kScaleOffset + group * 4) * parts::power_of_two(254 - unit);
  }

  __device__ __forceinline__ static std::uint32_t two(float x) {
    return parts::pack<__half>(x, x);
  }

  /// Of the i-th 16 columns that a lane has of its 128 bytes of K.
  __device__ __forceinline__ static constexpr int key_offset(int i) {
    return i / 2 * fp8_656::kGroup + i % 2 * 16;
  }

  __device__ __forceinline__ static void scale_rope(direct::Operands& a, std::uint32_t low,
                                                    std::uint32_t high) {
#pragma unroll
    for (auto& k : a) {
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] = parts::times_bf16(k[i], i % 2 == 0 ? low : high);
    }
  }
  __device__ __forceinline__ static void widen_keys(direct::Operands& a, const direct::KeyBytes& bytes,
                                                    std::uint32_t low, std::uint32_t high) {
    direct::widen_keys(a, bytes);
#pragma unroll
    for (auto& k : a) {
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] = parts::times(k[i], i % 2 == 0 ? low : high);
    }
  }

  /// Scores to base 2, and units, into exponents of P for those who multiply. `limit`: tokens of this block
  /// and later ones that the tile's first row attends to.
  __device__ __forceinline__ void publish(const parts::Work& work, int limit) {
    const int slot = slot_.slot();
    const std::uint64_t live = read_live(shared_.live[slot]);
    const float low_scale = scale_ * parts::power_of_two(units_[0]),
                high_scale = scale_ * parts::power_of_two(units_[1]);
    const float low_log = parts::log2_of(units_[0]) + Config::kLargestP,
                high_log = parts::log2_of(units_[1]) + Config::kLargestP;
    ptx::wait(shared_.softened, softened_ ^ 1);
    TokenScales& tokens = shared_.tokens[softened_];
    softened_ ^= 1;
    put_token(tokens, fragment().row, units_[0]);
    put_token(tokens, fragment().row + 8, units_[1]);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      s_[i] = i % 4 < 2 ? fmaf(s_[i], low_scale, low_log) : fmaf(s_[i], high_scale, high_log);
    }
    if (live != parts::kAllLive || rows_.partial_tokens(live, limit) != 0) [[unlikely]] {
      const int first = rows_.limit(work, 0) - limit;
      etap::mask_columns<kRows>(s_, live, fragment(), [&](int n) { return rows_.limit(work, n) - first; });
    }
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = fragment().row + 8 * half;
        *reinterpret_cast<float2*>(
            &shared_.scores.of_token[token][Scores::place(token, 8 * j + fragment().column)]) =
            make_float2(s_[4 * j + 2 * half], s_[4 * j + 2 * half + 1]);
      }
    }
    ptx::arrive(shared_.scored);
    ptx::arrive(shared_.empty[slot]);
  }

  /// A lane of the quad a group.
  __device__ __forceinline__ void put_token(TokenScales& to, int token, std::uint32_t unit) const {
    const int group = thread() % 4;
    const std::uint32_t at = ptx::shared_address(shared_.blocks[slot_.slot()]) + token * fp8_656::kTokenBytes;
    const float scale = ptx::load_float(at + fp8_656::kScaleOffset + group * 4);
    to.ratio[group][token] = __half_as_ushort(parts::ratio_to_unit(scale, unit));
    if (group == 0) to.share[token] = parts::power_of_two(254 - Config::kLargestP - unit);
  }

  static constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;

  SharedMemory<Config>& shared_;
  TileRows<Config> rows_;
  direct::Place<Config> slot_;  // of the next block
  std::uint32_t softened_ =
      0;             // parity of when the next scores have been read, and where their tokens' scales are
  float scale_ = 0;  // of scores, to base 2
  std::uint32_t units_[2] = {};  // exponents of this thread's two tokens' units
  float s_[kRows / 2];
};

}  // namespace flashlatent::quartet
