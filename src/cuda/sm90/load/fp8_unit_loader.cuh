// Loads tokens of an fp8_656 cache as fp16, in units of tokens (fp8_units.cuh), for clusters of two: CTAs
// that hold two tiles of query rows of the same tokens each convert half of a block and give it to the other
// ("crossover").
//
// A warp has eight tokens of a block and converts all of them, one half of the latent after the other. While
// one half is converted, the loads of the other half, or of the next block's first half, are under way.
// Meanwhile the next block is prefetched to L2.
//
//   a load    16 bytes a lane, of a group of 128 elements of four tokens. Eight lanes store at a time:
//             four have an even token, four the odd one after it, whose 16-byte units lie in the other
//             banks.
//   RoPE      by cp.async, then divided by the unit: a score is one sum in the token's unit.
//
// A pair of values takes two instructions; in bf16 it would take six. Everything else that a loading warp
// does takes as many instructions again, at some 6 clocks each (docs/log/fp8.md). So tokens are located for
// four blocks at once, and tiles are announced by halves.
#pragma once

#include "cuda/sm90/load/fp8_tokens.cuh"
#include "cuda/sm90/math/fp8_units.cuh"
#include "cuda/sm90/ptx/convert.cuh"

namespace flashlatent::sm90 {

/// times_fp32() with asm of its own: of the same asm nvcc would make one conversion for both branches of
/// Fp8UnitLoader::convert(), and other machine code.
__device__ __forceinline__ uint2 dequantize(std::uint32_t values, float scale) {
  std::uint32_t low, high;  // fp16 pairs
  asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\ncvt.rn.f16x2.e4m3x2 %1, second;\n}"
      : "=r"(low), "=r"(high)
      : "r"(values));
  auto scaled = [&](std::uint32_t pair) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    return pack<__nv_bfloat16>(two.x * scale, two.y * scale);
  };
  return make_uint2(scaled(low), scaled(high));
}

/// Used by four warps. One lane of each fences, then copies the warp's rows; all lanes arrive, or racecheck
/// would see no order between the units that they write and their readers. The pipe takes RoPE and the left
/// half of the latent, with the units, then the right half. RoPE's tile is freed alone. Units of dead tokens
/// are negative.
class Fp8UnitLoader {
 public:
  static constexpr bool kUnits = true;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  __device__ __forceinline__ static int threads(const CacheArguments&) { return kThreads; }
  static constexpr int kArrivals = kThreads;
  static constexpr bool kZeroesDead = true;
  static constexpr bool kReaderFences = false;
  // all lanes read units, and free them with RoPE's tile
  static constexpr bool kAllReadersArrive = true;
  static constexpr bool kPairs = false;
  static constexpr bool kSparesRegisters = true;
  static constexpr bool kOneLoop = true;
  static constexpr int kRows = kTileRows / 2 / kWarps;  // a warp's rows of a block

  /// What a warp needs once for some blocks.
  struct Kept {
    const std::int32_t *entries, *next_entries;  // of the range that is being located, and of the next range
    int length, next_length;
    int next_begin, next_end;  // equal: no range is announced whose entries have not been loaded
  };
  struct Memory {
    alignas(16) float4 scales[kWarps][kRows];  // of the block entered last
    Kept warps[kWarps];
  };

  __device__ __forceinline__ static void prepare(const CUtensorMap&) {}

  __device__ __forceinline__ Fp8UnitLoader(const CacheArguments& cache, const CUtensorMap&, int thread,
                                           Memory& memory)
      : cache_(cache),
        kept_(memory.warps[thread / 32]),
        scales_(ptx::shared_address(memory.scales[thread / 32])) {
    first_row_ = ptx::rank_in_cluster() * (kTileRows / 2) + thread / 32 * kRows;
  }

  __device__ __forceinline__ void look_ahead(const BlockRange& range) {
    keep(kept_.next_entries, range.entries);
    keep(kept_.next_length, range.length);
    keep(kept_.next_begin, range.begin);
    keep(kept_.next_end, range.end);
    __syncwarp();
    if (block_ == end_) look_up();
  }

  template <class Pipe, class Announce>
  __device__ __forceinline__ void load(Pipe& pipe, const BlockRange& range, Announce announce) {
    int left = range.end - range.begin;
    if (left > 0 && !under_way_) {
      locate();
      look_up();
      enter(0);
      request<0>(bytes_[0]);
    }
    announce();
    pipe.begin_range();
#pragma unroll 1
    for (; left > 0; --left) {
      load_first_half(pipe);
      load_second_half(pipe);
      pipe.next_block();
    }
  }

 private:
  static constexpr int kLocated = 32 / kRows;  // blocks located at once: one token for each lane
  static constexpr int kLoads = 4;             // of half the latent
  static_assert(kRows == 8);
  using Bytes = uint4[kLoads];
  // The tiles whose barriers stand for RoPE and for each half.
  static constexpr int kRope = 0, kLeft = 4, kRight = 8;

  __device__ __forceinline__ static unsigned lane() {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }

  /// to = from, by one lane.
  template <class T>
  __device__ __forceinline__ static void keep(T& to, const T& from) {
    if (lane() == 0) to = from;
  }

  // Both halves start their next loads as soon as their own bytes have arrived, and not before: ptxas gives
  // all these loads one scoreboard, so a wait for one is a wait for all. So the loads' addresses contain
  // these bytes' values, made 0 in a way that ptxas cannot see.

  template <class Pipe>
  __device__ __forceinline__ void load_first_half(Pipe& pipe) {
    const std::uint32_t zero = zero_of(bytes_[0]);
    for (std::uint64_t& row : rows_) row |= zero;
    request<1>(bytes_[1]);
    // Everything that needs no tile of the latent comes before the wait for one.
    request_rope(pipe);
    Ratios ratios;
    take_scales(pipe, ratios);
    if (is_last()) {
      locate();
      look_up();
    }
    prefetch_next();
    pipe.wait_empty(kLeft);
    convert<0>(pipe, bytes_[0], ratios);
    finish_rope(pipe);
    publish<kRope, kLeft>(pipe);
  }

  template <class Pipe>
  __device__ __forceinline__ void load_second_half(Pipe& pipe) {
    enter(zero_of(bytes_[1]));
    request<0>(bytes_[0]);
    pipe.wait_empty(kRight);
    convert<1>(pipe, bytes_[1], right_ratios_);
    publish<kLeft + 1, kRight>(pipe);
  }

  __device__ __forceinline__ std::uint32_t zero_of(const Bytes& bytes) const {
    return (bytes[0].x | bytes[1].x | bytes[2].x | bytes[3].x) & static_cast<std::uint32_t>(block_ >> 31) &
           last_;
  }

  /// Loads the entries of the blocks after those located last, if any are announced.
  __device__ __forceinline__ void look_up() {
    if (block_ == end_) {
      __syncwarp();
      block_ = kept_.next_begin;
      end_ = kept_.next_end;
      __syncwarp();
      keep(kept_.entries, kept_.next_entries);
      keep(kept_.length, kept_.next_length);
      keep(kept_.next_end, kept_.next_begin);
      __syncwarp();
    }
    if (block_ < end_) entry_ = entry_of(cache_, {kept_.entries, kept_.length, 0, 0, 0}, token_of_lane());
  }

  /// Locates the next blocks of one range, up to kLocated, if there are any.
  __device__ __forceinline__ void locate() {
    under_way_ = block_ < end_;
    located_ = reinterpret_cast<std::uint64_t>(kZeroRow);
    located_live_ = 0;
    located_blocks_ = min(end_ - block_, kLocated);
    if (!under_way_) return;
    bool counts = false;
    if (lane() / kRows < located_blocks_) {
      const TokenPlace place = place_of(cache_, entry_, token_of_lane());
      counts = place.page >= 0;
      if (counts) {
        located_ = reinterpret_cast<std::uint64_t>(static_cast<const std::uint8_t*>(cache_.data) +
                                                   offset_of(cache_, place, 0));
      }
    }
    located_live_ = __ballot_sync(0xffffffff, counts);
    block_ += located_blocks_;
  }
  __device__ __forceinline__ int token_of_lane() const {
    return (block_ + lane() / kRows) * kTileRows + first_row_ + lane() % kRows;
  }

  /// Enters the next block: from now on its bytes are loaded. `zero` is 0.
  __device__ __forceinline__ void enter(std::uint32_t zero) {
    if (is_last()) {
      tokens_ = located_;
      live_ = located_live_;
      blocks_ = located_blocks_;
      entered_ = 0;
    } else {
      ++entered_;
    }
    tokens_ |= zero;
    if (lane() / kRows == entered_) {
      ptx::copy_16_bytes(scales_ + lane() % kRows * sizeof(float4),
                         reinterpret_cast<const std::uint8_t*>(tokens_) + fp8_656::kScaleOffset);
    }
    ptx::copy_commit();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows_[i] = __shfl_sync(0xffffffff, tokens_, entered_ * kRows + i * 4 + row_of_lane());
    }
  }
  /// Is this the last of the blocks that were located together?
  __device__ __forceinline__ bool is_last() const {
    return entered_ >= blocks_ - 1;
  }

  /// Prefetches the block after the one entered last to L2, if it is known.
  __device__ __forceinline__ void prefetch_next() const {
    const std::uint64_t token = is_last() ? located_ : tokens_;
    const int next = is_last() ? 0 : entered_ + 1;
    if (lane() / kRows != next) return;
#pragma unroll
    for (int i = 0; i < fp8_656::kTokenBytes; i += 128) {
      ptx::prefetch_line_to_l2(reinterpret_cast<const std::uint8_t*>(token) + i);
    }
  }

  // A lane has two rows: row_of_lane() and the fourth after it. The i-th load of a half is of the lane's row
  // i % 2, and of the half's group i / 2.
  __device__ __forceinline__ static unsigned row_of_lane() {
    return lane() / 16 * 2 + lane() / 4 % 2;
  }

  template <int kHalf>
  __device__ __forceinline__ void request(Bytes& to) {
    const unsigned at = (lane() % 4 + lane() / 8 % 2 * 4) * 16;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      to[i] = ptx::load_16_bytes(reinterpret_cast<const std::uint8_t*>(rows_[i % 2]) + at +
                                 (kHalf * 2 + i / 2) * fp8_656::kGroup);
    }
  }

  /// Copies sixteen bytes for each lane and row.
  template <class Pipe>
  __device__ __forceinline__ void request_rope(Pipe& pipe) {
    pipe.wait_empty(kRope);
    const unsigned at = fp8_656::kRopeOffset + rope_unit() * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::copy_16_bytes(rope_place(pipe, i), reinterpret_cast<const std::uint8_t*>(rows_[i]) + at);
    }
    ptx::copy_commit();
  }
  /// Divides RoPE by the units, once it has arrived.
  template <class Pipe>
  __device__ __forceinline__ void finish_rope(Pipe& pipe) {
    ptx::copy_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t at = rope_place(pipe, i);
      const uint4 of = ptx::load_shared_16_bytes(at);
      ptx::store_16_bytes(at, make_uint4(times_bf16(of.x, shares_[i]), times_bf16(of.y, shares_[i]),
                                         times_bf16(of.z, shares_[i]), times_bf16(of.w, shares_[i])));
    }
  }
  __device__ __forceinline__ static unsigned rope_unit() {
    return lane() % 4 * 2 + lane() / 8 % 2;
  }
  template <class Pipe>
  __device__ __forceinline__ std::uint32_t rope_place(Pipe& pipe, int i) const {
    const std::uint32_t first = ptx::shared_address(&pipe.tile(kRope)) + first_row_ * kRowBytes +
                                unit_offset(row_of_lane(), rope_unit());
    return (first ^ i << 6) + i * 4 * kRowBytes;  // four rows on, units swap places with those four further
  }

  /// One for each load of a half.
  using Ratios = float[kLoads];
  /// Computes units and ratios of the block entered last; its scales were loaded before RoPE. The units'
  /// place is free when RoPE's tile is.
  template <class Pipe>
  __device__ __forceinline__ void take_scales(Pipe& pipe, Ratios& left) {
    ptx::copy_wait<1>();
    __syncwarp();
    bool exact = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned row = row_of_lane() + i * 4;
      const uint4 bits = ptx::load_shared_16_bytes(scales_ + row * sizeof(float4));
      const float scales[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                               __uint_as_float(bits.w)};
      const std::uint32_t exponent =
          unit_exponent(fmaxf(fmaxf(scales[0], scales[1]), fmaxf(scales[2], scales[3])));
      const std::uint32_t dead = ~live_ >> (entered_ * kRows + row) << 31;
      pipe.units()[first_row_ + row] = __uint_as_float(exponent << 23 | dead);  // by all lanes of a row
      shares_[i] = (254 - exponent) * 0x00800080U;                              // two bf16
      const float inverse = power_of_two(254 - exponent);
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        left[group * 2 + i] = scales[group] * inverse;
        right_ratios_[group * 2 + i] = scales[2 + group] * inverse;
      }
      exact = exact && ((bits.x | bits.y | bits.z | bits.w) & 0x7FFFFF) == 0;
    }
    exact_ = __all_sync(0xffffffff, exact);
  }

  /// Converts half of the latent into its tiles, which must be free.
  template <int kHalf, class Pipe>
  __device__ __forceinline__ void convert(Pipe& pipe, const Bytes& bytes, const Ratios& ratios) {
    const std::uint32_t tiles = ptx::shared_address(&pipe.tile(kHalf == 0 ? kRope + 1 : kLeft + 1)) +
                                lane() / 8 % 2 * sizeof(Tile) + first_row_ * kRowBytes +
                                unit_offset(row_of_lane(), lane() % 4 * 2);
    auto store = [&](int i, int unit, uint2 low, uint2 high) {
      // Four rows on, units swap places with those four further.
      ptx::store_16_bytes(
          (tiles ^ (i % 2 << 6 | unit << 4)) + i / 2 * 2 * sizeof(Tile) + i % 2 * 4 * kRowBytes,
          make_uint4(low.x, low.y, high.x, high.y));
    };
    auto store_all = [&](auto scaled) {  // scaled(): four values times a ratio
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        store(i, 0, scaled(bytes[i].x, ratios[i]), scaled(bytes[i].y, ratios[i]));
        const uint2 last = scaled(bytes[i].w, ratios[i]);
        store(i, 1, scaled(bytes[i].z, ratios[i]), last);
        last_ = last.y;
      }
    };
    if (exact_) [[likely]] {
      store_all([](std::uint32_t values, float ratio) {
        const ptx::HalfPairs pairs = ptx::widen_e4m3(values);
        const std::uint32_t two = pack<__half>(ratio, ratio);
        return make_uint2(times(pairs.low, two), times(pairs.high, two));
      });
    } else {
      // Rounded as bf16 code rounds; fp16 holds all 8 bits.
      store_all([](std::uint32_t values, float ratio) {
        const uint2 rounded = dequantize(values, ratio);
        const float2 low = unpack<__nv_bfloat16>(rounded.x), high = unpack<__nv_bfloat16>(rounded.y);
        return make_uint2(pack<__half>(low.x, low.y), pack<__half>(high.x, high.y));
      });
    }
  }

  /// Announces this warp's rows of these tiles, and with the left half its tokens' units.
  template <int kFirst, int kLast, class Pipe>
  __device__ __forceinline__ void publish(Pipe& pipe) {
    ptx::Barrier& full = pipe.full(kLast);
    __syncwarp();
    if (!ptx::elect_one()) {
      ptx::arrive(full);
      return;
    }
    ptx::fence_for_async_proxy();
    // The bytes from the same warp of the other CTA.
    constexpr std::uint32_t kBytes = kRows * kRowBytes, kUnitBytes = kRows * sizeof(float);
    constexpr bool kWithUnits = kLast == kLeft;
    ptx::arrive_expecting(full, (kLast - kFirst + 1) * kBytes + (kWithUnits ? kUnitBytes : 0));
    const std::uint32_t other = ptx::rank_in_cluster() ^ 1;
#pragma unroll
    for (int i = kFirst; i <= kLast; ++i) {
      ptx::copy_to_cta(other, pipe.tile(i).bytes + first_row_ * kRowBytes, kBytes, full);
    }
    if constexpr (kWithUnits) ptx::copy_to_cta(other, pipe.units() + first_row_, kUnitBytes, full);
  }

  const CacheArguments& cache_;
  Kept& kept_;
  std::uint32_t scales_;  // where scales arrive in shared memory
  int first_row_;         // this warp's first row in the block

  int block_ = 0, end_ = 0;    // blocks of the range of kept_.entries that are not located yet
  bool under_way_ = false;     // are there located blocks that are not converted yet?
  int entry_ = 0;              // of this lane's token in the blocks after them
  std::uint64_t located_ = 0;  // this lane's token in the blocks located last
  std::uint32_t located_live_ = 0;
  int located_blocks_ = 0;
  std::uint64_t tokens_ = 0;  // the same for the blocks among which is the block entered last
  std::uint32_t live_ = 0;    // which of these tokens count
  int blocks_ = 0, entered_ = 0;

  Bytes bytes_[2];              // of either half
  std::uint32_t last_ = 0;      // converted
  std::uint64_t rows_[2] = {};  // this lane's rows of the block entered last
  // What belongs to the block that is being converted:
  std::uint32_t shares_[2] = {};  // factors of each row's RoPE
  Ratios right_ratios_ = {};
  bool exact_ = true;  // are all of the warp's ratios powers of two?
};

}  // namespace flashlatent::sm90
