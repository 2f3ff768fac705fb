// What one CTA of a team sends of a unit of its output to the unit's owner (team.cuh): four values of each of
// 128 threads.
#pragma once

#include "cuda/sm90/math/softmax.cuh"

namespace flashlatent::sm90 {

__device__ __forceinline__ void add_weighted(float (&x)[4], float4 theirs, float weight) {
  x[0] += theirs.x * weight;
  x[1] += theirs.y * weight;
  x[2] += theirs.z * weight;
  x[3] += theirs.w * weight;
}

/// As fp32.
struct SentUnit {
  float4 packets[128];

  /// x += weight * the thread's four values.
  __device__ __forceinline__ void add_to(float (&x)[4], int thread, float weight) const {
    add_weighted(x, packets[thread], weight);
  }
};

/// As fp16 (packed_row.cuh). A unit is 4 pieces of 8 rows and 16 columns; a packet has a lane's four values
/// of two consecutive pieces. kWarps: warps that send, pieces side by side.
template <int kWarps>
struct PackedSentUnit {
  uint4 packets[64];
  float scale[32 * kWarps];  // the value of a 1, for each lane

  __device__ __forceinline__ void add_to(float (&x)[4], int thread, float weight) const {
    const int piece = thread / 32, lane = thread % 32;
    const uint2 four = reinterpret_cast<const uint2*>(&packets[piece / 2 * 32 + lane])[piece % 2];
    const float2 first = unpack<__half>(four.x), second = unpack<__half>(four.y);
    weight *= scale[piece * kWarps / 4 * 32 + lane];
    add_weighted(x, make_float4(first.x, first.y, second.x, second.y), weight);
  }
};

}  // namespace flashlatent::sm90
