// Sends partial results to the ranks that have their heads, and merges, in one launch
// (core/exchange_memory.h).
//
//   a thread, of each of its packs:
//     stores the peers' packs in the peers' memories, each word with the tag of this exchange
//     reads the words of its own pack here until all have the tag, and merges them
//
// From decode's result to the peer's result that is one trip over NVLink, without a fence, a flag or a
// barrier: no word says anything about another word. No thread waits before it has sent, and a grid has no
// more CTAs than fit on the device at once, so ranks do not wait for each other in a cycle.
#include <algorithm>

#include "core/divisor.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/host/runtime.h"
#include "cuda/ops/peer_call.cuh"
#include "cuda/sm90/merge/halves_merge.cuh"

namespace flashlatent::cuda {

namespace exchanging {

namespace {

// Small, so that a few rows occupy as many multiprocessors as there are warps.
constexpr int kThreads = 128;
constexpr int kResident = 4;  // CTAs a multiprocessor

using exchange::ResultPack;

struct Arguments {
  PeerMemory<ResultPack> peers;
  const void* partial_out;
  const float* partial_lse;
  const float* sink;
  void* out;
  float* lse;
  std::int64_t partial_out_strides[3];  // batch, token, head
  std::int64_t partial_lse_strides[3];  // batch, head, token
  std::int64_t out_strides[3];          // batch, token, head
  std::int64_t lse_strides[3];          // batch, head, token
  Divisor packs, heads, tokens;         // of a row, of a rank, of a request
  int count, v_dim;                     // packs of a rank
};

/// The place of a rank's pack in the call's tensors.
struct Place {
  int column, batch, token, head;

  __device__ __forceinline__ Place(const Arguments& args, int pack) {
    const int row = args.packs.quotient(pack), of_head = args.heads.quotient(row);
    column = args.packs.remainder(pack) * ResultPack::kExtent;
    head = args.heads.remainder(row);
    batch = args.tokens.quotient(of_head);
    token = args.tokens.remainder(of_head);
  }

  template <class T>
  __device__ __forceinline__ T* in_rows(T* data, const std::int64_t (&strides)[3], int first_head) const {
    return data + batch * strides[0] + token * strides[1] + (first_head + head) * strides[2] + column;
  }
  template <class T>
  __device__ __forceinline__ T* in_lse(T* data, const std::int64_t (&strides)[3], int first_head) const {
    return data + batch * strides[0] + (first_head + head) * strides[1] + token * strides[2];
  }
};

/// Some of a row's values, and the row's lse.
template <class Element>
struct Part {
  using Values = sm90::Pack<Element, ResultPack::kExtent>;
  static constexpr int kValueWords = sizeof(Values) / sizeof(std::uint32_t);
  static_assert(kValueWords + 1 == Words<ResultPack>::kData);

  Values values;
  float lse;

  __device__ __forceinline__ Words<ResultPack> tagged(std::uint32_t tag) const {
    std::uint32_t data[kValueWords + 1];
#pragma unroll
    for (int i = 0; i < kValueWords; ++i) data[i] = reinterpret_cast<const std::uint32_t*>(&values)[i];
    data[kValueWords] = __float_as_uint(lse);
    return Words<ResultPack>::tagged(data, tag);
  }
  __device__ __forceinline__ static Part of(const Words<ResultPack>& arrived) {
    std::uint32_t data[kValueWords + 1];
    arrived.untag(data);
    Part part;
#pragma unroll
    for (int i = 0; i < kValueWords; ++i) reinterpret_cast<std::uint32_t*>(&part.values)[i] = data[i];
    part.lse = __uint_as_float(data[kValueWords]);
    return part;
  }
};

/// kPeers: whose packs are under way together.
template <class Element, int kPeers>
class Exchange {
 public:
  __device__ __forceinline__ explicit Exchange(const Arguments& args) : args_(args), call_(args.peers) {}

  /// Sends the peers their packs of this rank's results.
  __device__ __forceinline__ void send() const {
    for (int pack = first(); pack < args_.count; pack += step()) {
      const Place place(args_, pack);
      for (int begin = 1; begin < call_.world(); begin += kPeers) {
        Part<Element> parts[kPeers];
#pragma unroll
        for (int i = 0; i < kPeers; ++i) {
          if (begin + i < call_.world()) parts[i] = part_of(place, call_.peer(begin + i));
        }
#pragma unroll
        for (int i = 0; i < kPeers; ++i) {
          if (begin + i >= call_.world()) break;
          parts[i].tagged(call_.tag()).store(call_.to_send(call_.peer(begin + i), pack));
        }
      }
    }
  }

  __device__ __forceinline__ void count() const {
    call_.count();
  }

  /// Merges in a fixed order: this rank's result, then those of the ranks after it.
  __device__ __forceinline__ void merge() const {
    for (int pack = first(); pack < args_.count; pack += step()) {
      const Place place(args_, pack);
      const float sink = args_.sink != nullptr ? __ldcg(args_.sink + place.head) : 0;
      sm90::HalvesMerge<Element, ResultPack::kExtent> merge;
      const Part<Element> own = part_of(place, call_.rank());
      merge.add({own.values}, {own.lse});
      for (int begin = 1; begin < call_.world(); begin += kPeers) {
        Words<ResultPack> arrived[kPeers];
        receive(pack, begin, arrived);
        typename Part<Element>::Values values[kPeers];
        float lse[kPeers];
#pragma unroll
        for (int i = 0; i < kPeers; ++i) {
          const Part<Element> part = Part<Element>::of(arrived[i]);
          values[i] = part.values;
          lse[i] = begin + i < call_.world() ? part.lse : -INFINITY;
        }
        merge.add(values, lse);
      }
      store(place, merge.template merged<Element>(args_.sink != nullptr, sink));
      if (place.column == 0) *place.in_lse(args_.lse, args_.lse_strides, 0) = merge.lse();
    }
  }

 private:
  using Values = typename Part<Element>::Values;

  /// A thread has the same packs whether it sends or merges, and a warp has groups of them.
  __device__ __forceinline__ static int first() {
    return static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  }
  __device__ __forceinline__ static int step() {
    return static_cast<int>(gridDim.x) * kThreads;
  }

  /// Only the last pack of a row may be half a pack.
  __device__ __forceinline__ bool is_whole(const Place& place) const {
    return place.column + ResultPack::kExtent <= args_.v_dim;
  }

  /// This rank's result for a pack of rank `of`.
  __device__ __forceinline__ Part<Element> part_of(const Place& place, int of) const {
    const int first_head = of * args_.heads.value;
    const auto* values =
        place.in_rows(static_cast<const Element*>(args_.partial_out), args_.partial_out_strides, first_head);
    Part<Element> part;
    auto* units = reinterpret_cast<uint4*>(&part.values);
    units[0] = __ldcg(reinterpret_cast<const uint4*>(values));
    units[1] = is_whole(place) ? __ldcg(reinterpret_cast<const uint4*>(values) + 1) : uint4{};
    part.lse = __ldcg(place.in_lse(args_.partial_lse, args_.partial_lse_strides, first_head));
    return part;
  }

  __device__ __forceinline__ void store(const Place& place, const Values& merged) const {
    auto* out =
        reinterpret_cast<uint4*>(place.in_rows(static_cast<Element*>(args_.out), args_.out_strides, 0));
    const auto* units = reinterpret_cast<const uint4*>(&merged);
    out[0] = units[0];
    if (is_whole(place)) out[1] = units[1];
  }

  /// The packs of peers from number `begin` on, once all have arrived.
  __device__ __forceinline__ void receive(int pack, int begin, Words<ResultPack> (&arrived)[kPeers]) const {
    const ptx::Word128* from[kPeers];
#pragma unroll
    for (int i = 0; i < kPeers; ++i) {
      from[i] = call_.to_arrive(call_.peer(begin + i < call_.world() ? begin + i : begin), pack);
    }
    for (ptx::PeerWait wait;;) {
#pragma unroll
      for (int i = 0; i < kPeers; ++i) arrived[i] = Words<ResultPack>::load(from[i]);
      bool all = true;
#pragma unroll
      for (int i = 0; i < kPeers; ++i) all = all && arrived[i].have(call_.tag());
      if (all) return;
      wait.check(call_.tag(), arrived[0].tag());
    }
  }

  const Arguments& args_;
  const PeerCall<ResultPack> call_;
};

template <class Element, int kPeers>
__global__ void __launch_bounds__(kThreads, kResident)
    exchange_kernel(const __grid_constant__ Arguments args) {
  // The previous exchange may still run until here, even with another kernel between the two.
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const Exchange<Element, kPeers> exchange(args);
  exchange.send();
  exchange.count();
  exchange.merge();
}

template <class Element>
auto* kernel_for(int world) {
  return world == 2 ? exchange_kernel<Element, 1> : exchange_kernel<Element, 3>;
}

}  // namespace

}  // namespace exchanging

Status exchange_combine(const Peers& peers, const ConstTensorView& partial_out,
                        const ConstTensorView& partial_lse, const ConstTensorView& attn_sink,
                        const TensorView& out, const TensorView& lse, const Executor& executor) {
  using namespace exchanging;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(int units, multiprocessors(executor.device));
  Arguments args = {};
  const auto world = static_cast<int>(peers.memory.size());
  const auto rows = static_cast<int>(out.shape[0] * out.shape[1] * out.shape[2]);
  if (rows == 0) return {};
  args.v_dim = static_cast<int>(out.shape[3]);
  args.peers = peer_memory<ResultPack>(peers, args.v_dim);
  args.partial_out = partial_out.data;
  args.partial_lse = static_cast<const float*>(partial_lse.data);
  args.sink = attn_sink.present() ? static_cast<const float*>(attn_sink.data) : nullptr;
  args.out = out.data;
  args.lse = static_cast<float*>(lse.data);
  std::copy_n(partial_out.strides.begin(), 3, args.partial_out_strides);
  std::copy_n(partial_lse.strides.begin(), 3, args.partial_lse_strides);
  std::copy_n(out.strides.begin(), 3, args.out_strides);
  std::copy_n(lse.strides.begin(), 3, args.lse_strides);
  args.packs = Divisor(args.peers.layout.packs);
  args.heads = Divisor(static_cast<int>(out.shape[2]));
  args.tokens = Divisor(static_cast<int>(out.shape[1]));
  args.count = rows * args.peers.layout.packs;
  LaunchShape shape;
  shape.blocks = std::min({(args.count - 1) / kThreads + 1, units * kResident, exchange::Epoch::kMostCtas});
  shape.threads = kThreads;
  shape.overlaps_previous = true;
  auto* kernel = out.dtype == Dtype::kBF16 ? kernel_for<__nv_bfloat16>(world) : kernel_for<__half>(world);
  return launch(kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
