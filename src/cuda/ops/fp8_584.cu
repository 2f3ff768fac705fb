// Operations on fp8_584 caches; a warp has a token. Its 512 elements are 64 words of 8. A lane has words
// `lane` and `lane + 32`; 8 lanes have a group of 64 elements and its scale; the last 8 lanes' second words
// are the RoPE part.
#include "cuda/ops/fp8_584.h"

#include "core/formats/formats.h"
#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/ops/by_warps.h"
#include "cuda/ops/latent_maps.cuh"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda {

namespace fp8_584_moves {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kGroupLanes584 = fp8_584::kGroup / 8;
constexpr int kRopeLane = 32 - fp8_584::kRopeDim / 8;  // its second word is the first of the RoPE part
static_assert(fp8_584::kDim == 2 * 32 * 8 && fp8_584::kGroups == 2 * 32 / kGroupLanes584 - 1);

/// Marks the format where others have an element type.
struct Token584 {};
template <class T>
inline constexpr bool kIs584 = std::is_same_v<T, Token584>;

/// One token's move, with scales in another place.
struct Move584 : Move {
  const std::uint8_t* scales;  // of a token of bytes
  std::uint8_t* to_scales;
};

/// The tokens of a plain or an fp8_584 cache.
struct Tokens : TokenPages {
  using Move = Move584;
  bool apart;  // are scales behind all data of a page?

  /// A cache of bytes is fp8_584.
  explicit Tokens(const ConstTensorView& view) : TokenPages(view), apart(view.dtype == Dtype::kU8) {}

  __device__ __forceinline__ std::uint8_t* token(std::int64_t page, std::int64_t offset) const {
    return data + page * page_stride + (apart ? fp8_584::data_offset(offset) : offset * token_stride);
  }
  __device__ __forceinline__ std::uint8_t* scales(std::int64_t page, std::int64_t offset) const {
    return apart ? data + page * page_stride + fp8_584::scale_offset(page_size, offset) : nullptr;
  }
  __device__ __forceinline__ void read(Move& move, std::int64_t page, std::int64_t offset,
                                       std::int64_t) const {
    move.from = move.rope = token(page, offset);
    move.scales = scales(page, offset);
  }
  __device__ __forceinline__ void write(Move& move, std::int64_t page, std::int64_t offset,
                                        std::int64_t) const {
    move.to = token(page, offset);
    move.to_scales = scales(page, offset);
  }
  /// A gathered row of bytes is a page of one token.
  __device__ __forceinline__ static void write_row(Move& move, std::uint8_t* row) {
    move.to = row;
    move.to_scales = row + fp8_584::scale_offset(1, 0);
  }
};

template <class From>
__device__ __forceinline__ void quantize(const Move584& move, bool vectors, int lane) {
  uint4 words[2] = {load_word(move.from, lane, vectors),
                    load_word(lane < kRopeLane ? move.from : move.rope, lane + 32, vectors)};
  const uint4 rope = words[1];
  const std::uint32_t amax = group_amax<From, kGroupLanes584>(words);
  const float2 both = to_floats<From>(amax);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool is_rope = i == 1 && lane >= kRopeLane;
    const int exponent = e4m3::scale_exponent(i == 0 ? both.x : both.y, e4m3::kLeastOfAmax);
    const int word = lane + 32 * i;
    if (is_rope) {
      store_word(move.to + fp8_584::kRopeOffset, lane - kRopeLane, true,
                 convert_word<From, __nv_bfloat16>(rope));
    } else {
      const float inverse = e4m3::power_of_two(-exponent);
      const uint4 x = words[i];
      *reinterpret_cast<uint2*>(global(move.to) + word * 8) =
          make_uint2(encode<From>(x.x, x.y, inverse), encode<From>(x.z, x.w, inverse));
    }
    if (lane % kGroupLanes584 == 0) {  // the byte behind the scales becomes 0
      global(move.to_scales)[word / kGroupLanes584] = is_rope ? 0 : fp8_584::scale_byte(exponent);
    }
  }
}

template <class To>
__device__ __forceinline__ void dequantize(const Move584& move, bool vectors, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int word = lane + 32 * i;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (move.from != nullptr && i == 1 && lane >= kRopeLane) {
      x = convert_word<__nv_bfloat16, To>(
          load_word(move.from + fp8_584::kRopeOffset, lane - kRopeLane, true));
    } else if (move.from != nullptr) {
      const float scale = fp8_584::scale_value(global(move.scales)[word / kGroupLanes584]);
      x = decode_word<To>(reinterpret_cast<const uint2*>(global(move.from))[word], scale);
    }
    store_word(move.to, word, vectors, x);
  }
}

/// Copies 72 words of 8 bytes of data and one of scales.
__device__ __forceinline__ void copy(const Move584& move, int lane) {
  constexpr int kDataWords = fp8_584::kDataBytes / 8;
  for (int word = lane; word <= kDataWords; word += 32) {
    uint2 x = make_uint2(0, 0);
    if (move.from != nullptr) {
      const std::uint8_t* from = word < kDataWords ? move.from + word * 8 : move.scales;
      x = *reinterpret_cast<const uint2*>(global(from));
    }
    *reinterpret_cast<uint2*>(global(word < kDataWords ? move.to + word * 8 : move.to_scales)) = x;
  }
}

template <class From, class To, class Map>
__global__ void __launch_bounds__(kThreads)
    move_584_kernel(const __grid_constant__ Map map, bool vectors, std::int64_t items) {
  const std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (item >= items) return;
  const int lane = threadIdx.x % 32;
  const Move584 move = map(item, map.near(item));
  if (move.to == nullptr) return;
  if constexpr (kIs584<From> && kIs584<To>) {
    copy(move, lane);
  } else if constexpr (kIs584<From>) {
    dequantize<To>(move, vectors, lane);
  } else {
    quantize<From>(move, vectors, lane);
  }
}

template <class Map>
Status move_tokens(const Map& map, Dtype from, Dtype to, bool vectors, std::int64_t items,
                   const Executor& executor) {
  if (items == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  return with_types<Token584, Map, /*kPlain=*/false>(from, to, [&](auto from_type, auto to_type) {
    return launch_warps<kThreads>(move_584_kernel<decltype(from_type), decltype(to_type), Map>, items,
                                  executor, map, vectors, items);
  });
}

/// Data is moved by 16 bytes, and is aligned to them if pages are.
Status check_584(const char* name, const ConstTensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  if (view.dtype != Dtype::kU8 || address % kPageAlignment == 0) return {};
  return invalid_argument(name, " is at ", view.data,
                          "; the address of an fp8_584 cache must be a multiple of ", kPageAlignment);
}

}  // namespace

}  // namespace fp8_584_moves

Status append_584(const ConstTensorView& latent, const ConstTensorView& rope,
                  const ConstTensorView& slot_mapping, const TensorView& kv_cache, const Executor& executor) {
  using namespace fp8_584_moves;
  FLASHLATENT_RETURN_IF_ERROR(check_584("kv_cache", kv_cache));
  return move_tokens(LatentAppend<Tokens>(latent, rope, slot_mapping, Tokens(kv_cache)), latent.dtype,
                     kv_cache.dtype, in_vectors(latent) && in_vectors(rope), slot_mapping.shape[0], executor);
}

Status convert_584(const ConstTensorView& from, const TensorView& to, const Executor& executor) {
  using namespace fp8_584_moves;
  FLASHLATENT_RETURN_IF_ERROR(check_584("from", from));
  FLASHLATENT_RETURN_IF_ERROR(check_584("to", to));
  const bool vectors = in_vectors(to.dtype == Dtype::kU8 ? from : ConstTensorView(to));
  return move_tokens(LatentConvert<Tokens>{Tokens(from), Tokens(to)}, from.dtype, to.dtype, vectors,
                     from.shape[0] * from.shape[1], executor);
}

Status gather_584(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                  const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                  const TensorView& out, const Executor& executor) {
  using namespace fp8_584_moves;
  FLASHLATENT_RETURN_IF_ERROR(check_584("kv_cache", kv_cache));
  if (out.dtype == Dtype::kU8 && !in_vectors(out, 8)) {
    return invalid_argument("out at ", out.data, " is ", to_string(ConstTensorView(out)),
                            "; the address and strides of fp8_584 rows must be multiples of 8 bytes");
  }
  const LatentGather<Tokens> map(Tokens(kv_cache), PageTable(block_table, cu_seqlens, first_token), out);
  return move_tokens(map, kv_cache.dtype, out.dtype, in_vectors(out), out.shape[0], executor);
}

}  // namespace flashlatent::cuda
