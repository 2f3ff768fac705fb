// Shared by kernels that write to peers' memory: the number of the call, and the places of its words
// (core/exchange_memory.h).
#pragma once

#include "core/exchange_memory.h"
#include "cuda/sm90/ptx/peer_word.cuh"
#include "flashlatent/exchange.h"

namespace flashlatent::cuda {

template <class Pack>
struct PeerMemory {
  exchange::Layout<Pack> layout;
  std::uint8_t* memory[kMostPeers];
  int rank;
};

/// The number of bytes decides where words are, in calls of any shapes.
template <class Pack>
PeerMemory<Pack> peer_memory(const Peers& peers, int extent) {
  PeerMemory<Pack> result = {};
  const auto world = static_cast<int>(peers.memory.size());
  result.layout = exchange::layout_of<Pack>(peers.bytes, extent, world);
  for (int i = 0; i < world; ++i) result.memory[i] = static_cast<std::uint8_t*>(peers.memory[i]);
  result.rank = peers.rank;
  return result;
}

/// A pack as it travels.
template <class Pack>
struct Words {
  static constexpr int kData = Pack::kWords * exchange::kWordData / sizeof(std::uint32_t);

  ptx::Word128 words[Pack::kWords];

  __device__ __forceinline__ static Words tagged(const std::uint32_t (&data)[kData], std::uint32_t tag) {
    Words sent;
#pragma unroll
    for (int i = 0; i < Pack::kWords; ++i) {
      sent.words[i] = {joined(data[3 * i], data[3 * i + 1]), joined(data[3 * i + 2], tag)};
    }
    return sent;
  }
  __device__ __forceinline__ void untag(std::uint32_t (&data)[kData]) const {
#pragma unroll
    for (int i = 0; i < Pack::kWords; ++i) {
      data[3 * i] = static_cast<std::uint32_t>(words[i].low);
      data[3 * i + 1] = static_cast<std::uint32_t>(words[i].low >> 32);
      data[3 * i + 2] = static_cast<std::uint32_t>(words[i].high);
    }
  }

  __device__ __forceinline__ void store(ptx::Word128* to) const {
#pragma unroll
    for (int i = 0; i < Pack::kWords; ++i) ptx::store_at_system(to + i * exchange::kGroup, words[i]);
  }
  __device__ __forceinline__ static Words load(const ptx::Word128* from) {
    Words there;
#pragma unroll
    for (int i = 0; i < Pack::kWords; ++i) {
      there.words[i] = ptx::load_at_system(from + i * exchange::kGroup);
    }
    return there;
  }

  __device__ __forceinline__ bool have(std::uint32_t tag) const {
    bool all = true;
#pragma unroll
    for (const ptx::Word128& word : words) all = all && static_cast<std::uint32_t>(word.high >> 32) == tag;
    return all;
  }
  __device__ __forceinline__ std::uint32_t tag() const {
    return static_cast<std::uint32_t>(words[0].high >> 32);
  }

 private:
  __device__ __forceinline__ static std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
    return static_cast<std::uint64_t>(high) << 32 | low;
  }
};

/// A call of one rank.
template <class Pack>
class PeerCall {
 public:
  __device__ __forceinline__ explicit PeerCall(const PeerMemory<Pack>& peers)
      : peers_(peers),
        own_(peers.memory[peers.rank]),
        epoch_(*reinterpret_cast<const volatile std::uint64_t*>(own_)) {}

  __device__ __forceinline__ std::uint32_t tag() const { return epoch_.tag(); }
  __device__ __forceinline__ int world() const { return peers_.layout.world; }
  __device__ __forceinline__ int rank() const { return peers_.rank; }
  __device__ __forceinline__ int peer(int after) const {
    const int rank = peers_.rank + after;
    return rank < world() ? rank : rank - world();
  }

  /// Where this rank writes a pack for `to`.
  __device__ __forceinline__ ptx::Word128* to_send(int to, int pack) const {
    return words_of(peers_.memory[to], peers_.rank, to, pack);
  }
  /// Where the pack of `from` arrives.
  __device__ __forceinline__ const ptx::Word128* to_arrive(int from, int pack) const {
    return words_of(own_, from, peers_.rank, pack);
  }

  /// Called once the CTA knows its call's number: the next launch counts on. Readers of the count have waited
  /// for the end of this launch, so nothing else need be ordered.
  __device__ __forceinline__ void count() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(own_),
                exchange::Epoch::arrivals(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)));
    }
  }

 private:
  __device__ __forceinline__ ptx::Word128* words_of(std::uint8_t* memory, int sender, int receiver,
                                                    int pack) const {
    return reinterpret_cast<ptx::Word128*>(memory +
                                           peers_.layout.word(epoch_.parity(), sender, receiver, pack));
  }

  const PeerMemory<Pack>& peers_;
  std::uint8_t* own_;
  const exchange::Epoch epoch_;
};

}  // namespace flashlatent::cuda
