// Operations on caches; a warp has a few tokens. A map says which token is moved where, token.cuh converts
// it.
#include <algorithm>

#include "core/formats/formats.h"
#include "core/message.h"
#include "core/token_steps.h"
#include "cuda/cuda_backend.h"
#include "cuda/ops/by_warps.h"
#include "cuda/ops/e4m3.h"
#include "cuda/ops/fp8_584.h"
#include "cuda/ops/latent_maps.cuh"
#include "cuda/ops/new_tokens.h"
#include "cuda/ops/records.h"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda {

namespace latent_moves {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kResident = 6;  // CTAs of an SM: 24 warps, each with up to 4.5 KB of tokens in flight
/// Tokens of a warp. Four neighbours of 656 bytes are whole sectors of 32 bytes, and their RoPE parts are one
/// word a lane. While there are enough warps, each has one token.
constexpr int kManyTokens = 4;

template <class From, class To, int kTokens, class Map>
__global__ void __launch_bounds__(kThreads, kResident)
    move_kernel(const __grid_constant__ Map map, const __grid_constant__ TokenDims dims, std::int64_t items) {
  constexpr bool kFromFp8 = std::is_same_v<From, Fp8Token>, kToFp8 = std::is_same_v<To, Fp8Token>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __shared__ Move all_moves[kWarps][kTokens];
  Move(&moves)[kTokens] = all_moves[warp];
  const std::int64_t first = (std::int64_t{blockIdx.x} * kWarps + warp) * kTokens;
  const int near = map.near(first);
  if (lane < kTokens) moves[lane] = first + lane < items ? map(first + lane, near) : Move{};
  __syncwarp();
  if constexpr (kToFp8 && !kFromFp8) {
    __shared__ __align__(16) std::uint8_t staged[kWarps][kTokens][fp8_656::kTokenBytes];
    quantize_tokens<From>(moves, dims.vectors, staged[warp], lane);
  } else if constexpr (kFromFp8 && !kToFp8) {
    dequantize_tokens<To>(moves, dims.vectors, lane);
  } else if (kFromFp8 || dims.vectors) {
    move_words<From, To>(moves, dims, lane);
  } else if constexpr (!kFromFp8) {
    for (const Move& move : moves) move_elements<From, To>(move, dims, lane);
  }
}

template <class Map>
Status move_all(const Map& map, Dtype from, Dtype to, TokenDims dims, std::int64_t items,
                const Executor& executor) {
  if (items == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(int units, multiprocessors(executor.device));
  const bool many = items > units * kResident * kWarps;
  const std::int64_t warps = many ? (items - 1) / kManyTokens + 1 : items;
  return with_types<Fp8Token, Map, /*kPlain=*/true>(from, to, [&](auto from_type, auto to_type) {
    using From = decltype(from_type);
    using To = decltype(to_type);
    return launch_warps<kThreads>(
        many ? move_kernel<From, To, kManyTokens, Map> : move_kernel<From, To, 1, Map>, warps, executor, map,
        dims, items);
  });
}

/// Tokens of fp8_656 are always moved by 16 bytes.
Status check_fp8(const char* name, const ConstTensorView& view) {
  if (view.dtype != Dtype::kU8 || in_vectors(view)) return {};
  return invalid_argument(name, " at ", view.data, " is ", to_string(view),
                          "; the address and strides of an fp8_656 cache must be multiples of 16 bytes");
}

/// Tokens with `latent` and `rope` elements, apart or contiguous; `aligned` to 16 bytes.
TokenDims dims_of(std::int64_t latent, std::int64_t rope, bool aligned) {
  const bool vectors = aligned && latent % 8 == 0 && rope % 8 == 0;
  const auto words = static_cast<int>(std::max<std::int64_t>((latent + rope) / 8, 1));
  return {static_cast<int>(latent), static_cast<int>(rope), vectors, Divisor(words)};
}
TokenDims dims_of(const ConstTensorView& from, bool aligned) {
  if (from.dtype != Dtype::kU8) return dims_of(from.shape[from.rank - 1], 0, aligned);
  return {fp8_656::kLatentDim, fp8_656::kRopeDim, aligned, Divisor(fp8_656::kTokenBytes / 16)};
}

}  // namespace

}  // namespace latent_moves

namespace {

using latent_moves::check_fp8;
using latent_moves::dims_of;
using latent_moves::move_all;

/// Does this format have its own kernels?
bool has_kernels(const LatentFormat& format) {
  return format.plain() || &format == &kFp8_656Format || &format == &kFp8_584Format ||
         &format == &kE4m3Format;
}
/// ... that write its scales by this rule?
bool has_writer(const LatentFormat& format, ScaleFloor floor) {
  return has_kernels(format) && least_exponent(format, floor) == least_exponent(format, ScaleFloor::kAuto);
}

}  // namespace

Status append_latent(const ConstTensorView& latent, const ConstTensorView& rope,
                     const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                     const Executor& executor, const ConstTensorView& kv_scale, const CacheFormat& said,
                     const TokenEdges& edges) {
  const LatentFormat& format = format_of(said);
  if (edges::in_fp32(edges, latent.dtype)) {
    return append_new_tokens(latent, rope, slot_mapping,
                             {kv_cache, format, kv_scale, least_exponent(format, said.floor)}, edges,
                             executor);
  }
  if (!has_writer(format, said.floor)) {
    return append_records(latent, rope, slot_mapping,
                          {kv_cache, format, kv_scale, least_exponent(format, said.floor)}, executor);
  }
  if (&format == &kE4m3Format) {
    return append_e4m3(latent, rope, slot_mapping, kv_cache, kv_scale, executor);
  }
  if (&format == &kFp8_584Format) return append_584(latent, rope, slot_mapping, kv_cache, executor);
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("kv_cache", kv_cache));
  const std::int64_t d_rope = rope.present() ? rope.shape[1] : 0;
  const bool aligned = in_vectors(latent) && in_vectors(kv_cache) && (d_rope == 0 || in_vectors(rope));
  const LatentAppend<HeadPages> map(latent, rope, slot_mapping, HeadPages(kv_cache));
  return move_all(map, latent.dtype, kv_cache.dtype, dims_of(latent.shape[1], d_rope, aligned),
                  slot_mapping.shape[0], executor);
}

Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor,
                     const ConstTensorView& from_scale, const ConstTensorView& to_scale,
                     const CacheFormat& from_said, const CacheFormat& to_said) {
  const LatentFormat &format = format_of(from_said), &to_format = format_of(to_said);
  const bool one_of_bytes = format.plain() || to_format.plain() || &format == &to_format;
  if (!one_of_bytes || !has_kernels(format) || !has_writer(to_format, to_said.floor)) {
    return convert_records({from, format, from_scale},
                           {to, to_format, to_scale, least_exponent(to_format, to_said.floor)}, executor);
  }
  if (&format == &kE4m3Format || &to_format == &kE4m3Format) {
    return convert_e4m3(from, from_scale, to, to_scale, executor);
  }
  if (&format == &kFp8_584Format || &to_format == &kFp8_584Format) return convert_584(from, to, executor);
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("from", from));
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("to", to));
  return move_all(LatentConvert<HeadPages>{HeadPages(from), HeadPages(to)}, from.dtype, to.dtype,
                  dims_of(from, in_vectors(from) && in_vectors(to)),
                  from.shape[0] * from.shape[1] * from.shape[2], executor);
}

Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor, const ConstTensorView& kv_scale,
                    const CacheFormat& said) {
  const LatentFormat& format = format_of(said);
  if (!has_kernels(format)) {
    return gather_records({kv_cache, format, kv_scale}, block_table, cu_seqlens, first_token, out, executor);
  }
  if (&format == &kE4m3Format) {
    return gather_e4m3(kv_cache, kv_scale, block_table, cu_seqlens, first_token, out, executor);
  }
  if (&format == &kFp8_584Format) {
    return gather_584(kv_cache, block_table, cu_seqlens, first_token, out, executor);
  }
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("kv_cache", kv_cache));
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("out", out));
  const LatentGather<HeadPages> map(HeadPages(kv_cache), PageTable(block_table, cu_seqlens, first_token),
                                    out);
  return move_all(map, kv_cache.dtype, out.dtype, dims_of(kv_cache, in_vectors(kv_cache) && in_vectors(out)),
                  out.shape[0] * out.shape[1], executor);
}

}  // namespace flashlatent::cuda
