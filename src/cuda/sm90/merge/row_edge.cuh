// The edge of the layer at the output, where two warps have 128 columns of eight rows, 64 each. A quad of
// lanes has a row, in two packets of 32 columns: a lane has columns 8 k + 2 lane + {0, 1} of each
// (packed_row.cuh).
#pragma once

#include "cuda/sm90/merge/cast_columns.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/walk/rotated_pairs.cuh"

namespace flashlatent::sm90 {

class RowEdge {
  static constexpr int kVDim = 512, kColumns = 64, kAngles = kRotatedPairs / 4;
  static_assert(kRotatedColumns == kColumns);
  using Columns = float[2][8];

 public:
  /// In shared memory: the largest magnitude of a row's 64 columns, for the other warp.
  using Largest = float[8];

  /// A row's columns from `column` on, a multiple of 64. Loads the angles that this lane needs, of
  /// `position`.
  __device__ __forceinline__ static RowEdge find(const DecodeArguments& args, const RowTile& tile, int head,
                                                 int column, std::int64_t position) {
    RowEdge edge;
    const EdgeArguments& to = args.edges;
    edge.turns_ = to.output.positions != nullptr && column + kColumns == kVDim;
    if (edge.turns_) {
#pragma unroll
      for (int i = 0; i < kAngles; ++i) {
        edge.angles_[i] = to.output.angle(position, 4 * i + static_cast<int>(threadIdx.x % 4));
      }
    }
    if (to.codes == nullptr) return edge;
    const CodePlace place = CodePlace::find<kVDim>(to, head);
    const int first = place.column + column;
    edge.token_ = query_token(args, tile);
    edge.codes_ = to.codes + edge.token_ * to.code_token_stride + place.group * to.code_group_stride + first;
    edge.line_ =
        first % edges::kScaleColumns != 0
            ? nullptr
            : to.scales + (std::int64_t{place.group} * to.scale_lines + first / edges::kScaleColumns) *
                              to.padded_tokens;
    return edge;
  }

  /// Turns RoPE's columns, if these are they.
  __device__ __forceinline__ void turn(Columns& x) const {
    if (!turns_) return;
#pragma unroll
    for (int i = 0; i < kAngles; ++i) {
      float* pair = &x[i / 4][i % 4 * 2];
      const float2 to = turned(pair[0], pair[1], angles_[i]);
      pair[0] = to.x;
      pair[1] = to.y;
    }
  }

  /// Casts them, by both warps, which meet at this named barrier. `mine`, `theirs`: what each has in shared
  /// memory.
  __device__ __forceinline__ void write(const Columns& x, const EdgeArguments& to, bool live, Largest& mine,
                                        const Largest& theirs, int barrier) const {
    float largest = 0;
#pragma unroll
    for (const auto& packet : x) {
#pragma unroll
      for (const float value : packet) largest = fmaxf(largest, fabsf(finite_or_nan(value)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
    const int lane = static_cast<int>(threadIdx.x % 4), row = static_cast<int>(threadIdx.x % 32 / 4);
    if (lane == 0) mine[row] = largest;
    ptx::named_sync(barrier, 64);
    const int exponent = edges::output_exponent(fmaxf(largest, theirs[row]));
    ptx::named_sync(barrier, 64);  // the next columns may take these places
    const float inverse = e4m3::power_of_two(-exponent);
    std::uint32_t words[4];  // of both packets
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      words[k] = codes_of(x[0][2 * k], x[0][2 * k + 1], inverse) |
                 codes_of(x[1][2 * k], x[1][2 * k + 1], inverse) << 16;
    }
    transpose_words(words);
    if (!live) return;
    auto* at = reinterpret_cast<uint2*>(codes_ + 8 * lane);
    at[0] = make_uint2(__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410));
    at[4] = make_uint2(__byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
    if (lane == 0 && line_ != nullptr) put_scale(to, line_, token_, exponent);
  }

 private:
  bool turns_ = false;
  edges::Angle angles_[kAngles];
  std::int64_t token_;
  std::uint8_t* codes_;
  float* line_;  // of scales; null: the other warp writes the scale
};

}  // namespace flashlatent::sm90
