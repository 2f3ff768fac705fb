// A warp has a token. A lane has 16 of its elements as fp32 (with 576 elements four lanes have 32), read from
// any format and written to any. The lanes of a group find its largest magnitude by shuffles. Bits are those
// of the CPU backend (core/e4m3.h, core/e2m1.h, core/ue8m0.h).
#include "cuda/ops/records.h"

#include "core/message.h"
#include "core/scaled_e4m3.h"
#include "cuda/cuda_backend.h"
#include "cuda/ops/by_warps.h"
#include "cuda/ops/latent_maps.cuh"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda {

namespace record_moves {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 16;  // elements of a lane: the smallest group

/// A LatentFormat as device code needs it.
struct Layout {
  Elements elements;
  ScaleKind scales;
  bool half;  // fp16, not bf16
  bool apart;
  bool vectors;  // plain: may words of 16 bytes be accessed?
  int dim, scaled_dim, group_chunks, rope_offset, data_bytes, scale_offset, scale_bytes;
  int least_exponent;
  int latent;  // append: elements before those that Move::rope has
  const float* cache_scale;

  explicit Layout(const RecordCache& cache)
      : elements(cache.format.elements),
        scales(cache.format.scales),
        half(cache.view.dtype == Dtype::kF16),
        apart(cache.format.apart()),
        vectors(in_vectors(cache.view)),
        dim(static_cast<int>(cache.format.elements_of(cache.view.shape[cache.view.rank - 1]))),
        scaled_dim(cache.format.dim > 0 ? cache.format.scaled_dim() : dim),
        group_chunks(cache.format.group / kChunk),
        rope_offset(cache.format.rope_offset),
        data_bytes(cache.format.data_bytes),
        scale_offset(cache.format.scale_offset),
        scale_bytes(cache.format.scale_bytes),
        least_exponent(cache.least_exponent),
        latent(dim),
        cache_scale(static_cast<const float*>(cache.scale.data)) {}

  __device__ __forceinline__ bool plain() const { return elements == Elements::kHalf; }
  __device__ __forceinline__ bool of_cache() const { return scales == ScaleKind::kOfCache; }
  __device__ __forceinline__ float scale_of_cache() const {
    return cache_scale == nullptr ? 1.0F : *cache_scale;
  }
};

struct RecordMove : Move {
  const std::uint8_t* scales;
  std::uint8_t* to_scales;
};

/// The tokens of a cache.
struct Records : TokenPages {
  using Move = RecordMove;
  int data_bytes, scale_bytes, scale_offset;
  bool apart;

  explicit Records(const RecordCache& cache)
      : TokenPages(cache.view),
        data_bytes(cache.format.data_bytes),
        scale_bytes(cache.format.scale_bytes),
        scale_offset(cache.format.scale_offset),
        apart(cache.format.apart()) {}

  __device__ __forceinline__ std::uint8_t* data_of(std::int64_t page, std::int64_t offset) const {
    return data + page * page_stride + offset * (apart ? data_bytes : token_stride);
  }
  __device__ __forceinline__ std::uint8_t* scales_of(std::int64_t page, std::int64_t offset) const {
    return apart ? data + page * page_stride + page_size * data_bytes + offset * scale_bytes
                 : data_of(page, offset) + scale_offset;
  }
  __device__ __forceinline__ void read(RecordMove& move, std::int64_t page, std::int64_t offset,
                                       std::int64_t) const {
    move.from = move.rope = data_of(page, offset);
    move.scales = scales_of(page, offset);
  }
  __device__ __forceinline__ void write(RecordMove& move, std::int64_t page, std::int64_t offset,
                                        std::int64_t) const {
    move.to = data_of(page, offset);
    move.to_scales = scales_of(page, offset);
  }
  /// A gathered row of bytes is a page of one token, which move_kernel() turns it into.
  __device__ __forceinline__ static void write_row(RecordMove& move, std::uint8_t* row) { move.to = row; }
};

/// e4m3 or e2m1 times a scale; NaN as the CPU has it.
__device__ __forceinline__ float times(float element, float scale) {
  if (isnan(element)) return element;
  const float product = element * scale;
  return isnan(product) ? __uint_as_float(0x7FC00000U) : product;
}

__device__ __forceinline__ float scale_at(const Layout& layout, const std::uint8_t* scales, int group) {
  switch (layout.scales) {
    case ScaleKind::kFp32:
      return reinterpret_cast<const float*>(scales)[group];
    case ScaleKind::kUe8m0:
      return ue8m0::scale_value(scales[group]);
    case ScaleKind::kE4m3:
      return e4m3::decode(scales[group]);
    default:
      return layout.scale_of_cache();
  }
}

__device__ __forceinline__ float half_to_float(std::uint16_t bits, bool half) {
  return half ? to_float<__half>(bits) : to_float<__nv_bfloat16>(bits);
}
__device__ __forceinline__ std::uint16_t float_to_half(float x, bool half) {
  return half ? from_float<__half>(x) : from_float<__nv_bfloat16>(x);
}

/// 16-bit elements [first, first + 16) of a token, those from `latent` on from `rope`.
__device__ __forceinline__ void load_halves(const std::uint8_t* from, const std::uint8_t* rope, int latent,
                                            int first, bool vectors, bool half, float (&x)[kChunk]) {
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    const int begin = first + word * 8;
    std::uint16_t bits[8];
    if (vectors) {
      const uint4 all = *reinterpret_cast<const uint4*>((begin < latent ? from : rope) + begin * 2);
      memcpy(bits, &all, sizeof(all));
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        bits[i] = reinterpret_cast<const std::uint16_t*>(begin + i < latent ? from : rope)[begin + i];
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[word * 8 + i] = half_to_float(bits[i], half);
  }
}

__device__ __forceinline__ void store_halves(std::uint8_t* to, int first, bool vectors, bool half,
                                             const float (&x)[kChunk]) {
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    std::uint16_t bits[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) bits[i] = float_to_half(x[word * 8 + i], half);
    uint4 all;
    memcpy(&all, bits, sizeof(all));
    store_word(to, first / 8 + word, vectors, all);
  }
}

/// Reads 16 elements.
__device__ __forceinline__ void load_chunk(const Layout& layout, const RecordMove& move, int chunk,
                                           float (&x)[kChunk]) {
  const int first = chunk * kChunk;
  if (layout.plain()) {
    return load_halves(move.from, move.rope, layout.latent, first, layout.vectors, layout.half, x);
  }
  if (first >= layout.scaled_dim) {  // of the RoPE part
    const std::uint8_t* rope = move.from + layout.rope_offset - layout.scaled_dim * 2;
    return load_halves(rope, rope, layout.dim, first, true, false, x);
  }
  const int group = layout.group_chunks > 0 ? chunk / layout.group_chunks : 0;
  const float scale = scale_at(layout, move.scales, group);
  std::uint8_t codes[kChunk];
  if (layout.elements == Elements::kE2m1) {
    const uint2 word = *reinterpret_cast<const uint2*>(move.from + chunk * kChunk / 2);
    memcpy(codes, &word, sizeof(word));
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = times(e2m1::decode(codes[i / 2] >> (i % 2 * 4) & 0xF), scale);
  } else {
    const uint4 word = *reinterpret_cast<const uint4*>(move.from + first);
    memcpy(codes, &word, sizeof(word));
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = times(e4m3::decode(codes[i]), scale);
  }
}

/// Writes 16 elements. All lanes of a warp call it, those without a chunk with `active` false.
__device__ __forceinline__ void store_chunk(const Layout& layout, const RecordMove& move, int chunk,
                                            bool active, const float (&x)[kChunk]) {
  const int first = chunk * kChunk;
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (e4m3::is_finite(x[i])) amax = fmaxf(amax, fabsf(x[i]));
  }
  for (int lanes = 1; lanes < layout.group_chunks; lanes *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFF, amax, lanes));
  }
  if (!active) return;
  if (layout.plain()) return store_halves(move.to, first, layout.vectors, layout.half, x);
  if (first >= layout.scaled_dim) {
    return store_halves(move.to + layout.rope_offset - layout.scaled_dim * 2, first, true, false, x);
  }
  std::uint8_t codes[kChunk];
  if (layout.of_cache()) {
    const float scale = layout.scale_of_cache();
#pragma unroll
    for (int i = 0; i < kChunk; ++i) codes[i] = fp8_656::encode_scaled(x[i], scale);
  } else if (layout.elements == Elements::kE2m1) {
    const std::uint8_t byte = e2m1::scale_byte(amax);
    const float scale = e4m3::decode(byte);
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      codes[i] = static_cast<std::uint8_t>(e2m1::encode(__fdiv_rn(x[2 * i], scale)) |
                                           e2m1::encode(__fdiv_rn(x[2 * i + 1], scale)) << 4);
    }
    move.to_scales[chunk] = byte;
    uint2 word;
    memcpy(&word, codes, sizeof(word));
    *reinterpret_cast<uint2*>(move.to + first / 2) = word;
    return;
  } else {
    const int exponent = e4m3::scale_exponent(amax, layout.least_exponent);
    const float inverse = e4m3::power_of_two(-exponent);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) codes[i] = e4m3::encode(x[i] * inverse);
    if (chunk % layout.group_chunks == 0) {
      const int group = chunk / layout.group_chunks;
      if (layout.scales == ScaleKind::kUe8m0) {
        move.to_scales[group] = ue8m0::scale_byte(exponent);
      } else {
        reinterpret_cast<float*>(move.to_scales)[group] = e4m3::power_of_two(exponent);
      }
    }
  }
  uint4 word;
  memcpy(&word, codes, sizeof(word));
  *reinterpret_cast<uint4*>(move.to + first) = word;
}

/// Copies a token between the arrangements of one format, or within one.
__device__ __forceinline__ void copy_token(const Layout& from, const Layout& to, const RecordMove& move,
                                           int lane) {
  const int data_words = min(from.data_bytes, to.data_bytes) / 8;
  const int scale_words = from.apart || to.apart ? from.scale_bytes / 8 : 0;
  for (int word = lane; word < data_words + scale_words; word += 32) {
    const bool of_scales = word >= data_words;
    const std::uint8_t* source = of_scales ? move.scales + (word - data_words) * 8 : move.from + word * 8;
    std::uint8_t* target = of_scales ? move.to_scales + (word - data_words) * 8 : move.to + word * 8;
    *reinterpret_cast<uint2*>(target) = *reinterpret_cast<const uint2*>(source);
  }
}

/// kCopies: both sides are of one format.
template <bool kCopies, class Map>
__global__ void __launch_bounds__(kThreads)
    move_kernel(const __grid_constant__ Map map, const __grid_constant__ Layout from,
                const __grid_constant__ Layout to, bool rows, std::int64_t items) {
  const std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (item >= items) return;
  const int lane = threadIdx.x % 32;
  RecordMove move = map(item, map.near(item));
  if (move.to == nullptr) return;
  if (rows) move.to_scales = move.to + (to.apart ? to.data_bytes : to.scale_offset);
  if (move.from == nullptr) {  // a row of 0
    const int bytes = to.plain() ? to.dim * 2 : to.data_bytes + (to.apart ? to.scale_bytes : 0);
    for (int i = lane; i < bytes / 2; i += 32) reinterpret_cast<std::uint16_t*>(move.to)[i] = 0;
    return;
  }
  if constexpr (kCopies) {
    copy_token(from, to, move, lane);
  } else {
    for (int begin = 0; begin < to.dim; begin += 32 * kChunk) {
      const int chunk = begin / kChunk + lane;
      const bool active = chunk * kChunk < to.dim;
      float x[kChunk] = {};
      if (active) load_chunk(from, move, chunk, x);
      store_chunk(to, move, chunk, active, x);
    }
    const int padding = to.apart && to.scales == ScaleKind::kUe8m0
                            ? to.scale_bytes - to.scaled_dim / (to.group_chunks * kChunk)
                            : 0;
    if (lane < padding) move.to_scales[to.scale_bytes - 1 - lane] = 0;
  }
}

template <bool kCopies, class Map>
Status move_all(const Map& map, const Layout& from, const Layout& to, bool rows, std::int64_t items,
                const Executor& executor) {
  if (items == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  return launch_warps<kThreads>(move_kernel<kCopies, Map>, items, executor, map, from, to, rows, items);
}

/// Are tokens copied unchanged?
bool copies(const RecordCache& from, const RecordCache& to) {
  return from.format.is_record() && from.format.format == to.format.format;
}

}  // namespace

}  // namespace record_moves

Status check_record_aligned(const char* name, const RecordCache& cache) {
  if (cache.format.plain()) return {};
  ConstTensorView view = cache.view;
  if (cache.format.apart()) view.strides[1] = view.strides[2] = 0;
  if (view.rank == 4 && view.shape[2] == 1) view.strides[2] = 0;
  if (in_vectors(view)) return {};
  return invalid_argument(name, " at ", cache.view.data, " is ", to_string(cache.view),
                          "; the address and strides of an ", cache.format.name,
                          " cache must be multiples of 16 bytes");
}

Status append_records(const ConstTensorView& latent, const ConstTensorView& rope,
                      const ConstTensorView& slot_mapping, const RecordCache& cache,
                      const Executor& executor) {
  using namespace record_moves;
  FLASHLATENT_RETURN_IF_ERROR(check_record_aligned("kv_cache", cache));
  const bool has_rope = rope.present() && rope.shape[1] > 0;
  Layout from({latent, kPlainFormat});
  from.latent = static_cast<int>(latent.shape[1]);
  from.vectors = in_vectors(latent) && (!has_rope || in_vectors(rope)) && from.latent % 8 == 0;
  const LatentAppend<Records> map(latent, rope, slot_mapping, Records(cache));
  return move_all<false>(map, from, Layout(cache), false, slot_mapping.shape[0], executor);
}

Status convert_records(const RecordCache& from, const RecordCache& to, const Executor& executor) {
  using namespace record_moves;
  FLASHLATENT_RETURN_IF_ERROR(check_record_aligned("from", from));
  FLASHLATENT_RETURN_IF_ERROR(check_record_aligned("to", to));
  const LatentConvert<Records> map{Records(from), Records(to)};
  const std::int64_t tokens = from.view.shape[0] * from.view.shape[1];
  return copies(from, to) ? move_all<true>(map, Layout(from), Layout(to), false, tokens, executor)
                          : move_all<false>(map, Layout(from), Layout(to), false, tokens, executor);
}

Status gather_records(const RecordCache& cache, const ConstTensorView& block_table,
                      const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                      const TensorView& out, const Executor& executor) {
  using namespace record_moves;
  FLASHLATENT_RETURN_IF_ERROR(check_record_aligned("kv_cache", cache));
  const RecordCache rows{out, out.dtype == Dtype::kU8 ? cache.format : kPlainFormat};
  if (!rows.format.plain() && !in_vectors(out, 8)) {
    return invalid_argument("out at ", out.data, " is ", to_string(ConstTensorView(out)),
                            "; the address and strides of ", cache.format.name,
                            " rows must be multiples of 8 bytes");
  }
  const LatentGather<Records> map(Records(cache), PageTable(block_table, cu_seqlens, first_token), out);
  return copies(cache, rows)
             ? move_all<true>(map, Layout(cache), Layout(rows), true, out.shape[0], executor)
             : move_all<false>(map, Layout(cache), Layout(rows), true, out.shape[0], executor);
}

}  // namespace flashlatent::cuda
