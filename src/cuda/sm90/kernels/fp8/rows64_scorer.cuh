// The scorer: S^T = K Q^T of every block, for the two output warpgroups.
//
// K comes to registers as it is in the cache and becomes fp16 there, in units of its token
// (math/fp8_units.cuh), so that all groups of a token add up in one sum. Units are added to the exponents.
// e4m3 latents have no units. Scales of ue8m0 have a score of their own (scales_584.cuh).
#pragma once

#include "cuda/sm90/kernels/fp8/e4m3_block.cuh"
#include "cuda/sm90/kernels/fp8/products.cuh"
#include "cuda/sm90/kernels/fp8/ring_place.cuh"
#include "cuda/sm90/kernels/fp8/rows64_query.cuh"
#include "cuda/sm90/kernels/fp8/rows64_smem.cuh"
#include "cuda/sm90/kernels/fp8/units_584.cuh"
#include "cuda/sm90/math/column_softmax.cuh"

namespace flashlatent::fp8::rows64 {

template <class Config>
class Scorer {
 public:
  __device__ __forceinline__ Scorer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                    const sm90::QueryMaps& query_maps)
      : shared_(shared), args_(args), query_(shared, args, query_maps) {
    own_ = Config::kE4m3    ? sm90::atoms::block_offset<Config::kChunks>(fragment().row, 0, thread() % 4)
           : Config::kPairs ? pairs::data_offset(fragment().row) + thread() % 4
                            : fragment().row * fp8_656::kTokenBytes + thread() % 4;
    // A shuffle from itself: ptxas cannot recompute a shuffle's result for each block, which would wait for
    // it.
    own_ = __shfl_sync(0xffffffff, own_, threadIdx.x % 32);
  }

  /// Takes a segment's Q, when the previous segment has been scored.
  __device__ __forceinline__ void begin(const sm90::Work& work) {
    scale_ = query_.take(work);
    if constexpr (Config::kE4m3) scale_ *= cache_scale(args_);
  }
  /// Takes the Q of the first segment before it is listed, if shapes tell it: `first`, else an end.
  __device__ __forceinline__ bool begin_first(const sm90::Work& first) {
    if (first.is_end()) return false;
    begin(first);
    return true;
  }
  /// By its lengths the first segment has no blocks.
  __device__ __forceinline__ void forget_first() { query_.forget_angles(); }
  /// The next segment; null: not known.
  __device__ __forceinline__ void look_ahead(const sm90::Work* next) const {
    if (next != nullptr && next->is_end()) next = nullptr;
    if (next != nullptr) query_.bring_to_l2(next->tile);
    if constexpr (Config::kAsksAhead) {
      if (thread() == 0) query_.say_next(next);
    }
  }

  /// All blocks of a segment that has blocks.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    // What the first row sees, from the block on.
    int limit = Config::kRowsAlike ? 0 : rows().seen_by_all(work).end - work.segment.block_begin * 64;
#pragma unroll 1
    for (int left = work.blocks(); left > 0; --left) {
      if constexpr (Config::kE4m3) {
        score_e4m3();
      } else if constexpr (Config::kUe8m0) {
        score_584();
      } else {
        score();
      }
      if constexpr (Config::kAsksAhead) {
        if (left == 1) {
          ptx::wgmma_wait<0>();
          query_.ask_ahead();
        }
      }
      publish(work, limit, finds_rows_ahead<Config>(work) && left == work.blocks() - 1);
      slot_.next();
      limit -= 64;
    }
  }

 private:
  static constexpr int kRows = Config::kRows;

  __device__ __forceinline__ static int thread() {
    return threadIdx.x % 128;
  }
  /// Neighbours among the eight tokens whose bytes lanes read at once are four tokens apart, so that eight
  /// lanes that read 64 bytes of two tokens have no bank conflict.
  __device__ __forceinline__ static sm90::Fragment fragment() {
    const sm90::Fragment own = sm90::fragment_of(thread());
    // Two tokens of an atom are adjacent, and the tokens of a pair lie in different banks.
    if constexpr (Config::kArrangement != Arrangement::kOneByOne) return own;
    const int i = own.row % 8;
    return {own.row - i + i % 2 * 4 + i / 2, own.column};
  }

  __device__ __forceinline__ const sm90::RowsBehind<kRows>& rows() const {
    return shared_.scored_rows;
  }

  /// The factor of a group's values: its scale in units of the token (sm90::ratio_to_unit()).
  __device__ __forceinline__ static float in_units(float scale, std::uint32_t unit) {
    return scale * sm90::power_of_two(254 - unit);
  }

  /// Follows from a token's scales.
  struct KeyScales {
    float group[fp8_656::kGroups];
    std::uint32_t unit;  // its exponent
    bool exact;          // are they powers of two?

    __device__ __forceinline__ static KeyScales of(std::uint32_t token) {
      const uint4 bits = ptx::load_shared_16_bytes(token + fp8_656::kScaleOffset);
      KeyScales scales = {.group = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                                    __uint_as_float(bits.w)}};
      const float* group = scales.group;
      scales.unit = sm90::unit_exponent(fmaxf(fmaxf(group[0], group[1]), fmaxf(group[2], group[3])));
      scales.exact = ((bits.x | bits.y | bits.z | bits.w) & 0x7FFFFF) == 0;
      return scales;
    }
    /// The factor of RoPE: two bf16.
    __device__ __forceinline__ std::uint32_t inverse_pair() const { return (254 - unit) * 0x00800080U; }
    __device__ __forceinline__ float ratio(int i) const { return in_units(group[i], unit); }
  };

  /// s_ = K Q^T of the next block, in units of tokens.
  __device__ __forceinline__ void score() {
    const int slot = slot_.slot();
    ptx::wait(shared_.full[slot], slot_.parity());
    const std::uint32_t token = ptx::shared_address(shared_.blocks[slot]) + (own_ & ~15U);
    const std::uint32_t second = token + 8 * fp8_656::kTokenBytes;
    const std::uint32_t row = token + own_ % 4 * 16;  // 16 bytes a lane of the quad
    const std::uint64_t q =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0));
    const KeyScales low = KeyScales::of(token), high = KeyScales::of(second);
    const fp8::KeyBytes rope = fp8::KeyBytes::at(row + fp8_656::kRopeOffset),
                        more_rope = fp8::KeyBytes::at(row + fp8_656::kRopeOffset + 64);
    fp8::KeyBytes bytes = fp8::KeyBytes::at(row);
    units_[0] = low.unit;
    units_[1] = high.unit;
    fp8::Operands a[2];
    fp8::take_rope(a[1], rope, more_rope);
    scale_rope(a[1], low.inverse_pair(), high.inverse_pair());
    ptx::pin_registers(s_);
    ptx::wgmma_fence();
    fp8::multiply<__nv_bfloat16, kRows>(s_, a[1], q + 8 * kTileStep, false);
    ptx::wgmma_commit();
    // Checked while these run.
    const bool by_groups = ptx::named_any(kScorerBarrier, 128, !low.exact || !high.exact);
    std::uint32_t ratios[fp8_656::kGroups];  // of both tokens
#pragma unroll
    for (int i = 0; i < fp8_656::kGroups; ++i) ratios[i] = sm90::pack<__half>(low.ratio(i), high.ratio(i));
    put_tokens(ratios);
    if (by_groups) {
      add_groups(a, token, row, q);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i >= 1) ptx::wgmma_wait<1>();
        widen_keys(a[i % 2], bytes, __byte_perm(ratios[i / 2], 0, 0x1010),
                   __byte_perm(ratios[i / 2], 0, 0x3232));
        if (i + 1 < 8) bytes = fp8::KeyBytes::at(row + (i + 1) * 64);
        add_product(a[i % 2], q + i * kTileStep);
      }
      // Not later: if one way left products under way and the other one changes sums, ptxas would let no
      // product of the kernel run beside another (C7515).
      ptx::wgmma_wait<0>();
    }
  }
  __device__ __forceinline__ void add_product(const fp8::Operands& a, std::uint64_t q) {
    ptx::wgmma_fence();
    fp8::multiply<__half, kRows>(s_, a, q, true);
    ptx::wgmma_commit();
  }

  /// The same for fp8_584. What odd tokens ask for comes before all products, one group after another, and
  /// without shuffles: behind a branch with shuffles ptxas computed the descriptors of all products in each
  /// thread, and calls took up to 1.27 times as long.
  __device__ __forceinline__ void score_584() {
    const int slot = slot_.slot();
    ptx::wait(shared_.full[slot], slot_.parity());
    const std::uint32_t row = ptx::shared_address(shared_.blocks[slot]) + (own_ & ~15U) + own_ % 4 * 16;
    const std::uint32_t scales =
        ptx::shared_address(shared_.blocks[slot]) + pairs::scale_offset(fragment().row);
    const auto scales_of = [&](int half) { return UnitScales::at(scales + half * pairs::kEightTokens); };
    UnitScales low = scales_of(0), high = scales_of(1);
    const fp8::KeyBytes rope = keys(row + Config::kRopeOffset),
                        more_rope = keys(row + Config::kRopeOffset + 64);
    Ratios584 ratios;
    if (ptx::named_any(kScorerBarrier, 128, low.is_odd() || high.is_odd())) [[unlikely]] {
      bound_values<1>(
          low, high, [row](int group) { return keys(row + group * fp8_584::kGroup); },
          [this](std::uint32_t bound) { return largest_of_quad(bound); });
      find_odd_ratios(ratios, low, high);
    } else {
      find_ratios(ratios, low, high);
    }
    const std::uint64_t q =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0));
    fp8::KeyBytes bytes = keys(row);
    fp8::Operands a[2];
    fp8::take_rope(a[1], rope, more_rope);
    scale_rope(a[1], low.inverse_pair(), high.inverse_pair());
    ptx::pin_registers(s_);
    ptx::wgmma_fence();
    fp8::multiply<__nv_bfloat16, kRows>(s_, a[1], q + fp8_584::kGroups * kTileStep, false);
    ptx::wgmma_commit();
    units_[0] = low.unit();
    units_[1] = high.unit();
    put_tokens_584(ratios);
#pragma unroll
    for (int i = 0; i < fp8_584::kGroups; ++i) {
      if (i >= 1) ptx::wgmma_wait<1>();
      widen_keys(a[i % 2], bytes, __byte_perm(ratios[i], 0, 0x1010), __byte_perm(ratios[i], 0, 0x3232));
      if (i + 1 < fp8_584::kGroups) bytes = keys(row + (i + 1) * 64);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(s_, a[i % 2], q + i * kTileStep, true);
      ptx::wgmma_commit();
    }
  }
  /// The largest of two numbers of 16 bits of a quad's lanes, by all threads, in the place of the block's
  /// ratios.
  __device__ __forceinline__ std::uint32_t largest_of_quad(std::uint32_t mine) const {
    auto* place = reinterpret_cast<std::uint32_t*>(shared_.tokens[slot_.slot()].ratio);
    place[thread()] = mine;
    ptx::named_sync(kScorerBarrier, 128);
    const uint4 all = *reinterpret_cast<const uint4*>(place + thread() / 4 * 4);
    ptx::named_sync(kScorerBarrier, 128);
    return __vmaxu2(__vmaxu2(all.x, all.y), __vmaxu2(all.z, all.w));
  }
  __device__ __forceinline__ static fp8::KeyBytes keys(std::uint32_t row) {
    return fp8::KeyBytes::at<Config::kTokenBytes>(row);
  }

  /// The same from e4m3 latents.
  __device__ __forceinline__ void score_e4m3() {
    const int slot = slot_.slot();
    ptx::wait(shared_.full[slot], slot_.parity());
    const std::uint32_t row = ptx::shared_address(shared_.blocks[slot]) + own_;
    const std::uint64_t q =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0));
    fp8::KeyBytes bytes = E4m3Block<Config>::keys(row);
    fp8::Operands a[2];
    ptx::pin_registers(s_);
#pragma unroll
    for (int i = 0; i < Config::kChunks; ++i) {
      if (i >= 2) ptx::wgmma_wait<1>();
      widen(a[i % 2], bytes);
      if (i + 1 < Config::kChunks) bytes = E4m3Block<Config>::keys(row + (i + 1) * sm90::atoms::kAtomBytes);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(s_, a[i % 2], q + i * kTileStep, i > 0);
      ptx::wgmma_commit();
    }
  }

  /// The latent's part of scores, if scales are no powers of two. fp16 would round a ratio, which an lse
  /// shows. So codes are multiplied as they are, and sums go from one group's ratio to the next one's in
  /// fp32.
  __device__ __forceinline__ void add_groups(fp8::Operands (&a)[2], std::uint32_t token, std::uint32_t row,
                                             std::uint64_t q) {
    float before[2] = {1, 1};  // RoPE's
    widen(a[0], fp8::KeyBytes::at(row));
#pragma unroll
    for (int group = 0; group < fp8_656::kGroups; ++group) {
      const float ratios[2] = {divisor_of(token, group, units_[0]),
                               divisor_of(token + 8 * fp8_656::kTokenBytes, group, units_[1])};
      rescale(__fdividef(before[0], ratios[0]), __fdividef(before[1], ratios[1]));
      before[0] = ratios[0];
      before[1] = ratios[1];
      add_product(a[0], q + 2 * group * kTileStep);
      widen(a[1], fp8::KeyBytes::at(row + (2 * group + 1) * 64));
      add_product(a[1], q + (2 * group + 1) * kTileStep);
      if (group + 1 == fp8_656::kGroups) break;
      ptx::wgmma_wait<1>();
      widen(a[0], fp8::KeyBytes::at(row + (2 * group + 2) * 64));
    }
    rescale(before[0], before[1]);
  }
  /// Sums so far, of both tokens, times factors.
  __device__ __forceinline__ void rescale(float low, float high) {
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) s_[i] *= i % 4 < 2 ? low : high;
    ptx::pin_registers(s_);  // before the next fence
  }
  /// A group's ratio. One that is 0, or below what other groups' sums show, is taken as 2^-30.
  __device__ __forceinline__ static float divisor_of(std::uint32_t token, int group, std::uint32_t unit) {
    const float ratio = ratio_of(token, group, unit);
    return fabsf(ratio) < 0x1p-30F ? 0x1p-30F : ratio;
  }
  __device__ __forceinline__ static float ratio_of(std::uint32_t token, int group, std::uint32_t unit) {
    return in_units(ptx::load_float(token + fp8_656::kScaleOffset + group * 4), unit);
  }

  /// 64 columns: for product k a lane has columns 2 k and 2 k + 1 of its 16, and the two columns eight
  /// further.
  __device__ __forceinline__ static void widen(fp8::Operands& a, const fp8::KeyBytes& bytes) {
    const std::uint32_t low[4] = {bytes.low.x, bytes.low.y, bytes.low.z, bytes.low.w};
    const std::uint32_t high[4] = {bytes.high.x, bytes.high.y, bytes.high.z, bytes.high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const ptx::HalfPairs first = ptx::widen_e4m3(low[i]), second = ptx::widen_e4m3(high[i]);
      const int k = i % 2 * 2, of_k = i / 2 * 2;
      a[k][of_k] = first.low;
      a[k][of_k + 1] = second.low;
      a[k + 1][of_k] = first.high;
      a[k + 1][of_k + 1] = second.high;
    }
  }
  __device__ __forceinline__ static void scale_rope(fp8::Operands& a, std::uint32_t low, std::uint32_t high) {
#pragma unroll
    for (auto& k : a) {
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] = sm90::times_bf16(k[i], i % 2 == 0 ? low : high);
    }
  }
  __device__ __forceinline__ static void widen_keys(fp8::Operands& a, const fp8::KeyBytes& bytes,
                                                    std::uint32_t low, std::uint32_t high) {
    widen(a, bytes);
#pragma unroll
    for (auto& k : a) {
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] = sm90::times(k[i], i % 2 == 0 ? low : high);
    }
  }

  /// Computes exponents of P for the output warpgroups, from scores to base 2 and units. `limit`: how many
  /// tokens of this and later blocks the tile's first row attends to. `finds_rows`: see finds_rows_ahead().
  __device__ __forceinline__ void publish(const sm90::Work& work, int limit, bool finds_rows) {
    float low_scale = scale_, high_scale = scale_;
    float low_log = Config::kLargestP, high_log = Config::kLargestP;
    if constexpr (!Config::kE4m3) {
      low_scale *= sm90::power_of_two(units_[0]);
      high_scale *= sm90::power_of_two(units_[1]);
      low_log += sm90::log2_of(units_[0]);
      high_log += sm90::log2_of(units_[1]);
    }
    bool masked = false;
    const std::uint64_t live = shared_.live[slot_.slot()];
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      s_[i] = i % 4 < 2 ? fmaf(s_[i], low_scale, low_log) : fmaf(s_[i], high_scale, high_log);
    }
    if (live != sm90::kAllLive || (!Config::kRowsAlike && sm90::partial_tokens(live, {limit}) != 0))
        [[unlikely]] {
      const int first = Config::kRowsAlike ? 0 : rows().seen_by_all(work).end - limit;
      sm90::Fragment own = fragment();
      asm volatile("" : "+r"(own.row));  // nothing of this is to be kept in registers meanwhile
      sm90::mask_columns<kRows>(s_, live, own, [&](int n) {
        return Config::kRowsAlike ? TokenPrefix{64} : rows().seen(work, n).from(first);
      });
      masked = true;
    }
    ptx::wait(shared_.softened, softened_ ^ 1);
    if (Config::kE4m3 && masked && thread() == 0) shared_.restarts[softened_] = 1;
    softened_ ^= 1;
    const int token = fragment().row;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const int place = Scores<Config>::place(token, j % 4 * 8 + fragment().column) + j / 4 * 32;
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // eight tokens on, rows lie as here
        *reinterpret_cast<float2*>(&shared_.scores.of_token[token + 8 * half][place]) =
            make_float2(s_[4 * j + 2 * half], s_[4 * j + 2 * half + 1]);
      }
    }
    if (Config::kLists && finds_rows && thread() < kRows) find_row(shared_, args_, work.tile, thread());
    ptx::arrive(shared_.scored);
    ptx::arrive(shared_.empty[slot_.slot()]);
  }

  /// Each lane of the quad has a group. `ratios`: of both tokens.
  __device__ __forceinline__ void put_tokens(const std::uint32_t (&ratios)[fp8_656::kGroups]) const {
    const int group = thread() % 4;
    const std::uint32_t first = group % 2 == 0 ? ratios[0] : ratios[1],
                        last = group % 2 == 0 ? ratios[2] : ratios[3];
    put_ratio(group, group < 2 ? first : last);
    put_shares(Config::kLargestP);
  }
  /// Each lane of the quad has a group, and the fourth after it.
  __device__ __forceinline__ void put_tokens_584(const Ratios584& ratios) const {
    const int group = thread() % 4;
    const std::uint32_t first = group % 2 == 0 ? ratios[0] : ratios[1],
                        last = group % 2 == 0 ? ratios[2] : ratios[3],
                        after = group % 2 == 0 ? ratios[4] : ratios[5];
    put_ratio(group, group < 2 ? first : last);
    put_ratio(group + 4, group < 2 ? after : ratios[6]);
    put_shares(0);
  }
  /// For both tokens.
  __device__ __forceinline__ void put_ratio(int group, std::uint32_t ratio) const {
    auto& to = shared_.tokens[slot_.slot()].ratio[group];
    const int token = fragment().row;
    to[ratio_place<Config>(token)] = static_cast<std::uint16_t>(ratio);
    to[ratio_place<Config>(token + 8)] = static_cast<std::uint16_t>(ratio >> 16);
  }
  /// By one lane of the quad: inverse units times 2^-powers.
  __device__ __forceinline__ void put_shares(int powers) const {
    if (thread() % 4 != 0) return;
    float(&to)[64] = shared_.tokens[slot_.slot()].share;
    const int token = fragment().row;
    to[token] = sm90::power_of_two(254 - powers - units_[0]);
    to[token + 8] = sm90::power_of_two(254 - powers - units_[1]);
  }

  static constexpr std::uint64_t kTileStep = Config::kTileBytes >> 4;

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  Query<SharedMemory<Config>> query_;
  std::uint32_t own_;  // where this thread's first token begins in a block, and its lane of the quad
  fp8::RingPlace<Config> slot_;  // of the next block
  std::uint32_t softened_ = 0;   // parity of the barrier of the next scores' reads
  float scale_ = 0;              // of scores, to base 2
  std::uint32_t units_[2] = {};  // exponents of the units of this thread's two tokens, of the present block
  float s_[kRows / 2];
};

}  // namespace flashlatent::fp8::rows64
