// A compiled kernel as a row of data. Files of instances know no more of its launch than this, and read no
// header of the host's: beside its kernels a file took 8.4 s with them, and takes 4.4; an empty one 1.8.
#pragma once

#include <array>
#include <cstddef>

namespace flashlatent::cuda {

struct CompiledKernel {
  const void* (*function)();  ///< To call when it is launched: no constant expression makes one of a kernel.
  int threads;                ///< Of a CTA.
  std::size_t shared_bytes;   ///< Of dynamic shared memory.
};

/// CTAs of Config::kThreads threads with a Shared in shared memory.
template <auto kKernel, class Config, class Shared>
constexpr CompiledKernel compiled_kernel() {
  return {[] { return reinterpret_cast<const void*>(kKernel); }, Config::kThreads, sizeof(Shared)};
}

/// `table`, which does not compile unless its rows have these keys, in their order: a kernel is chosen by the
/// keys, in builds without the table, too.
template <class Key, class Instance, std::size_t kCount>
consteval std::array<Instance, kCount> of_keys(const std::array<Key, kCount>& keys,
                                               const std::array<Instance, kCount>& table) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (!(table[i].key == keys[i])) throw "a row of the table is not of its key";
  }
  return table;
}

}  // namespace flashlatent::cuda
