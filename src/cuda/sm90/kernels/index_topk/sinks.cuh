// Where scorers put scores.
#pragma once

#include "cuda/sm90/ptx/remote_store.cuh"

namespace flashlatent::cuda::indexer {

/// In the workspace.
struct WorkspaceSink {
  __device__ __forceinline__ void put(std::uint32_t* to, std::uint32_t score) const { *to = score; }
};

/// In shared memory of the cluster's CTA that chooses. Stores complete the bytes that its barrier waits for,
/// so that nobody waits for stores to be done before it says so.
struct ChooserSink {
  const std::uint32_t* row;  ///< The query token's scores, if they were in the workspace.
  std::uint32_t keys;        ///< Of that CTA; an address_in().
  std::uint32_t barrier;     ///< Of that CTA; an address_in().

  __device__ __forceinline__ void put(std::uint32_t* to, std::uint32_t score) const {
    ptx::store_async(keys + static_cast<std::uint32_t>(to - row) * 4, score, barrier);
  }
};

}  // namespace flashlatent::cuda::indexer
