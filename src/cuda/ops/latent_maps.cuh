// Which tokens operations on latent caches move, and where. A map has the move of each token; kernels that
// use it convert the tokens.
#pragma once

#include <type_traits>

#include "cuda/ops/places.cuh"
#include "cuda/ops/token.cuh"

namespace flashlatent::cuda {

/// A cache of one KV head, token by token; strides in bytes. What maps ask of a cache: where a token is read,
/// and where it, or a gathered row, is written.
struct TokenPages {
  using Move = cuda::Move;
  static constexpr std::int64_t heads = 1;
  std::uint8_t* data;
  std::int64_t page_stride, token_stride, pages, page_size;

  explicit TokenPages(const ConstTensorView& view)
      : data(static_cast<std::uint8_t*>(const_cast<void*>(view.data))),
        page_stride(view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype))),
        token_stride(view.strides[1] * static_cast<std::int64_t>(size_of(view.dtype))),
        pages(view.shape[0]),
        page_size(view.shape[1]) {}

  __device__ __forceinline__ std::uint8_t* token(std::int64_t page, std::int64_t offset) const {
    return data + page * page_stride + offset * token_stride;
  }
  __device__ __forceinline__ void read(Move& move, std::int64_t page, std::int64_t offset,
                                       std::int64_t) const {
    move.from = move.rope = token(page, offset);
  }
  __device__ __forceinline__ void write(Move& move, std::int64_t page, std::int64_t offset,
                                        std::int64_t) const {
    move.to = token(page, offset);
  }
  __device__ __forceinline__ static void write_row(Move& move, std::uint8_t* row) { move.to = row; }
};

/// A cache of any number of KV heads.
struct HeadPages {
  using Move = cuda::Move;
  std::uint8_t* data;
  std::int64_t page_stride, token_stride, head_stride, pages, page_size, heads;

  explicit HeadPages(const ConstTensorView& view)
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
  __device__ __forceinline__ void read(Move& move, std::int64_t page, std::int64_t offset,
                                       std::int64_t head) const {
    move.from = move.rope = token(page, offset, head);
  }
  __device__ __forceinline__ void write(Move& move, std::int64_t page, std::int64_t offset,
                                        std::int64_t head) const {
    move.to = token(page, offset, head);
  }
  __device__ __forceinline__ static void write_row(Move& move, std::uint8_t* row) { move.to = row; }
};

// takes(): the types that an operation is compiled for, where `Format` stands for a cache's bytes. near():
// what a warp looks up once, for its first item.

template <class Cache>
struct LatentAppend {
  template <class Format, class From, class To>
  static constexpr bool takes() {
    return !std::is_same_v<From, Format>;
  }
  const std::uint8_t* latent;
  const std::uint8_t* rope;                 // see Move
  std::int64_t latent_stride, rope_stride;  // bytes
  Integers slots;
  Cache cache;

  /// `rope_of` may be absent.
  LatentAppend(const ConstTensorView& latent_of, const ConstTensorView& rope_of,
               const ConstTensorView& slot_mapping, const Cache& kv_cache)
      : latent(static_cast<const std::uint8_t*>(latent_of.data)),
        rope(nullptr),
        latent_stride(latent_of.strides[0] * 2),
        rope_stride(0),
        slots(slot_mapping),
        cache(kv_cache) {
    if (!rope_of.present() || rope_of.shape[1] == 0) return;
    rope = static_cast<const std::uint8_t*>(rope_of.data) - latent_of.shape[1] * 2;
    rope_stride = rope_of.strides[0] * 2;
  }

  __device__ __forceinline__ int near(std::int64_t) const { return 0; }
  __device__ __forceinline__ typename Cache::Move operator()(std::int64_t i, int) const {
    const std::int64_t slot = slots.at(i);
    if (slot < 0 || slot >= cache.pages * cache.page_size) return {};
    typename Cache::Move move{latent + i * latent_stride, rope + i * rope_stride};
    cache.write(move, slot / cache.page_size, slot % cache.page_size, 0);
    return move;
  }
};

/// The whole of a cache.
template <class Cache>
struct LatentConvert {
  template <class Format, class From, class To>
  static constexpr bool takes() {
    return true;
  }
  Cache from, to;

  __device__ __forceinline__ int near(std::int64_t) const { return 0; }
  __device__ __forceinline__ typename Cache::Move operator()(std::int64_t i, int) const {
    const std::int64_t head = i % from.heads, token = i / from.heads;
    const std::int64_t page = token / from.page_size, offset = token % from.page_size;
    typename Cache::Move move{};
    from.read(move, page, offset, head);
    to.write(move, page, offset, head);
    return move;
  }
};

template <class Cache>
struct LatentGather {
  template <class Format, class From, class To>
  static constexpr bool takes() {
    return !std::is_same_v<To, Format> || std::is_same_v<From, To>;
  }
  Cache cache;
  PageTable table;
  std::uint8_t* out;
  std::int64_t row_stride, head_stride;  // bytes

  LatentGather(const Cache& kv_cache, const PageTable& pages, const TensorView& rows)
      : cache(kv_cache),
        table(pages),
        out(static_cast<std::uint8_t*>(rows.data)),
        row_stride(rows.strides[0] * static_cast<std::int64_t>(size_of(rows.dtype))),
        head_stride(rows.strides[1] * static_cast<std::int64_t>(size_of(rows.dtype))) {}

  __device__ __forceinline__ int near(std::int64_t i) const { return table.request_of(i / cache.heads); }
  __device__ __forceinline__ typename Cache::Move operator()(std::int64_t i, int request) const {
    const std::int64_t head = i % cache.heads, row = i / cache.heads;
    const PageTable::Found found = table.find(row, request, cache.pages, cache.page_size);
    typename Cache::Move move{};
    if (!found.row) return move;
    Cache::write_row(move, out + row * row_stride + head * head_stride);
    if (found.page >= 0) cache.read(move, found.page, found.offset, head);
    return move;
  }
};

}  // namespace flashlatent::cuda
