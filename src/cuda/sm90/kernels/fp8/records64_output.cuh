// An output warpgroup of the 64-row kernel for records: P from exponents, O += P V, half of the output's
// columns, and results. A row is a quad's, and both warpgroups compute its P alike, so that nobody waits for
// another's.
//
// Of 128 columns a lane has 32 adjacent ones, 16 in each of two chunks (record_keys.cuh).
#pragma once

#include "cuda/sm90/kernels/fp8/output_part.cuh"
#include "cuda/sm90/kernels/fp8/records64_smem.cuh"
#include "cuda/sm90/kernels/fp8/records_query.cuh"
#include "cuda/sm90/merge/cast_columns.cuh"
#include "cuda/sm90/merge/epilogue.cuh"

namespace flashlatent::fp8::records64 {

template <class Config>
class Output {
  static constexpr int kRows = Config::kRows;

 public:
  __device__ __forceinline__ Output(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args), me_(threadIdx.x / 128) {}

  /// Computes what takes many instructions, once a row and segment.
  __device__ __forceinline__ void prepare(const sm90::RowTile& tile) {
    const int n = threadIdx.x;
    if (n < kRows) records::find_row(shared_, args_, tile, n);
    if constexpr (Config::kEdges) {
      if (n == 0) {
        shared_.edges.request = tile.request;
        shared_.edges.token = tile.first_token;
      }
    }
  }
  /// Q of that tile. The scorer has done with the previous one: its last exponents have come since.
  __device__ __forceinline__ void begin(bool has_blocks) {
    meet();
    if (has_blocks) take_query();
    ptx::arrive(shared_.query_ready);
    if constexpr (Config::kEdges) find_angles();  // while the first block is scored
  }

  /// All blocks of one segment that has begun.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    work_ = &work;
#pragma unroll
    for (float& x : o_) x = 0;
    sum_ = {0, 0};
    base_ = {-INFINITY, -INFINITY};
    finite_base_ = {kNoBase, kNoBase};
    const int blocks = work.blocks();
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      ptx::wait(shared_.scored, scored_parity_);
      scored_parity_ ^= 1;
      std::uint32_t p[4][4];
      sm90::RowPair sum;
#pragma unroll 1
      while (__any_sync(0xffffffff, take_exponentials(p, sum))) rebase();
      ptx::arrive(shared_.read);
      sum_.low += sum.low;
      sum_.high += sum.high;
      multiply(p);
    }
  }

  /// Writes the segment's result.
  __device__ __forceinline__ void finish() {
    const sm90::Work& work = *work_;
    const sm90::RowPair sum = {sm90::quad_sum(sum_.low), sm90::quad_sum(sum_.high)};
    const sm90::RowPlace<__nv_bfloat16> low = shared_.row_place[row()], high = shared_.row_place[row() + 8];
    const std::int64_t first_row = sm90::first_partial_row<kRows>(args_, work);
    meet();  // the next segment's rows take their place
    write<false>(work, first_row, low, base_.low, sum.low);
    write<true>(work, first_row, high, base_.high, sum.high);
  }

 private:
  static constexpr int kOutputsBarrier = 1;
  // Columns of a product: of 256 ptxas says that 128 registers, the launch's, are too few.
  static constexpr int kPiece = 128;

  __device__ __forceinline__ static void meet() {
    ptx::named_sync(kOutputsBarrier, Config::kComputeThreads);
  }
  /// Made anew at each use: registers are short.
  __device__ __forceinline__ static int thread() {
    int thread = threadIdx.x % 128;
    asm volatile("" : "+r"(thread));
    return thread;
  }
  /// The first of this thread's two rows.
  __device__ __forceinline__ static int row() {
    return sm90::fragment_of(thread()).row;
  }

  /// By which the item's output is turned, when it is written.
  __device__ __forceinline__ void find_angles() const {
    const edges::Rotary& rotary = args_.edges.output;
    if (threadIdx.x >= sm90::kRotatedPairs || rotary.positions == nullptr) return;
    shared_.edges.output[threadIdx.x] =
        rotary.angle(rotary.position(shared_.edges.request, shared_.edges.token), threadIdx.x);
  }

  __device__ __forceinline__ void take_query() {
    records::QueryShare<SharedMemory<Config>> share(shared_);
    if constexpr (Config::kEdges) {
      const edges::Rotary& rotary = args_.edges.query;
      if (rotary.positions != nullptr) {
        typename decltype(share)::Angles angles;
        share.find_angles(angles, rotary, rotary.position(shared_.edges.request, shared_.edges.token));
        share.turn(angles);
      }
    }
    const int warp_max = share.warp_max();
    // An empty item may come first: a second phase could be over before loaders wait.
    if (!has_taken_query_) ptx::arrive(shared_.has_query);
    has_taken_query_ = true;
    if (thread() % 32 == 0) shared_.query_max[threadIdx.x / 32] = warp_max;
    meet();
    share.store(shared_, __int_as_float((127 + sm90::query_exponent(shared_.query_max)) << 23));
  }

  /// Calls take(k, half, low, high, shares) for pairs of tokens, 16 k + 8 half + thread % 4 * 2 + {0, 1}.
  template <class Take>
  __device__ __forceinline__ void for_each_pair(Take take) const {
    const Exponents& from = shared_.exponents;
    const int first = thread() % 4 * 2, flip = Exponents::flip(row() % 8);
    const float *low = from.of_row[row()], *high = from.of_row[row() + 8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (k % 2 * 16 + half * 8 ^ flip) + first + k / 2 * 32;
        take(k, half, *reinterpret_cast<const float2*>(low + at), *reinterpret_cast<const float2*>(high + at),
             *reinterpret_cast<const float2*>(from.share + 16 * k + 8 * half + first));
      }
    }
  }

  /// P as A operand, relative to the bases so far, times the tokens' units; sums leave units out. Is any P
  /// too large?
  __device__ __forceinline__ bool take_exponentials(std::uint32_t (&p)[4][4], sm90::RowPair& sum) const {
    float largest = 0;
    sum = {0, 0};
    for_each_pair([&](int k, int half, float2 low, float2 high, float2 share) {
      low = make_float2(sm90::exp2_fast(low.x - finite_base_.low), sm90::exp2_fast(low.y - finite_base_.low));
      high = make_float2(sm90::exp2_fast(high.x - finite_base_.high),
                         sm90::exp2_fast(high.y - finite_base_.high));
      sum.low = fmaf(low.x, share.x, fmaf(low.y, share.y, sum.low));
      sum.high = fmaf(high.x, share.x, fmaf(high.y, share.y, sum.high));
      largest = fmaxf(largest, fmaxf(fmaxf(low.x, low.y), fmaxf(high.x, high.y)));
      p[k][2 * half] = sm90::pack<__half>(low.x, low.y);
      p[k][2 * half + 1] = sm90::pack<__half>(high.x, high.y);
      // Else the compiler packs, and sums up, behind the vote, and has no registers for 32 probabilities.
      asm volatile("" : "+r"(p[k][2 * half]), "+r"(p[k][2 * half + 1]), "+f"(sum.low), "+f"(sum.high));
    });
    return is_too_large(largest);
  }
  __device__ __forceinline__ static bool is_too_large(float p) {
    return p > 1 << (Config::kLargestP + Config::kSlack);
  }

  /// Raises bases. Whether a row's moves is decided by the row alone.
  __device__ __forceinline__ void rebase() {
    sm90::RowPair max{-INFINITY, -INFINITY};
    const Exponents& from = shared_.exponents;
#pragma unroll 1
    for (int token = thread() % 4; token < 64; token += 4) {  // in any order
      max.low = fmaxf(max.low, from.of_row[row()][token]);
      max.high = fmaxf(max.high, from.of_row[row() + 8][token]);
    }
    const float low = settle(sm90::quad_max(max.low), base_.low, finite_base_.low);
    const float high = settle(sm90::quad_max(max.high), base_.high, finite_base_.high);
    sum_.low *= low;
    sum_.high *= high;
#pragma unroll
    for (int i = 0; i < Config::kPartDim / 2; ++i) o_[i] *= i % 4 < 2 ? low : high;
  }
  /// Returns the factor of the row's sums so far.
  __device__ __forceinline__ static float settle(float max, float& base, float& finite) {
    const float before = base;
    if (is_too_large(sm90::exp2_fast(max - finite))) base = max;
    // Rounded up as in math/unit_scores.cuh.
    finite = base == -INFINITY ? kNoBase : __fsub_ru(base, Config::kLargestP);
    return before == -INFINITY ? 1.0F : sm90::exp2_fast(before - base);
  }

  /// o += P V, this warpgroup's half of the next block's values.
  __device__ __forceinline__ void multiply(const std::uint32_t (&p)[4][4]) {
    const int place = (half_ + (me_ ^ 1)) % Config::kHalves;  // the last half comes first
    half_ += 2;
    const std::uint64_t v = ptx::descriptor_n_major(
        __shfl_sync(0xffffffff, ptx::shared_address(&shared_.values[place]), 0), sizeof(sm90::Tile));
    ptx::pin_registers(o_);
    ptx::wgmma_fence();
#pragma unroll
    for (int piece = 0; piece < Config::kPartDim / kPiece; ++piece) {
      auto& part = reinterpret_cast<float(&)[kPiece / 2]>(o_[piece * kPiece / 2]);
      constexpr std::uint64_t kPieceStep = kPiece / 64 * sizeof(sm90::Tile) >> 4;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<__half, kPiece>::template rs<true>(
            part, p[step], v + piece * kPieceStep + step * ptx::kStepAlongRows, true);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o_);
    ptx::arrive(shared_.free[place]);
  }

  /// Two adjacent columns of a row: the i-th pair of chunk `chunk`.
  template <bool kHigh>
  __device__ __forceinline__ float2 pair(int chunk, int i) const {
    const float* of_chunk = o_ + chunk * 32 + i / 2 * 8 + kHigh * 2 + i % 2;
    return make_float2(of_chunk[0], of_chunk[4]);
  }

  /// One row, `to`; kHigh: the second one.
  template <bool kHigh>
  __device__ __forceinline__ void write(const sm90::Work& work, std::int64_t first_row,
                                        const sm90::RowPlace<__nv_bfloat16>& to, float base, float sum) {
    const sm90::RowScale scale = sm90::finish_row(base, sum / (1 << Config::kLargestP));
    const float factor = scale.factor / (1 << Config::kLargestP);
    const int n = row() + 8 * kHigh, lane = thread() % 4;
    const bool live = n < work.tile.rows;
    const bool writes_lse = me_ == 0 && lane == 0;
    if (work.segment.partial >= 0) {
      if (live && writes_lse) args_.partial.lse[first_row + n] = scale.lse;
      write_partial<kHigh>(first_row + n, live, factor);
      return;
    }
    if constexpr (Config::kEdges) turn_back<kHigh>();
    if (live) {
      if (writes_lse) *to.lse = sm90::final_lse(args_.output.empty_lse, scale.lse);
      if (!Config::kEdges || args_.output.out != nullptr) {
        write_output<kHigh>(to.out + me_ * Config::kPartDim + lane * 32,
                            sm90::output_factor(args_.output, {factor, scale.lse}, to.head, true));
      }
    }
    if constexpr (Config::kEdges) {  // last, since it may change sums
      if (args_.edges.codes == nullptr) return;
      cast<kHigh>(work.tile, n, live,
                  live ? sm90::output_factor(args_.output, {factor, scale.lse}, to.head, true) : 0);
    }
  }
  /// Turns the last columns of a row.
  template <bool kHigh>
  __device__ __forceinline__ void turn_back() {
    constexpr int kLanes = 2, kPairs = 8;  // that have these columns; of a chunk
    const int lane = thread() % 4 - (4 - kLanes);
    if (args_.edges.output.positions == nullptr || me_ == 0 || lane < 0) return;
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const int chunk = Config::kPartChunks - 2 + i / kPairs;
      float* x = o_ + chunk * 32 + i % kPairs / 2 * 8 + kHigh * 2 + i % 2;
      const float2 pair = sm90::turned(x[0], x[4], shared_.edges.output[lane * 2 * kPairs + i]);
      x[0] = pair.x;
      x[4] = pair.y;
    }
  }
  /// The largest magnitude that a lane has of 128 columns of a row. NaN is left out.
  template <bool kHigh>
  __device__ __forceinline__ float largest_of(int part) const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 two = pair<kHigh>(2 * part + i / 8, i % 8);
      largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
    }
    return largest;
  }
  /// Casts row n to e4m3, by all lanes of its quad: 128 columns have a scale, of which a lane has 32.
  template <bool kHigh>
  __device__ __forceinline__ void cast(const sm90::RowTile& tile, int n, bool live, float factor) {
    const sm90::EdgeArguments& to = args_.edges;
    const int lane = thread() % 4;
#pragma unroll
    for (int part = 0; part < Config::kPartDim / edges::kScaleColumns; ++part) {
      float largest = sm90::quad_max(largest_of<kHigh>(part));
      if (__any_sync(0xffffffff, largest == INFINITY)) [[unlikely]] {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          float& x = o_[2 * part * 32 + i / 2 * 4 + kHigh * 2 + i % 2];
          x = sm90::finite_or_nan(x);
        }
        largest = sm90::quad_max(largest_of<kHigh>(part));
      }
      // Of a row whose factor is NaN no value is finite.
      const float amax = fmaxf(edges::product(largest, factor), 0.0F);
      const int exponent = edges::output_exponent(amax);
      const float of_codes = factor * e4m3::power_of_two(-exponent);
      if (!live) continue;
      const sm90::CodePlace place = sm90::CodePlace::find<Config::kVDim>(to, tile.head(args_.query, n));
      const int column = place.column + me_ * Config::kPartDim + part * edges::kScaleColumns;
      const std::int64_t token = sm90::query_token(args_, tile);
      if (lane == 0) {
        const std::int64_t line = std::int64_t{place.group} * to.scale_lines + column / edges::kScaleColumns;
        sm90::put_scale(to, to.scales + line * to.padded_tokens, token, exponent);
      }
      auto* codes = reinterpret_cast<uint4*>(to.codes + token * to.code_token_stride +
                                             place.group * to.code_group_stride + column + lane * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 first = pair<kHigh>(2 * part + half, 2 * i),
                       second = pair<kHigh>(2 * part + half, 2 * i + 1);
          words[i] = sm90::code_pair(first.x * of_codes, first.y * of_codes) |
                     sm90::code_pair(second.x * of_codes, second.y * of_codes) << 16;
        }
        codes[half] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
  template <bool kHigh>
  __device__ __forceinline__ void write_output(__nv_bfloat16* out, float factor) const {
    const bool aligned = sm90::is_aligned(out);
#pragma unroll
    for (int chunk = 0; chunk < Config::kPartChunks; ++chunk) {
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 two = pair<kHigh>(chunk, eight * 4 + i);
          words[i] = sm90::pack<__nv_bfloat16>(two.x * factor, two.y * factor);
        }
        auto* at = reinterpret_cast<std::uint32_t*>(out + chunk / 2 * 128 + chunk % 2 * 16 + eight * 8);
        if (aligned) {
          *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) at[i] = words[i];
        }
      }
    }
  }
  /// As merge/partial.cuh has it: 32 columns of a row are packets of the four lanes that have them elsewhere.
  template <bool kHigh>
  __device__ __forceinline__ void write_partial(std::int64_t row, bool live, float factor) const {
    const sm90::Fp16Scale fp16(sm90::quad_bound(o_, kHigh));
    if (!live) return;
    const int lane = thread() % 4;
    if (lane == 0) sm90::partial_unit(args_.partial, row, me_) = factor * fp16.unit;
    uint4* to = sm90::packets_of(args_.partial, row, Config::kVDim, me_) + lane * 4;
#pragma unroll
    for (int a = 0; a < Config::kPartChunks / 2; ++a) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        std::uint32_t words[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {  // columns 8 m + 2 t + {0, 1} of 32
          const float2 two = pair<kHigh>(2 * a + m / 2, m % 2 * 4 + t);
          words[m] = sm90::pack<__half>(two.x * fp16.scale, two.y * fp16.scale);
        }
        to[a * 16 + t] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const int me_;
  const sm90::Work* work_ = nullptr;
  std::uint32_t half_ = 0;  // halves of values so far
  std::uint32_t scored_parity_ = 0;
  bool has_taken_query_ = false;  // the call's first
  sm90::RowPair base_, finite_base_, sum_;
  float o_[Config::kPartDim / 2];
};

}  // namespace flashlatent::fp8::records64
