// Copies pages of any layout as bytes: a warp has a segment of a contiguous run.

#include "cuda/cuda_backend.h"
#include "cuda/ops/by_warps.h"
#include "cuda/ops/places.cuh"

namespace flashlatent::cuda {

namespace page_copies {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kResident = 4;   // CTAs of an SM
constexpr int kLaneWords = 4;  // of a segment
constexpr int kSegment = 32 * kLaneWords;

struct Dimension {
  std::int64_t extent = 1, from_stride = 0, to_stride = 0;  // bytes
};

/// A page is rows of `words`, in up to three dimensions.
struct Pages {
  const std::uint8_t* from;
  std::uint8_t* to;
  Integers pairs;
  std::int64_t from_pages, to_pages, from_stride, to_stride;  // from one page to the next, bytes
  Dimension rows[3];
  std::int64_t words, segments;  // of a row
  std::int64_t items;            // segments of all pairs
};

template <class Word>
__global__ void __launch_bounds__(kThreads, kResident) copy_kernel(const __grid_constant__ Pages pages) {
  const int lane = threadIdx.x % 32;
  const std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (item >= pages.items) return;
  const std::int64_t first = item % pages.segments * kSegment + lane;
  std::int64_t rest = item / pages.segments, from_offset = 0, to_offset = 0;
#pragma unroll
  for (const Dimension& dimension : pages.rows) {
    const std::int64_t index = rest % dimension.extent;
    rest /= dimension.extent;
    from_offset += index * dimension.from_stride;
    to_offset += index * dimension.to_stride;
  }
  const std::int64_t source = pages.pairs.at(rest, 0), destination = pages.pairs.at(rest, 1);
  if (source < 0 || source >= pages.from_pages || destination < 0 || destination >= pages.to_pages) return;
  const auto* from =
      reinterpret_cast<const Word*>(pages.from + source * pages.from_stride + from_offset) + first;
  auto* to = reinterpret_cast<Word*>(pages.to + destination * pages.to_stride + to_offset) + first;
  Word words[kLaneWords];
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) {
    if (first + 32 * i < pages.words) words[i] = from[32 * i];
  }
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) {
    if (first + 32 * i < pages.words) to[32 * i] = words[i];
  }
}

template <class Word>
Status copy_words(Pages pages, std::int64_t row_bytes, std::int64_t pairs, const Executor& executor) {
  pages.words = row_bytes / static_cast<std::int64_t>(sizeof(Word));
  pages.segments = (pages.words + kSegment - 1) / kSegment;
  pages.items = pairs * pages.segments;
  for (const Dimension& dimension : pages.rows) pages.items *= dimension.extent;
  if (pages.items == 0) return {};
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  return launch_warps<kThreads>(copy_kernel<Word>, pages.items, executor, pages);
}

}  // namespace

}  // namespace page_copies

Status copy_pages(const ConstTensorView& from, const TensorView& to, const ConstTensorView& pairs,
                  const Executor& executor) {
  using namespace page_copies;
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  Pages pages = {static_cast<const std::uint8_t*>(from.data),
                 static_cast<std::uint8_t*>(to.data),
                 Integers(pairs),
                 from.shape[0],
                 to.shape[0],
                 from.strides[0] * size,
                 to.strides[0] * size,
                 {},
                 0,
                 0,
                 0};
  // Dimensions that are contiguous in both caches become one row.
  std::int64_t row_bytes = size;
  int dimensions = 0;
  for (int i = from.rank - 1; i > 0; --i) {
    const Dimension dimension = {from.shape[i], from.strides[i] * size, to.strides[i] * size};
    if (dimension.extent == 1) continue;
    if (dimensions == 0 && dimension.from_stride == row_bytes && dimension.to_stride == row_bytes) {
      row_bytes *= dimension.extent;
    } else {
      pages.rows[dimensions++] = dimension;
    }
  }
  // The widest words that all addresses allow.
  auto fits = [&](std::int64_t word) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(from.data) | reinterpret_cast<std::uintptr_t>(to.data);
    std::int64_t bytes = static_cast<std::int64_t>(address) | row_bytes | pages.from_stride | pages.to_stride;
    for (const Dimension& dimension : pages.rows) bytes |= dimension.from_stride | dimension.to_stride;
    return bytes % word == 0;
  };
  if (fits(16)) return copy_words<uint4>(pages, row_bytes, pairs.shape[0], executor);
  if (fits(8)) return copy_words<uint2>(pages, row_bytes, pairs.shape[0], executor);
  if (fits(2)) return copy_words<std::uint16_t>(pages, row_bytes, pairs.shape[0], executor);
  return copy_words<std::uint8_t>(pages, row_bytes, pairs.shape[0], executor);
}

}  // namespace flashlatent::cuda
