// An output warpgroup of the 64-row kernel for records: O += P V, half of the output's columns, both operands
// from shared memory, and results.
//
// Of 128 columns a lane has 32 adjacent ones, 16 in each of two chunks (record_keys.cuh).
#pragma once

#include "cuda/sm90/kernels/fp8/records64_smem.cuh"
#include "cuda/sm90/merge/cast_columns.cuh"
#include "cuda/sm90/merge/column_output.cuh"
#include "cuda/sm90/merge/epilogue.cuh"

namespace flashlatent::fp8::records64 {

template <class Config>
class Output {
  static constexpr int kRows = Config::kRows;

 public:
  __device__ __forceinline__ Output(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args), me_(threadIdx.x / 128) {}

  /// One item.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    const int blocks = work.blocks();
#pragma unroll
    for (float& x : o_) x = 0;
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) multiply(i + 1 == blocks);
    finish(work);
  }

 private:
  // Columns of a product: of 256 ptxas says that 128 registers, the launch's, are too few.
  static constexpr int kPiece = 128;

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

  /// o += P V, this warpgroup's half of the next block's values. The first half of the columns waits until
  /// the next block, if there is one, has been scored, so that products spread; the last half makes room for
  /// that block's values.
  __device__ __forceinline__ void multiply(bool is_last) {
    static_assert(Config::kSlices == Config::kOutputs);
    const int of_p = block_ % Config::kPlaces;
    const int slice =
        (block_ * Config::kSlices + (me_ ^ 1)) % Config::kSlicePlaces;  // the last one comes first
    const std::uint64_t p =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.p[of_p]), 0));
    const std::uint64_t v = ptx::descriptor_n_major(
        __shfl_sync(0xffffffff, ptx::shared_address(&shared_.values[slice]), 0), sizeof(sm90::Tile));
    ptx::wait(shared_.has_p[of_p], block_ / Config::kPlaces & 1);
    ++block_;
    if (me_ == 0 && !is_last) ptx::wait(shared_.calm, block_ & 1);
    if (shared_.shrinks[of_p] != 0) [[unlikely]]
      shrink(shared_.factor[of_p]);
    ptx::pin_registers(o_);
    ptx::wgmma_fence();
#pragma unroll
    for (int piece = 0; piece < Config::kPartDim / kPiece; ++piece) {
      auto& part = reinterpret_cast<float(&)[kPiece / 2]>(o_[piece * kPiece / 2]);
      constexpr std::uint64_t kPieceStep = kPiece / 64 * sizeof(sm90::Tile) >> 4;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<__half, kPiece>::template ss<true>(
            part, p + step * ptx::kStepAlongRow, v + piece * kPieceStep + step * ptx::kStepAlongRows, true);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o_);
    ptx::arrive(shared_.free[slice]);
  }
  __device__ __forceinline__ void shrink(const float (&factor)[kRows]) {
    const float low = factor[row()], high = factor[row() + 8];
#pragma unroll
    for (int i = 0; i < Config::kPartDim / 2; ++i) o_[i] *= i % 4 < 2 ? low : high;
  }

  /// Writes the item's result.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    ptx::wait(shared_.finished, finished_parity_);
    finished_parity_ ^= 1;
    const Row low = shared_.rows[row()], high = shared_.rows[row() + 8];
    ptx::arrive(shared_.rows_read);
    const std::int64_t first_row = sm90::first_partial_row<kRows>(args_, work);
    write<false>(work, first_row, low);
    write<true>(work, first_row, high);
    if constexpr (Config::kEdges) turned_ += work.blocks() > 0;
  }

  /// Two adjacent columns of a row: the i-th pair of chunk `chunk`.
  template <bool kHigh>
  __device__ __forceinline__ float2 pair(int chunk, int i) const {
    const float* of_chunk = o_ + chunk * 32 + i / 2 * 8 + kHigh * 2 + i % 2;
    return make_float2(of_chunk[0], of_chunk[4]);
  }

  /// One row; kHigh: the second one.
  template <bool kHigh>
  __device__ __forceinline__ void write(const sm90::Work& work, std::int64_t first_row, const Row& finished) {
    const int n = row() + 8 * kHigh;
    const bool live = n < work.tile.rows;
    if (work.segment.partial >= 0) {
      write_partial<kHigh>(first_row + n, live, finished.factor);
      return;
    }
    if constexpr (Config::kEdges) {
      if (work.blocks() > 0) turn_back<kHigh>();
      if (args_.edges.codes != nullptr) cast<kHigh>(work.tile, n, live, live ? finished.factor : 0);
      if (args_.output.out == nullptr) return;
    }
    write_output<kHigh>(live ? finished.out + me_ * Config::kPartDim : nullptr, finished.factor);
  }
  /// Turns the last columns of a row.
  template <bool kHigh>
  __device__ __forceinline__ void turn_back() {
    constexpr int kLanes = 2, kPairs = 8;  // that have these columns; of a chunk
    const int lane = thread() % 4 - (4 - kLanes);
    const sm90::Angles& angles = shared_.edges.output[turned_ % LayerEdges::kItems];
    if (args_.edges.output.positions == nullptr || me_ == 0 || lane < 0) return;
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const int chunk = Config::kPartChunks - 2 + i / kPairs;
      float* x = o_ + chunk * 32 + i % kPairs / 2 * 8 + kHigh * 2 + i % 2;
      const float2 pair = sm90::turned(x[0], x[4], angles[lane * 2 * kPairs + i]);
      x[0] = pair.x;
      x[4] = pair.y;
    }
  }
  /// Casts row n to e4m3, by all lanes of its quad: 128 columns have a scale, of which a lane has 32.
  template <bool kHigh>
  __device__ __forceinline__ void cast(const sm90::RowTile& tile, int n, bool live, float factor) const {
    const sm90::EdgeArguments& to = args_.edges;
    const int lane = thread() % 4;
#pragma unroll
    for (int part = 0; part < Config::kPartDim / edges::kScaleColumns; ++part) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float2 two = pair<kHigh>(2 * part + i / 8, i % 8);
        largest = fmaxf(largest, fmaxf(fabsf(sm90::finite_or_nan(two.x)), fabsf(sm90::finite_or_nan(two.y))));
      }
      // Of a row whose factor is NaN no value is finite.
      const float amax = fmaxf(edges::product(sm90::quad_max(largest), factor), 0.0F);
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
          words[i] = sm90::codes_of(first.x, first.y, of_codes) | sm90::codes_of(second.x, second.y, of_codes)
                                                                      << 16;
        }
        codes[half] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
  /// `out`: the row's first column of this warpgroup's; null: there is no such row. Lanes of a quad exchange
  /// 16 bytes each, so that they store whole sectors: with half sectors, of 32 places a store, an output took
  /// 12,000 clocks.
  template <bool kHigh>
  __device__ __forceinline__ void write_output(__nv_bfloat16* out, float factor) const {
    const bool aligned = sm90::is_aligned(out);
#pragma unroll
    for (int chunk = 0; chunk < Config::kPartChunks; chunk += 2) {
      std::uint32_t words[4][4];  // of eight columns each
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t of_eight[4];
#pragma unroll
        for (int eight = 0; eight < 4; ++eight) {
          const float2 two = pair<kHigh>(chunk + eight / 2, eight % 2 * 4 + i);
          of_eight[eight] = sm90::pack<__nv_bfloat16>(two.x * factor, two.y * factor);
        }
        sm90::transpose_words(of_eight);
#pragma unroll
        for (int lane = 0; lane < 4; ++lane) words[lane][i] = of_eight[lane];
      }
      if (out == nullptr) continue;
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        auto* at = reinterpret_cast<std::uint32_t*>(out + chunk * 64 + lane * 32 + thread() % 4 * 8);
        if (aligned) {
          *reinterpret_cast<uint4*>(at) =
              make_uint4(words[lane][0], words[lane][1], words[lane][2], words[lane][3]);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) at[i] = words[lane][i];
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
  std::uint32_t block_ = 0;  // blocks so far
  std::uint32_t finished_parity_ = 0;
  std::uint32_t turned_ = 0;  // with edges: items with blocks whose output has been turned
  float o_[Config::kPartDim / 2];
};

}  // namespace flashlatent::fp8::records64
