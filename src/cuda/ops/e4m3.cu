// Operations on e4m3 caches; a warp has a token. A lane has eight elements at a time (a word) where addresses
// allow it, otherwise one. Bits are those of the CPU backend (core/scaled_e4m3.h, core/element.h).
#include "cuda/ops/e4m3.h"

#include "core/scaled_e4m3.h"
#include "cuda/cuda_backend.h"
#include "cuda/ops/by_warps.h"
#include "cuda/ops/latent_maps.cuh"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda {

namespace e4m3_moves {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

/// Marks e4m3 where others have an element type.
struct Code {};
template <class T>
inline constexpr bool kIsCode = std::is_same_v<T, Code>;
template <class T>
inline constexpr int kBytes = kIsCode<T> ? 1 : 2;
template <class T>
using Word = std::conditional_t<kIsCode<T>, uint2, uint4>;  // eight elements

/// The scales of an operation (fp32, null: 1), and the elements of its tokens.
struct Shape {
  const float *from_scale, *to_scale;
  int latent, elements;  // `latent`: elements of the first part; the rest is the RoPE part
  bool vectors;          // are addresses aligned to words?
};

__device__ __forceinline__ float scale_at(const float* scale) {
  return scale == nullptr ? 1.0F : __ldg(scale);
}

template <class From, class To>
struct Converter {
  float from_scale, to_scale;

  __device__ __forceinline__ float read(const std::uint8_t* from) const {
    if constexpr (kIsCode<From>) {
      return fp8_656::decode_scaled(*from, from_scale);
    } else {
      return to_float<From>(*reinterpret_cast<const std::uint16_t*>(from));
    }
  }
  __device__ __forceinline__ void write(float x, std::uint8_t* to) const {
    if constexpr (kIsCode<To>) {
      *to = fp8_656::encode_scaled(x, to_scale);
    } else {
      *reinterpret_cast<std::uint16_t*>(to) = from_float<To>(x);
    }
  }
  __device__ __forceinline__ void element(const std::uint8_t* from, std::uint8_t* to) const {
    if (kIsCode<From> && kIsCode<To> && from_scale == to_scale) {
      *to = *from;
    } else {
      write(read(from), to);
    }
  }
  __device__ __forceinline__ void word(const std::uint8_t* from, std::uint8_t* to) const {
    alignas(16) std::uint8_t read[8 * kBytes<From>], written[8 * kBytes<To>];
    *reinterpret_cast<Word<From>*>(read) = *reinterpret_cast<const Word<From>*>(from);
#pragma unroll
    for (int i = 0; i < 8; ++i) element(read + i * kBytes<From>, written + i * kBytes<To>);
    *reinterpret_cast<Word<To>*>(to) = *reinterpret_cast<const Word<To>*>(written);
  }
};

template <class From, class To, class Map>
__global__ void __launch_bounds__(kThreads)
    move_kernel(const __grid_constant__ Map map, const __grid_constant__ Shape shape, std::int64_t items) {
  const std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (item >= items) return;
  const int lane = threadIdx.x % 32;
  const Move move = map(item, map.near(item));
  if (move.to == nullptr) return;
  const Converter<From, To> converter{scale_at(shape.from_scale), scale_at(shape.to_scale)};
  if (move.from == nullptr) {
    for (int i = lane; i < shape.elements * kBytes<To>; i += 32) move.to[i] = 0;
  } else if (shape.vectors) {
    for (int i = lane * 8; i < shape.elements; i += 32 * 8) {
      converter.word((i < shape.latent ? move.from : move.rope) + i * kBytes<From>, move.to + i * kBytes<To>);
    }
  } else {
    for (int i = lane; i < shape.elements; i += 32) {
      converter.element((i < shape.latent ? move.from : move.rope) + i * kBytes<From>,
                        move.to + i * kBytes<To>);
    }
  }
}

template <class Map>
Status move_tokens(const Map& map, Dtype from, Dtype to, const Shape& shape, std::int64_t items,
                   const Executor& executor) {
  if (items == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  return with_types<Code, Map, /*kPlain=*/false>(from, to, [&](auto from_type, auto to_type) {
    return launch_warps<kThreads>(move_kernel<decltype(from_type), decltype(to_type), Map>, items, executor,
                                  map, shape, items);
  });
}

const float* scale_of(const ConstTensorView& scale) {
  return static_cast<const float*>(scale.data);
}

/// Are addresses aligned to words of eight elements (8 bytes of codes, 16 of others)?
bool in_words(const ConstTensorView& view) {
  return in_vectors(view, view.dtype == Dtype::kU8 ? 8 : 16);
}

}  // namespace

}  // namespace e4m3_moves

Status append_e4m3(const ConstTensorView& latent, const ConstTensorView& rope,
                   const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                   const ConstTensorView& kv_scale, const Executor& executor) {
  using namespace e4m3_moves;
  const std::int64_t d_latent = latent.shape[1], d_rope = rope.present() ? rope.shape[1] : 0;
  const LatentAppend<TokenPages> map(latent, rope, slot_mapping, TokenPages(kv_cache));
  const bool aligned = in_words(latent) && in_words(kv_cache) && (d_rope == 0 || in_words(rope));
  const Shape shape{nullptr, scale_of(kv_scale), static_cast<int>(d_latent),
                    static_cast<int>(d_latent + d_rope), aligned && d_latent % 8 == 0};
  return move_tokens(map, latent.dtype, kv_cache.dtype, shape, slot_mapping.shape[0], executor);
}

Status convert_e4m3(const ConstTensorView& from, const ConstTensorView& from_scale, const TensorView& to,
                    const ConstTensorView& to_scale, const Executor& executor) {
  using namespace e4m3_moves;
  const LatentConvert<TokenPages> map{TokenPages(from), TokenPages(to)};
  const auto elements = static_cast<int>(from.shape[3]);
  const Shape shape{scale_of(from_scale), scale_of(to_scale), elements, elements,
                    in_words(from) && in_words(to)};
  return move_tokens(map, from.dtype, to.dtype, shape, from.shape[0] * from.shape[1], executor);
}

Status gather_e4m3(const ConstTensorView& kv_cache, const ConstTensorView& kv_scale,
                   const ConstTensorView& block_table, const ConstTensorView& cu_seqlens,
                   const ConstTensorView& first_token, const TensorView& out, const Executor& executor) {
  using namespace e4m3_moves;
  const LatentGather<TokenPages> map(TokenPages(kv_cache), PageTable(block_table, cu_seqlens, first_token),
                                     out);
  const auto elements = static_cast<int>(kv_cache.shape[3]);
  const Shape shape{scale_of(kv_scale), scale_of(kv_scale), elements, elements,
                    in_words(kv_cache) && in_words(out)};
  return move_tokens(map, kv_cache.dtype, out.dtype, shape, out.shape[0], executor);
}

}  // namespace flashlatent::cuda
