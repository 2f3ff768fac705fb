// Writes a plan's section for prefixes. The host's groups are passed as kernel arguments: memory to copy them
// from might be gone when a graph replays. The device adds what depends on lengths.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "plan/prefix_plan.h"
#include "plan/scratch.h"

namespace flashlatent::cuda {

namespace planning_prefixes {

namespace {

constexpr int kThreads = 1024;
constexpr int kWords = 960;  // kernel arguments have at most 4 KB

/// Words [first, first + count) of header, tiles and members, without the gaps between these.
struct Words {
  std::int32_t first, count, head;  // the first `head` words of all are header and tiles
  std::int32_t values[kWords];
};

/// One CTA writes the words to their places; after the last words it writes each request's Share and own
/// length.
__global__ void __launch_bounds__(kThreads)
    prefix_kernel(const __grid_constant__ prefix::Shape shape, const __grid_constant__ Words words, bool last,
                  const std::int32_t* lengths, void* memory) {
  const prefix::View plan = prefix::view(shape, memory);
  for (int i = threadIdx.x; i < words.count; i += kThreads) {
    const int word = words.first + i;
    auto* place =
        word < words.head ? static_cast<std::int32_t*>(memory) + word : plan.members + (word - words.head);
    *place = words.values[i];
  }
  if (!last) return;
  for (int request = threadIdx.x; request < shape.requests; request += kThreads) {
    plan.shares[request] = {};
  }
  __syncthreads();
  for (int t = threadIdx.x / 32; t < plan.header->tiles; t += kThreads / 32) {
    const prefix::Tile tile = plan.tiles[t];
    for (int i = threadIdx.x % 32; i < tile.members; i += 32) {
      plan.shares[plan.members[tile.member_begin + i]] = prefix::share_of(shape, tile, i);
    }
  }
  __syncthreads();
  for (int request = threadIdx.x; request < shape.requests; request += kThreads) {
    plan.own_lengths[request] = prefix::own_length(shape, lengths[request], plan.shares[request]);
  }
}

}  // namespace

}  // namespace planning_prefixes

Status build_plan(const schedule::Geometry& geometry, const prefix::Shape& shape,
                  std::span<const prefix::Group> groups, const std::int32_t* host_lengths,
                  const ConstTensorView& cache_seqlens, Memory plan, const Executor& executor, bool packs) {
  using namespace planning_prefixes;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  std::pmr::vector<std::int64_t> host(prefix::bytes(shape) / 8 + 1, scratch());
  prefix::build_tiles(shape, geometry, groups, host_lengths, host.data());
  const prefix::View view = prefix::view(shape, host.data());
  const auto words_of = [](std::size_t bytes) {
    return static_cast<std::int32_t>(bytes / sizeof(std::int32_t));
  };
  const std::int32_t head = words_of(sizeof(prefix::Header) + view.header->tiles * sizeof(prefix::Tile));
  const std::int32_t all = head + view.header->members;
  void* memory = static_cast<std::uint8_t*>(plan.data) + prefix::offset(geometry);
  LaunchShape launch_shape;
  launch_shape.threads = kThreads;
  for (std::int32_t first = 0; first < all; first += kWords) {
    planning_prefixes::Words words{first, std::min(kWords, all - first), head, {}};
    const std::int32_t from_head = std::clamp(head - first, 0, words.count);
    std::memcpy(words.values, reinterpret_cast<const std::int32_t*>(host.data()) + first,
                from_head * sizeof(std::int32_t));
    std::memcpy(words.values + from_head, view.members + std::max(first - head, 0),
                (words.count - from_head) * sizeof(std::int32_t));
    FLASHLATENT_RETURN_IF_ERROR(launch(prefix_kernel, launch_shape, executor, shape, words,
                                       first + kWords >= all,
                                       static_cast<const std::int32_t*>(cache_seqlens.data), memory));
  }
  ConstTensorView own = cache_seqlens;
  own.data = prefix::view(shape, memory).own_lengths;
  return build_plan(geometry, own, plan, executor, {.used_parts = view.header->used_parts, .packs = packs});
}

}  // namespace flashlatent::cuda
