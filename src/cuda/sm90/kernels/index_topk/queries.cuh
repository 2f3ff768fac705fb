// A group's queries in shared memory, as the B operand of wgmma, and its weights.
//
// mxfp4_68 keys are multiplied out of registers. Lane c of the four that share a key reads the 32 columns of
// scale c at once, so that it has one scale; step i of the products takes its columns 8 i to 8 i + 7. So the
// columns of a query are permuted: of step i, word c of 16 bytes (four columns) are columns 32 c + 8 i to
// 32 c + 8 i + 3, and word c of the next 16 bytes are the four columns behind these.
#pragma once

#include "cuda/sm90/kernels/index_topk/smem_layout.cuh"
#include "cuda/sm90/kernels/index_topk/walk.cuh"
#include "cuda/sm90/ptx/permute.cuh"

namespace flashlatent::cuda::indexer {

/// Eight e2m1, times a power of two, as e4m3: element 0 is in the lowest nibble, and in `low`'s lowest byte.
struct Expanded {
  std::uint32_t low, high;
};
/// `exponent`: -5 to 6, with which all products are normal e4m3 numbers, so exact.
inline constexpr int kLeastExponent = -5, kMostExponent = 6;
__device__ __forceinline__ Expanded expand_e2m1(std::uint32_t nibbles, int exponent) {
  // e4m3 of 0, 0.5, 1, 1.5 and of 2, 3, 4, 6; a step of the exponent adds 8 to each but 0.
  const std::uint32_t small = 0x3C383000 + static_cast<std::uint32_t>(exponent) * 0x08080800;
  const std::uint32_t large = 0x4C484440 + static_cast<std::uint32_t>(exponent) * 0x08080808;
  constexpr std::uint32_t kSigns = 0x80808080;
  const std::uint32_t magnitudes = nibbles & 0x77777777, shifted = nibbles << 4;
  // Selectors with their upper bit set repeat the sign of a byte.
  return {
      ptx::permute_bytes(small, large, magnitudes) | (ptx::permute_bytes(shifted, nibbles, 0xD9C8) & kSigns),
      ptx::permute_bytes(small, large, magnitudes >> 16) |
          (ptx::permute_bytes(shifted, nibbles, 0xFBEA) & kSigns)};
}

__device__ __forceinline__ float ue8m0(std::uint32_t byte) {
  return byte == 0xFF ? __int_as_float(0x7FC00000) : __int_as_float(byte == 0 ? 0x00400000 : byte << 23);
}
/// The factor of numbers whose largest scale, `base`, was taken as 2^kMostExponent.
__device__ __forceinline__ float scale_of_base(int base) {
  const int exponent = base - kMostExponent;
  return __int_as_float(exponent > 0 ? exponent << 23 : 0x00400000 >> -exponent);
}

/// The four ue8m0 scales of 128 elements.
struct Scales {
  int each[index_keys::kGroups];

  __device__ __forceinline__ explicit Scales(std::uint32_t bytes) {
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) each[i] = static_cast<int>(bytes >> 8 * i & 0xFF);
  }
  __device__ __forceinline__ int largest() const {
    return max(max(each[0], each[1]), max(each[2], each[3]));
  }
  __device__ __forceinline__ int least() const {
    return min(min(each[0], each[1]), min(each[2], each[3]));
  }
  /// Can exponents of e4m3 express all scales, with the largest as 2^kMostExponent?
  __device__ __forceinline__ bool near() const {
    return largest() - least() <= kMostExponent - kLeastExponent;
  }
};

/// Four columns of a head from word `w` on, of e2m1 times 2^exponent. Addresses may be odd.
__device__ __forceinline__ std::uint32_t query_word(const std::uint8_t* head, int w, bool fp4, int exponent) {
  if (!fp4) {
    const std::uint8_t* bytes = head + 4 * w;
    if (reinterpret_cast<std::uintptr_t>(bytes) % 4 == 0)
      return *reinterpret_cast<const std::uint32_t*>(bytes);
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | std::uint32_t{bytes[3]} << 24;
  }
  const std::uint8_t* bytes = head + 2 * w;
  return expand_e2m1(bytes[0] | bytes[1] << 8, exponent).low;
}

__device__ __forceinline__ Scales query_scales(const IndexCall& call, const Group& group, int row, int head) {
  const std::uint8_t* bytes = call.q_scale.at(group.request, group.token + row) + head * call.q_scale.inner;
  return Scales(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | std::uint32_t{bytes[3]} << 24);
}

/// The place of a head's weight: a thread of a product has columns 2 c and 2 c + 1 of each 8 (c = lane % 4),
/// and reads the weights of 16 heads at once.
__device__ __forceinline__ int weight_place(int head) {
  return head / 16 * 16 + head % 8 / 2 * 4 + head / 8 % 2 * 2 + head % 2;
}

/// Which four columns lie at word `j` of a head's unit of 16 bytes.
template <IndexFormat kFormat>
__device__ __forceinline__ int word_of(int unit, int j) {
  if constexpr (kFormat == IndexFormat::kFp8_132) return unit * 4 + j;
  return j * 8 + unit;
}

/// `thread`: one of the consumers, which must synchronise before and after the call.
///
/// Scales of e2m1 queries become exponents of their elements and factors of weights. A query token with a
/// head whose scales lie too far apart is `apart`: its elements are stored without scales, which become
/// `factors`.
template <class Config, int kColumns, IndexFormat kFormat, bool kFp4Query>
__device__ void load_queries(const ScoreArguments& arguments, const Group& group, int thread,
                             std::uint8_t* queries, float* weights, float* factors, Fixed<Config>& fixed) {
  constexpr int kConsumers = Config::kConsumers;
  const IndexCall& call = arguments.call;
  const int heads = arguments.shape.heads(), all = group.rows * heads;
  if constexpr (kFp4Query) {
    if (thread < Config::kMostGroupRows) fixed.apart[thread] = 0;
    ptx::named_sync(1, kConsumers);
    for (int i = thread; i < all; i += kConsumers) {
      const int head = i % heads, row = i / heads;
      if (head < call.heads && !query_scales(call, group, row, head).near()) fixed.apart[row] = 1;
    }
    ptx::named_sync(1, kConsumers);
  }
  const auto weight_of = [&](int i) {
    const int head = i % heads, row = i / heads;
    if (head >= call.heads) return 0.0F;
    float weight = call.weights.at(group.request, group.token + row)[head] / 2;  // twice_relu()
    if (kFp4Query && fixed.apart[row] == 0) {
      const int base = query_scales(call, group, row, head).largest();
      weight *= base == 0xFF ? ue8m0(0xFF) : scale_of_base(base);
    }
    return weight;
  };
  // Loads before stores: a first key waits for them.
  const float first_weight = thread < all ? weight_of(thread) : 0;
  // Candidates that a query token does not see do not exist.
  const int seen = thread >= group.rows ? 0 : call.candidates > 0 ? call.span : visible(call, group, thread);
  // 16 bytes at a time: unit `unit` of a head has its words word_of(unit, 0 to 3).
  for (int part = 0; part < group.rows * arguments.shape.head_chunks; ++part) {
    const int row = part / arguments.shape.head_chunks;
    const int first_head = (part - row * arguments.shape.head_chunks) * kColumns;
    const std::uint8_t* of_row = call.q.at(group.request, group.token + row);
    constexpr int kUnits = kColumns * 8, kSteps = (kUnits + kConsumers - 1) / kConsumers;
    uint4 values[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int i = step * kConsumers + thread, head = first_head + i / 8, unit = i % 8;
      values[step] = {};
      if (i >= kUnits || head >= call.heads) continue;
      const auto word = [&](int j) {
        const int w = word_of<kFormat>(unit, j);
        int exponent = 0;
        if (kFp4Query && fixed.apart[row] == 0) {
          const Scales scales = query_scales(call, group, row, head);
          exponent = (w < 16 ? (w < 8 ? scales.each[0] : scales.each[1])
                             : (w < 24 ? scales.each[2] : scales.each[3])) -
                     scales.largest() + kMostExponent;
        }
        return query_word(of_row + head * call.q.inner, w, kFp4Query, exponent);
      };
      values[step] = make_uint4(word(0), word(1), word(2), word(3));
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int i = step * kConsumers + thread;
      if (i >= kUnits) continue;
      auto* to = queries + (part * kColumns + i / 8) * index_keys::kDim + (i % 8 ^ (i / 8 & 7)) * 16;
      *reinterpret_cast<uint4*>(to) = values[step];
    }
  }
  if (thread < all) weights[weight_place(thread)] = first_weight;
  for (int i = thread + kConsumers; i < all; i += kConsumers) weights[weight_place(i)] = weight_of(i);
  if constexpr (kFp4Query) {
    // (row, chunk of heads, 32 columns, head of the chunk)
    const int columns = arguments.shape.head_columns;
    for (int i = thread; i < all * index_keys::kGroups; i += kConsumers) {
      const int part = i % index_keys::kGroups, head = i / index_keys::kGroups % heads;
      const int row = i / index_keys::kGroups / heads;
      if (fixed.apart[row] == 0) continue;
      float factor = 0;
      if (head < call.heads) {
        factor = ue8m0((call.q_scale.at(group.request, group.token + row) + head * call.q_scale.inner)[part]);
      }
      const int chunk = head / columns;
      factors[((row * arguments.shape.head_chunks + chunk) * index_keys::kGroups + part) * columns +
              head % columns] = factor;
    }
  }
  if (thread < group.rows) fixed.seen[thread] = seen;
}

}  // namespace flashlatent::cuda::indexer
