#include "plan/scratch.h"

namespace flashlatent {

std::pmr::memory_resource* scratch() {
  thread_local std::pmr::unsynchronized_pool_resource pool(
      {.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 22});
  return &pool;
}

}  // namespace flashlatent
