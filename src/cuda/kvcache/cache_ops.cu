// Operations on caches: a warp a token. What is moved where is a map's matter, how it is converted
// token.cuh's.
#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/cuda_backend.h"
#include "cuda/kvcache/places.cuh"
#include "cuda/kvcache/token.cuh"

namespace flashlatent::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kResident = 6;  // CTAs of an SM: 48 warps with 1.1 KB of a token each in flight

/// A cache, (pages, page_size, heads, d); strides in bytes.
struct Pages {
  std::uint8_t* data;
  std::int64_t page_stride, token_stride, head_stride;
  std::int64_t pages, page_size, heads;

  explicit Pages(const ConstTensorView& view)
      : data(static_cast<std::uint8_t*>(const_cast<void*>(view.data))),
        page_stride(view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype))),
        token_stride(view.strides[1] * static_cast<std::int64_t>(size_of(view.dtype))),
        head_stride(view.strides[2] * static_cast<std::int64_t>(size_of(view.dtype))),
        pages(view.shape[0]),
        page_size(view.shape[1]),
        heads(view.shape[2]) {}
  __device__ __forceinline__ std::uint8_t* token(std::int64_t page, std::int64_t offset,
                                                 std::int64_t head) const {
    return data + page * page_stride + offset * token_stride + head * head_stride;
  }
};

/// What becomes of one item. Without a place to go to it is skipped; without one to come from it becomes 0.
struct Move {
  const std::uint8_t* from;
  const std::uint8_t* rope;  // null: behind what is at `from`
  std::uint8_t* to;
};

/// takes(): the types that the operation is asked for.
struct AppendMap {
  template <class From, class To>
  static constexpr bool takes() {
    return !std::is_same_v<From, Fp8Token>;
  }
  const std::uint8_t* latent;
  const std::uint8_t* rope;
  std::int64_t latent_stride, rope_stride;  // bytes
  Integers slots;
  Pages cache;

  __device__ __forceinline__ Move operator()(std::int64_t i) const {
    const std::int64_t slot = slots.at(i);
    if (slot < 0 || slot >= cache.pages * cache.page_size) return {};
    return {latent + i * latent_stride, rope + i * rope_stride,
            cache.token(slot / cache.page_size, slot % cache.page_size, 0)};
  }
};

/// All of a cache.
struct ConvertMap {
  template <class From, class To>
  static constexpr bool takes() {
    return true;
  }
  Pages from, to;

  __device__ __forceinline__ Move operator()(std::int64_t i) const {
    const std::int64_t head = i % from.heads, token = i / from.heads;
    const std::int64_t page = token / from.page_size, offset = token % from.page_size;
    return {from.token(page, offset, head), nullptr, to.token(page, offset, head)};
  }
};

struct GatherMap {
  template <class From, class To>
  static constexpr bool takes() {
    return !std::is_same_v<To, Fp8Token> || std::is_same_v<From, To>;
  }
  Pages cache;
  PageTable table;
  std::uint8_t* out;
  std::int64_t row_stride, head_stride;  // bytes

  __device__ __forceinline__ Move operator()(std::int64_t i) const {
    const std::int64_t head = i % cache.heads, row = i / cache.heads;
    const PageTable::Found found = table.find(row, cache.pages, cache.page_size);
    if (!found.row) return {};
    std::uint8_t* to = out + row * row_stride + head * head_stride;
    if (found.page < 0) return {nullptr, nullptr, to};
    return {cache.token(found.page, found.offset, head), nullptr, to};
  }
};

template <class From, class To, class Map>
__global__ void __launch_bounds__(kThreads, kResident)
    move_kernel(const __grid_constant__ Map map, TokenDims dims, std::int64_t items) {
  const int lane = threadIdx.x % 32;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; i < items;
       i += std::int64_t{gridDim.x} * kWarps) {
    const Move move = map(i);
    if (move.to == nullptr) continue;
    if (move.from == nullptr) {
      clear_token<To>(move.to, dims, lane);
      continue;
    }
    const void* rope = move.rope == nullptr ? move.from + dims.latent * 2 : move.rope;
    move_token<From, To>({move.from, rope}, move.to, dims, lane);
  }
}

/// Calls f with a value of the type that a tensor's dtype names.
template <class F>
Status with_type(Dtype dtype, F f) {
  if (dtype == Dtype::kBF16) return f(__nv_bfloat16{});
  if (dtype == Dtype::kF16) return f(__half{});
  return f(Fp8Token{});
}

template <class Map>
Status move_all(const Map& map, Dtype from, Dtype to, TokenDims dims, std::int64_t items,
                const Executor& executor) {
  if (items == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Result<int> units = multiprocessors(executor.device);
  if (!units.ok()) return units.status();
  LaunchShape shape;
  shape.blocks = static_cast<int>(std::min<std::int64_t>((items + kWarps - 1) / kWarps, *units * kResident));
  shape.threads = kThreads;
  return with_type(from, [&](auto from_type) {
    return with_type(to, [&](auto to_type) -> Status {
      using From = decltype(from_type);
      using To = decltype(to_type);
      if constexpr (Map::template takes<From, To>()) {
        return launch(move_kernel<From, To, Map>, shape, executor, map, dims, items);
      } else {
        return {StatusCode::kInternal, "a cache operation was asked for types that it does not have"};
      }
    });
  });
}

/// Tokens of fp8_656 are always moved by vectors.
Status check_fp8(const char* name, const ConstTensorView& view) {
  if (view.dtype != Dtype::kU8 || in_vectors(view)) return {};
  return invalid_argument(name, " at ", view.data, " is ", to_string(view),
                          "; the address and strides of an fp8_656 cache must be multiples of 16 bytes");
}

/// The parts of a token that is all in one place.
TokenDims dims_of(const ConstTensorView& from, bool vectors) {
  const bool fp8 = from.dtype == Dtype::kU8;
  const int d = fp8 ? fp8_656::kDim : static_cast<int>(from.shape[from.rank - 1]);
  // Quantised tokens have their RoPE part apart; others may be cut anywhere.
  return d == fp8_656::kDim ? TokenDims{fp8_656::kLatentDim, fp8_656::kRopeDim, vectors}
                            : TokenDims{d, 0, vectors};
}

}  // namespace

Status append_latent(const ConstTensorView& latent, const ConstTensorView& rope,
                     const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                     const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("kv_cache", kv_cache));
  const int d_rope = rope.present() ? static_cast<int>(rope.shape[1]) : 0;
  const bool vectors = in_vectors(latent) && in_vectors(kv_cache) && (d_rope == 0 || in_vectors(rope)) &&
                       latent.shape[1] % 8 == 0;
  const AppendMap map{static_cast<const std::uint8_t*>(latent.data),
                      static_cast<const std::uint8_t*>(rope.data),
                      latent.strides[0] * 2,
                      d_rope > 0 ? rope.strides[0] * 2 : 0,
                      Integers(slot_mapping),
                      Pages(kv_cache)};
  return move_all(map, latent.dtype, kv_cache.dtype, {static_cast<int>(latent.shape[1]), d_rope, vectors},
                  slot_mapping.shape[0], executor);
}

Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("from", from));
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("to", to));
  return move_all(ConvertMap{Pages(from), Pages(to)}, from.dtype, to.dtype,
                  dims_of(from, in_vectors(from) && in_vectors(to)),
                  from.shape[0] * from.shape[1] * from.shape[2], executor);
}

Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("kv_cache", kv_cache));
  FLASHLATENT_RETURN_IF_ERROR(check_fp8("out", out));
  const auto bytes = static_cast<std::int64_t>(size_of(out.dtype));
  const GatherMap map{Pages(kv_cache), PageTable(block_table, cu_seqlens, first_token),
                      static_cast<std::uint8_t*>(out.data), out.strides[0] * bytes, out.strides[1] * bytes};
  return move_all(map, kv_cache.dtype, out.dtype, dims_of(kv_cache, in_vectors(kv_cache) && in_vectors(out)),
                  out.shape[0] * out.shape[1], executor);
}

}  // namespace flashlatent::cuda
