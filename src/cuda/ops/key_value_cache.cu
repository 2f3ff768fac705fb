// Operations on separate keys and values, in rows or packed; lanes have chunks of a row's elements. A map
// says which token is moved where, element.cuh converts it.
#include <algorithm>

#include "core/divisor.h"
#include "cuda/cuda_backend.h"
#include "cuda/ops/by_warps.h"
#include "cuda/ops/element.cuh"
#include "cuda/ops/places.cuh"

namespace flashlatent::cuda {

namespace key_value_moves {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kResident = 8;  // CTAs of an SM

/// Keys or values, of a cache or as contiguous rows (a row is then a page of one token). Runs of a row's
/// elements are contiguous: all of them; or if packed 16 bytes of a key, one element of a value. Strides in
/// bytes.
struct Tokens {
  std::uint8_t* data;
  const float* scale;  // of e4m3; null: 1
  std::int64_t page_stride, token_stride, head_stride, run_stride, element_stride;
  int scale_stride;
  int run_shift;  // a run has 2^run_shift elements
  bool vectors;   // is a chunk one aligned piece?

  __device__ __forceinline__ const std::uint8_t* token(std::int64_t page, std::int64_t token) const {
    return data + page * page_stride + token * token_stride;
  }
  __device__ __forceinline__ std::int64_t offset(int head, int d) const {
    return head * head_stride + (d >> run_shift) * run_stride + (d & ((1 << run_shift) - 1)) * element_stride;
  }
  template <class Element>
  __device__ __forceinline__ float scale_of(int head) const {
    return kIsE4m3<Element> && scale != nullptr ? __ldg(scale + head * scale_stride) : 1.0F;
  }
};

constexpr int kWholeRow = 30;  // as run_shift

/// Tokens of `view`, whose dimensions are given by number; `run`: the dimension that counts runs, -1 if a row
/// is one run.
Tokens tokens_of(const ConstTensorView& view, const ConstTensorView& scale, int page, int token, int head,
                 int run, int run_shift, int chunk) {
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  auto stride = [&](int dimension) { return dimension < 0 ? 0 : view.strides[dimension] * bytes; };
  Tokens tokens;
  tokens.data = static_cast<std::uint8_t*>(const_cast<void*>(view.data));
  tokens.scale = static_cast<const float*>(scale.data);
  tokens.scale_stride = scale.present() && scale.shape[0] > 1 ? 1 : 0;
  tokens.page_stride = stride(page);
  tokens.token_stride = stride(token);
  tokens.head_stride = stride(head);
  tokens.run_stride = stride(run);
  tokens.element_stride = run_shift == 0 ? stride(run) : bytes;
  tokens.run_shift = run_shift;
  tokens.vectors = run_shift > 0 && in_vectors(view, std::min<std::int64_t>(chunk * bytes, 16));
  return tokens;
}

/// Keys and values, of a cache or as rows.
struct Pair {
  Tokens keys, values;

  Pair(const ConstTensorView& key_rows, const ConstTensorView& value_rows, int chunk)
      : keys(tokens_of(key_rows, {}, 0, -1, 1, -1, kWholeRow, chunk)),
        values(tokens_of(value_rows, {}, 0, -1, 1, -1, kWholeRow, chunk)) {}
  Pair(const ConstKeyValueCache& cache, int chunk) {
    const bool packed = cache.keys.rank == 5;
    const int key_shift = cache.keys.dtype == Dtype::kU8 ? 4 : 3;  // 16 bytes
    keys = packed ? tokens_of(cache.keys, cache.key_scale, 0, 3, 1, 2, key_shift, chunk)
                  : tokens_of(cache.keys, cache.key_scale, 0, 1, 2, -1, kWholeRow, chunk);
    values = packed ? tokens_of(cache.values, cache.value_scale, 0, 3, 1, 2, 0, chunk)
                    : tokens_of(cache.values, cache.value_scale, 0, 1, 2, -1, kWholeRow, chunk);
  }
};

/// The extents of a cache of either layout.
struct CacheShape {
  std::int64_t pages, page_size, heads, qk_dim, v_dim;

  explicit CacheShape(const ConstKeyValueCache& cache) {
    const auto& k = cache.keys.shape;
    const auto& v = cache.values.shape;
    if (cache.keys.rank == 5) {
      *this = CacheShape{k[0], k[3], k[1], k[2] * k[4], v[2]};
    } else {
      *this = CacheShape{k[0], k[1], k[2], k[3], v[3]};
    }
  }

 private:
  CacheShape(std::int64_t p, std::int64_t s, std::int64_t h, std::int64_t q, std::int64_t v)
      : pages(p), page_size(s), heads(h), qk_dim(q), v_dim(v) {}
};

struct Place {
  std::int64_t page = -1, token = 0;
};
/// One token's move. With null as target it is skipped; with null as source it becomes 0.
struct Move {
  Place from, to;
};

/// takes(): the types that the operation is compiled for. near(): what a warp looks up once, for its first
/// token.
struct AppendMap {
  template <class Format, class From, class To>
  static constexpr bool takes() {
    return !kIsE4m3<From>;
  }
  Integers slots;
  std::int64_t pages, page_size;

  __device__ __forceinline__ int near(std::int64_t) const { return 0; }
  __device__ __forceinline__ Move operator()(std::int64_t i, int) const {
    const std::int64_t slot = slots.at(i);
    if (slot < 0 || slot >= pages * page_size) return {};
    return {{i, 0}, {slot / page_size, slot % page_size}};
  }
};

struct GatherMap {
  template <class Format, class From, class To>
  static constexpr bool takes() {
    return !kIsE4m3<To>;
  }
  PageTable table;
  std::int64_t pages, page_size;

  __device__ __forceinline__ int near(std::int64_t row) const { return table.request_of(row); }
  __device__ __forceinline__ Move operator()(std::int64_t row, int request) const {
    const PageTable::Found found = table.find(row, request, pages, page_size);
    if (!found.row) return {};
    return {{found.page, found.offset}, {row, 0}};
  }
};

/// The whole of a cache.
struct ConvertMap {
  template <class Format, class From, class To>
  static constexpr bool takes() {
    return true;
  }
  std::int64_t page_size;

  __device__ __forceinline__ int near(std::int64_t) const { return 0; }
  __device__ __forceinline__ Move operator()(std::int64_t i, int) const {
    const Place place = {i / page_size, i % page_size};
    return {place, place};
  }
};

/// The keys, or the values, of both sides.
struct Side {
  Tokens from, to;
  int dim;
  Divisor chunks;  // of a row
};

/// A warp has 2^log_tokens tokens (1, 4, 16 or 32) of `heads` heads; keys and values, or one of these where
/// they are `apart`. `shares` warps have all heads.
struct Work {
  Side sides[2];
  std::int64_t tokens, units;
  int log_tokens, shares, heads;
  bool apart;
};

template <class From, class To>
__device__ __forceinline__ void move_side(const Side& side, const Move& move, int first_head, int heads,
                                          int first, int step) {
  constexpr int kCount = kChunk<To>;
  constexpr int kBatch = 32 / kCount;  // chunks of a lane in flight
  const std::uint8_t* from = side.from.token(move.from.page, move.from.token);
  auto* to = const_cast<std::uint8_t*>(side.to.token(move.to.page, move.to.token));
  const int pieces = heads * side.chunks.value;
  for (; first < pieces; first += kBatch * step) {
    Bits<From> in[kBatch][kCount] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int piece = first + i * step;
      if (piece >= pieces || move.from.page < 0) continue;
      const int head = first_head + side.chunks.quotient(piece), d = side.chunks.remainder(piece) * kCount;
      const int count = min(kCount, side.dim - d);
#pragma unroll
      for (int j = 0; j < kCount; j += kPiece<From, To>) {
        load_chunk<kPiece<From, To>>(from + side.from.offset(head, d + j), side.from.element_stride,
                                     count - j, side.from.vectors, in[i] + j);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int piece = first + i * step;
      if (piece >= pieces) continue;
      const int head = first_head + side.chunks.quotient(piece), d = side.chunks.remainder(piece) * kCount;
      const int count = min(kCount, side.dim - d);
      Bits<To> out[kCount] = {};
      if (move.from.page >= 0) {
        convert_chunk<From, To>(in[i], side.from.scale_of<From>(head), side.to.scale_of<To>(head), out);
      }
      store_chunk(to + side.to.offset(head, d), side.to.element_stride, count, side.to.vectors, out);
    }
  }
}

template <class From, class To, class Map>
__global__ void __launch_bounds__(kThreads, kResident)
    move_kernel(const __grid_constant__ Map map, const __grid_constant__ Work work) {
  const int lane = threadIdx.x % 32;
  const std::int64_t unit = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (unit >= work.units) return;
  const std::int64_t share = work.apart ? unit / 2 : unit;
  const std::int64_t first_token = share / work.shares << work.log_tokens;
  const int near = map.near(first_token);
  const std::int64_t token = first_token + (lane & ((1 << work.log_tokens) - 1));
  if (token >= work.tokens) return;
  const Move move = map(token, near);
  if (move.to.page < 0) return;
  const int head = static_cast<int>(share % work.shares) * work.heads;
  const int first = lane >> work.log_tokens, step = 32 >> work.log_tokens;
  const int first_side = work.apart ? static_cast<int>(unit % 2) : 0;
#pragma unroll 1  // less code, for which few tokens would wait
  for (int side = first_side; side < (work.apart ? first_side + 1 : 2); ++side) {
    move_side<From, To>(work.sides[side], move, head, work.heads, first, step);
  }
}

int chunk_of(Dtype to) {
  return to == Dtype::kU8 ? kChunk<E4m3> : kChunk<__half>;
}

template <class Map>
Status move_all(const Map& map, const Pair& from, Dtype from_dtype, const Pair& to, Dtype to_dtype,
                const CacheShape& shape, std::int64_t tokens, const Executor& executor) {
  if (tokens == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(int multiprocessor_count, multiprocessors(executor.device));

  const int chunk = chunk_of(to_dtype);
  auto side = [&](const Tokens& a, const Tokens& b, std::int64_t dim) {
    return Side{a, b, static_cast<int>(dim),
                Divisor(static_cast<int>(std::max<std::int64_t>((dim + chunk - 1) / chunk, 1)))};
  };
  Work work = {{side(from.keys, to.keys, shape.qk_dim), side(from.values, to.values, shape.v_dim)},
               tokens,
               0,
               0,
               1,
               static_cast<int>(shape.heads),
               false};
  // Packed tokens lie side by side, so lanes take neighbouring tokens once there are tokens for all
  // multiprocessors, or for a quarter of these if packed tokens are written. Two chunks of 16 tokens are at
  // least 32 contiguous bytes, in rows and in packed elements; packed e4m3 needs 32 tokens.
  const bool from_packed = from.values.run_shift == 0, to_packed = to.values.run_shift == 0;
  if (tokens * shape.heads < (to_packed ? 8 : 32) * multiprocessor_count) {
    work.log_tokens = 0;
  } else if (!from_packed && !to_packed) {
    work.log_tokens = 2;
  } else {
    work.log_tokens = to_packed && to_dtype == Dtype::kU8 ? 5 : 4;
    work.shares = work.heads;
    work.heads = 1;
  }
  work.units = ((tokens - 1 >> work.log_tokens) + 1) * work.shares;
  // While there are enough warps, keys and values go to different warps.
  work.apart = 2 * work.units <= multiprocessor_count * kResident * kWarps;
  if (work.apart) work.units *= 2;
  return with_types<E4m3, Map, /*kPlain=*/true>(from_dtype, to_dtype, [&](auto from_type, auto to_type) {
    return launch_warps<kThreads>(move_kernel<decltype(from_type), decltype(to_type), Map>, work.units,
                                  executor, map, work);
  });
}

}  // namespace

}  // namespace key_value_moves

Status append_kv(const ConstTensorView& keys, const ConstTensorView& values,
                 const ConstTensorView& slot_mapping, const KeyValueCache& cache, const Executor& executor) {
  using namespace key_value_moves;
  const CacheShape shape(cache);
  const int chunk = chunk_of(cache.keys.dtype);
  return move_all(key_value_moves::AppendMap{Integers(slot_mapping), shape.pages, shape.page_size},
                  Pair(keys, values, chunk), keys.dtype, Pair(cache, chunk), cache.keys.dtype, shape,
                  slot_mapping.shape[0], executor);
}

Status gather_kv(const ConstKeyValueCache& cache, const ConstTensorView& block_table,
                 const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                 const TensorView& keys, const TensorView& values, const Executor& executor) {
  using namespace key_value_moves;
  const CacheShape shape(cache);
  const int chunk = chunk_of(keys.dtype);
  return move_all(key_value_moves::GatherMap{PageTable(block_table, cu_seqlens, first_token), shape.pages,
                                             shape.page_size},
                  Pair(cache, chunk), cache.keys.dtype, Pair(keys, values, chunk), keys.dtype, shape,
                  keys.shape[0], executor);
}

Status convert_kv(const ConstKeyValueCache& from, const KeyValueCache& to, const Executor& executor) {
  using namespace key_value_moves;
  const CacheShape shape(from);
  const int chunk = chunk_of(to.keys.dtype);
  return move_all(key_value_moves::ConvertMap{shape.page_size}, Pair(from, chunk), from.keys.dtype,
                  Pair(to, chunk), to.keys.dtype, shape, shape.pages * shape.page_size, executor);
}

}  // namespace flashlatent::cuda
