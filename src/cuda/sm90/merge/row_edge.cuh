// The edge of the layer at the output, where a quad of lanes has 128 columns of a row, in four packets of 32:
// a lane has columns 8 k + 2 lane + {0, 1} of each (packed_row.cuh).
#pragma once

#include "cuda/sm90/merge/cast_columns.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/walk/rotated_pairs.cuh"

namespace flashlatent::sm90 {

class RowEdge {
  static constexpr int kVDim = 512, kPackets = edges::kScaleColumns / 32;
  static constexpr int kTurned = kRotatedColumns / 32;  // packets, the last ones
  using Columns = float[kPackets][8];

 public:
  /// A row's columns from `column` on, a multiple of 128. Loads the angles that this lane needs.
  __device__ __forceinline__ static RowEdge find(const DecodeArguments& args, const RowTile& tile, int head,
                                                 int column) {
    RowEdge edge;
    const EdgeArguments& to = args.edges;
    edge.turns_ = to.output.positions != nullptr && column + edges::kScaleColumns == kVDim;
    if (edge.turns_) {
      const std::int64_t position = to.output.position(tile.request, tile.first_token);
#pragma unroll
      for (int i = 0; i < 4 * kTurned; ++i) {
        edge.angles_[i] = to.output.angle(position, 4 * i + static_cast<int>(threadIdx.x % 4));
      }
    }
    if (to.codes == nullptr) return edge;
    const CodePlace place = CodePlace::find<kVDim>(to, head);
    const int first = place.column + column;
    edge.token_ = query_token(args, tile);
    edge.codes_ = to.codes + edge.token_ * to.code_token_stride + place.group * to.code_group_stride + first;
    edge.scales_ = to.scales + (std::int64_t{place.group} * to.scale_lines + first / edges::kScaleColumns) *
                                   to.padded_tokens;
    return edge;
  }

  /// Turns RoPE's columns, if they are among these.
  __device__ __forceinline__ void turn(Columns& x) const {
    if (!turns_) return;
#pragma unroll
    for (int i = 0; i < 4 * kTurned; ++i) {
      float* pair = &x[kPackets - kTurned + i / 4][i % 4 * 2];
      const float2 to = turned(pair[0], pair[1], angles_[i]);
      pair[0] = to.x;
      pair[1] = to.y;
    }
  }

  /// Casts them, if that is wanted. Called by all lanes of a warp.
  __device__ __forceinline__ void write(const Columns& x, const EdgeArguments& to, bool live) const {
    if (to.codes == nullptr) return;
    float largest = 0;
#pragma unroll
    for (const auto& packet : x) {
#pragma unroll
      for (const float value : packet) largest = fmaxf(largest, fabsf(finite_or_nan(value)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
    const int exponent = edges::output_exponent(largest);
    const float inverse = e4m3::power_of_two(-exponent);
    const int lane = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < kPackets; i += 2) {  // two packets share words
      std::uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] = codes_of(x[i][2 * k], x[i][2 * k + 1], inverse) |
                   codes_of(x[i + 1][2 * k], x[i + 1][2 * k + 1], inverse) << 16;
      }
      transpose_words(words);
      if (!live) continue;
      auto* at = reinterpret_cast<uint2*>(codes_ + 32 * i + 8 * lane);
      at[0] = make_uint2(__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410));
      at[4] = make_uint2(__byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
    }
    if (live && lane == 0) put_scale(to, scales_, token_, exponent);
  }

 private:
  bool turns_ = false;
  edges::Angle angles_[4 * kTurned];
  std::int64_t token_;
  std::uint8_t* codes_;
  float* scales_;
};

}  // namespace flashlatent::sm90
