// A compiled kernel as a row of data. Files of instances include this and no other host header: with the
// headers of a launch such a file compiles in 8.4 s, without in 4.4 s (an empty one in 1.8 s).
#pragma once

#include <array>
#include <cstddef>

namespace flashlatent::cuda {

struct CompiledKernel {
  const void* (*function)();  ///< Called at launch: a kernel's address is no constant expression.
  int threads;                ///< Threads of a CTA.
  std::size_t shared_bytes;   ///< Bytes of dynamic shared memory.
};

/// A kernel with CTAs of Config::kThreads threads and a Shared in shared memory.
template <auto kKernel, class Config, class Shared>
constexpr CompiledKernel compiled_kernel() {
  return {[] { return reinterpret_cast<const void*>(kKernel); }, Config::kThreads, sizeof(Shared)};
}

/// Returns `table`. Does not compile unless the rows have these keys in this order: builds without the table
/// choose a kernel by the keys.
template <class Key, class Instance, std::size_t kCount>
consteval std::array<Instance, kCount> of_keys(const std::array<Key, kCount>& keys,
                                               const std::array<Instance, kCount>& table) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (!(table[i].key == keys[i])) throw "a row of the table is not of its key";
  }
  return table;
}

}  // namespace flashlatent::cuda
