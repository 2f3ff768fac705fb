// What operations on caches have in common on the host: launches of kernels in which each warp has an item,
// compiled for the types that they read and write.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/host/launch.h"
#include "flashlatent/tensor.h"

namespace flashlatent::cuda {

/// Calls f with a value of the type that the dtype names; for bytes that is `Format`.
template <class Format, class F>
Status with_type(Dtype dtype, F f) {
  if (dtype == Dtype::kBF16) return f(__nv_bfloat16{});
  if (dtype == Dtype::kF16) return f(__half{});
  return f(Format{});
}

/// Where a type of 16 bits is moved to itself, fp16 becomes bf16: one kernel serves both.
template <class T, class Other>
using Moved =
    std::conditional_t<std::is_same_v<T, __half> && std::is_same_v<Other, __half>, __nv_bfloat16, T>;

/// Calls `f` with values of both types, if `Map` is compiled for them. kPlain: also where neither is
/// `Format`.
template <class Format, class Map, bool kPlain, class F>
Status with_types(Dtype from, Dtype to, F f) {
  return with_type<Format>(from, [&](auto from_type) {
    return with_type<Format>(to, [&](auto to_type) -> Status {
      using From = Moved<decltype(from_type), decltype(to_type)>;
      using To = Moved<decltype(to_type), decltype(from_type)>;
      constexpr bool kOfFormat = std::is_same_v<From, Format> || std::is_same_v<To, Format>;
      if constexpr (Map::template takes<Format, From, To>() && (kPlain || kOfFormat)) {
        return f(From{}, To{});
      } else {
        return {StatusCode::kInternal, "a cache operation was asked for types that it does not have"};
      }
    });
  });
}

/// Launches on the current device.
template <int kThreads, class... Parameters, class... Arguments>
Status launch_warps(void (*kernel)(Parameters...), std::int64_t warps, const Executor& executor,
                    const Arguments&... arguments) {
  const std::int64_t blocks = (warps - 1) / (kThreads / 32) + 1;
  if (blocks > kMostBlocks) return too_many_blocks(blocks);
  LaunchShape shape;
  shape.blocks = static_cast<int>(blocks);
  shape.threads = kThreads;
  return launch(kernel, shape, executor, arguments...);
}

}  // namespace flashlatent::cuda
