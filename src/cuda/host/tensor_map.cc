#include "cuda/host/tensor_map.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "core/message.h"
#include "cuda/host/atoms_map.h"
#include "cuda/host/runtime.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// cuTensorMapEncodeTiled, found at run time so that the library does not link libcuda.
Result<Encode> find_encode() {
  static const Result<Encode> found = []() -> Result<Encode> {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult query = cudaDriverEntryPointSymbolNotFound;
    FLASHLATENT_RETURN_IF_ERROR(
        to_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                   cudaEnableDefault, &query),
                  "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)"));
    if (query != cudaDriverEntryPointSuccess || function == nullptr) {
      return Status(StatusCode::kUnavailable,
                    "the CUDA driver has no cuTensorMapEncodeTiled; 12.0 or newer has");
    }
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

/// Everything that a map is made from. It has no padding, because keys are compared as bytes.
constexpr int kMostDimensions = 5;
struct Key {
  const void* data = nullptr;
  cuuint64_t extents[kMostDimensions] = {};
  cuuint64_t strides[kMostDimensions - 1] = {};  // bytes, of all dimensions but the innermost
  cuuint32_t box[kMostDimensions] = {};
  std::uint32_t dimensions = 0;
  std::uint32_t dtype = 0, swizzle = 0;
};
static_assert(std::has_unique_object_representations_v<Key>);

/// The maps that a thread made last: making one takes the driver long, and layers use the same memory
/// repeatedly. A map depends only on its key, so none becomes stale.
struct Slot {
  Key key;
  CUtensorMap map;
};
constexpr int kSlotBits = 7;

Slot& slot_of(const Key& key) {
  thread_local std::array<Slot, 1 << kSlotBits> slots{};
  const std::uint64_t hash =
      (reinterpret_cast<std::uintptr_t>(key.data) + key.dimensions) * 0x9E3779B97F4A7C15ULL;
  return slots[hash >> (64 - kSlotBits)];
}

CUtensorMapDataType type_of(Dtype dtype) {
  return dtype == Dtype::kU8     ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : dtype == Dtype::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

CUtensorMapSwizzle swizzle_of(int bytes) {
  return bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : CU_TENSOR_MAP_SWIZZLE_NONE;
}

/// The map of `key`, whose data and type are taken from the view. `name`: the argument, for errors.
Status map_of(Key key, const char* name, const ConstTensorView& view, CUtensorMap& map) {
  key.data = view.data;
  key.dtype = static_cast<std::uint32_t>(view.dtype);
  for (std::uint32_t i = 1; i < key.dimensions; ++i) {
    if (key.extents[i] == 1) key.strides[i - 1] = 16;  // not used, but the driver checks it
  }
  Slot& slot = slot_of(key);
  if (std::memcmp(&slot.key, &key, sizeof(key)) != 0) {
    FLASHLATENT_ASSIGN_OR_RETURN(Encode encode, find_encode());
    const cuuint32_t steps[kMostDimensions] = {1, 1, 1, 1, 1};
    slot.key = {};
    const CUresult result = encode(&slot.map, type_of(view.dtype), key.dimensions,
                                   const_cast<void*>(view.data), key.extents, key.strides, key.box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(static_cast<int>(key.swizzle)),
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
      return invalid_argument(name, " is ", to_string(view), "; TMA refuses it (driver error ",
                              static_cast<int>(result),
                              "): strides must be multiples of 16 bytes below 2^40");
    }
    slot.key = key;
  }
  map = slot.map;
  return {};
}

}  // namespace

Status box_map(const char* name, const ConstTensorView& view, const int (&order)[4],
               const std::uint32_t (&box)[4], int swizzle, CUtensorMap& map) {
  Key key = {.dimensions = 4, .swizzle = static_cast<std::uint32_t>(swizzle)};
  const cuuint64_t element = size_of(view.dtype);
  for (int i = 0; i < 4; ++i) {
    key.extents[i] = view.shape[order[i]];
    key.box[i] = box[i];
    if (i > 0) key.strides[i - 1] = view.strides[order[i]] * element;
  }
  return map_of(key, name, view, map);
}

Status kv_tensor_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map) {
  // element, token in the page, head, page
  return box_map(name, cache, {3, 1, 2, 0}, {64, static_cast<std::uint32_t>(box_tokens), 1, 1}, 128, map);
}

Status kv_block_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map) {
  constexpr int kTokens = 16;
  const std::int64_t element = size_of(cache.dtype), chunk = 128 / element;
  const std::int64_t pages = cache.shape[0], page_size = cache.shape[1], heads = cache.shape[2];
  const std::int64_t page_stride = cache.strides[0], token_stride = cache.strides[1], dim = cache.shape[3];
  const std::int64_t columns = (heads - 1) * cache.strides[2] + dim;  // of all heads
  // Column, token, chunk, 16 tokens, page.
  const std::int64_t extents[] = {chunk, kTokens, columns / chunk, page_size / kTokens, pages};
  const std::int64_t strides[] = {token_stride, chunk, kTokens * token_stride, page_stride};
  const std::int64_t box[] = {chunk, kTokens, dim / chunk, box_tokens / kTokens, 1};
  Key key = {.dimensions = kMostDimensions, .swizzle = 128};
  for (int i = 0; i < kMostDimensions; ++i) {
    key.extents[i] = extents[i];
    key.box[i] = static_cast<cuuint32_t>(box[i]);
    if (i > 0) key.strides[i - 1] = strides[i - 1] * element;
  }
  return map_of(key, name, cache, map);
}

Status kv_atoms_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map) {
  constexpr int kTokens = 8, kChunk = 64;
  const std::int64_t token_stride = cache.strides[1], dim = cache.shape[3];
  const std::int64_t extents[] = {kChunk, kTokens, dim / kChunk, cache.shape[1] / kTokens, cache.shape[0]};
  const std::int64_t strides[] = {token_stride, kChunk, kTokens * token_stride, cache.strides[0]};
  const std::int64_t box[] = {kChunk, kTokens, dim / kChunk, box_tokens / kTokens, 1};
  Key key = {.dimensions = kMostDimensions, .swizzle = kChunk};
  for (int i = 0; i < kMostDimensions; ++i) {
    key.extents[i] = extents[i];
    key.box[i] = static_cast<cuuint32_t>(box[i]);
    if (i > 0) key.strides[i - 1] = strides[i - 1];
  }
  return map_of(key, name, cache, map);
}

Status kv_chunks_map(const char* name, const ConstTensorView& cache, int box_tokens, CUtensorMap& map) {
  const std::int64_t chunk = 128 / size_of(cache.dtype), dim = cache.shape[3];
  ConstTensorView chunks = cache;
  chunks.shape[2] = ((cache.shape[2] - 1) * cache.strides[2] + dim) / chunk;  // of all heads
  chunks.strides[2] = chunk;
  chunks.shape[3] = chunk;
  return box_map(name, chunks, {3, 1, 2, 0},
                 {static_cast<std::uint32_t>(chunk), static_cast<std::uint32_t>(box_tokens),
                  static_cast<std::uint32_t>(dim / chunk), 1},
                 128, map);
}

namespace {

/// Lines of query rows, and how many rows of how many lines a box has.
struct QueryLines {
  ConstTensorView view;  // request, line, row, element
  std::uint32_t rows, lines;

  QueryLines(const ConstTensorView& q, int box_rows, bool in_line) : view(q) {
    if (in_line) {
      view.shape[1] = 1;
      view.shape[2] = q.shape[1] * q.shape[2];
    }
    rows = static_cast<std::uint32_t>(in_line ? box_rows : std::min<std::int64_t>(box_rows, q.shape[2]));
    lines = static_cast<std::uint32_t>(box_rows) / rows;
  }
};

}  // namespace

Status query_rows_map(const char* name, const ConstTensorView& q, int box_rows, bool in_line,
                      CUtensorMap& map) {
  const QueryLines of(q, box_rows, in_line);
  return box_map(name, of.view, {3, 2, 1, 0}, {64, of.rows, of.lines, 1}, 128, map);
}

Status query_chunks_map(const char* name, const ConstTensorView& q, int box_rows, bool in_line,
                        CUtensorMap& map) {
  constexpr std::int64_t kChunk = 64;
  const QueryLines of(q, box_rows, in_line);
  const auto &shape = of.view.shape, &strides = of.view.strides;
  const std::int64_t extents[] = {kChunk, shape[2], shape[1], shape[3] / kChunk, shape[0]};
  const std::int64_t steps[] = {strides[2], strides[1], kChunk, strides[0]};
  const std::int64_t box[] = {kChunk, of.rows, of.lines, shape[3] / kChunk, 1};
  Key key = {.dimensions = kMostDimensions, .swizzle = 128};
  for (int i = 0; i < kMostDimensions; ++i) {
    key.extents[i] = extents[i];
    key.box[i] = static_cast<cuuint32_t>(box[i]);
    if (i > 0) key.strides[i - 1] = steps[i - 1] * static_cast<std::int64_t>(size_of(q.dtype));
  }
  return map_of(key, name, q, map);
}

Status query_group_map(const ConstTensorView& q, int box_tokens, int box_heads, CUtensorMap& map) {
  // element, head, token, request
  return box_map("q", q, {3, 2, 1, 0},
                 {64, static_cast<std::uint32_t>(box_heads), static_cast<std::uint32_t>(box_tokens), 1}, 128,
                 map);
}

}  // namespace flashlatent::cuda
