// Sends queries of all ranks to all ranks, in one launch (core/exchange_memory.h).
//
//   a thread, of each of its packs:
//     stores the pack in every peer's memory, each word with the tag of this call, and in the result here
//   and then, of each pack of each peer that is its:
//     reads the words here until all have the tag, and stores the pack in the result
//
// As in exchange.cu that is one trip over NVLink, no thread waits before it has sent, and a grid has no more
// CTAs than fit on the device at once.
#include <algorithm>

#include "core/divisor.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/host/runtime.h"
#include "cuda/ops/peer_call.cuh"

namespace flashlatent::cuda {

namespace gathering {

namespace {

// Small, so that a few rows occupy as many multiprocessors as there are warps.
constexpr int kThreads = 128;
constexpr int kResident = 4;  // CTAs a multiprocessor

using exchange::QueryPack;

struct Arguments {
  PeerMemory<QueryPack> peers;
  const std::uint8_t* q;
  std::uint8_t* gathered;
  std::int64_t q_strides[3], gathered_strides[3];  // bytes: batch, token, head
  Divisor packs, heads, tokens;                    // of a row, of a rank, of a request
  Divisor count;                                   // packs of a rank
  int row_bytes;
};

/// Where a pack is among the rows of a rank.
struct Place {
  int column, batch, token, head;

  __device__ __forceinline__ Place(const Arguments& args, int pack) {
    const int row = args.packs.quotient(pack), of_head = args.heads.quotient(row);
    column = args.packs.remainder(pack) * QueryPack::kExtent;
    head = args.heads.remainder(row);
    batch = args.tokens.quotient(of_head);
    token = args.tokens.remainder(of_head);
  }

  __device__ __forceinline__ std::int64_t offset(const std::int64_t (&strides)[3], int first_head) const {
    return batch * strides[0] + token * strides[1] + (first_head + head) * strides[2] + column;
  }
};

/// Bytes of a row, `Unit` by `Unit`: all addresses, strides and rows are multiples of it.
template <class Unit>
struct Part {
  static constexpr int kUnits = QueryPack::kExtent / sizeof(Unit);

  union {
    Unit units[kUnits];
    std::uint32_t data[Words<QueryPack>::kData];
  };

  __device__ __forceinline__ Part() {}
  /// At the row's end there may be less than a pack.
  __device__ __forceinline__ void load(const std::uint8_t* row, int bytes) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      units[i] = inside(i, bytes) ? __ldcg(reinterpret_cast<const Unit*>(row) + i) : Unit{};
    }
  }
  __device__ __forceinline__ void store(std::uint8_t* row, int bytes) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (inside(i, bytes)) reinterpret_cast<Unit*>(row)[i] = units[i];
    }
  }

 private:
  __device__ __forceinline__ static bool inside(int unit, int bytes) {
    return unit * static_cast<int>(sizeof(Unit)) < bytes;
  }
};

template <class Unit>
class Gathering {
 public:
  __device__ __forceinline__ explicit Gathering(const Arguments& args) : args_(args), call_(args.peers) {}

  /// Sends this rank's queries to the peers, and stores them in the result here.
  __device__ __forceinline__ void send() const {
    for (int pack = first(); pack < args_.count.value; pack += step()) {
      const Place place(args_, pack);
      Part<Unit> part;
      part.load(args_.q + place.offset(args_.q_strides, 0), args_.row_bytes - place.column);
      const auto words = Words<QueryPack>::tagged(part.data, call_.tag());
      for (int after = 1; after < call_.world(); ++after) {
        words.store(call_.to_send(call_.peer(after), pack));
      }
      store(place, call_.rank(), part);
    }
  }

  __device__ __forceinline__ void count() const { call_.count(); }

  __device__ __forceinline__ void receive() const {
    for (int item = first(); item < args_.count.value * (call_.world() - 1); item += step()) {
      const int from = call_.peer(1 + args_.count.quotient(item)), pack = args_.count.remainder(item);
      const ptx::Word128* arrives = call_.to_arrive(from, pack);
      const Place place(args_, pack);
      auto words = Words<QueryPack>::load(arrives);
      for (ptx::PeerWait wait; !words.have(call_.tag()); words = Words<QueryPack>::load(arrives)) {
        wait.check(call_.tag(), words.tag());
      }
      Part<Unit> part;
      words.untag(part.data);
      store(place, from, part);
    }
  }

 private:
  __device__ __forceinline__ static int first() {
    return static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  }
  __device__ __forceinline__ static int step() { return static_cast<int>(gridDim.x) * kThreads; }

  __device__ __forceinline__ void store(const Place& place, int from, const Part<Unit>& part) const {
    part.store(args_.gathered + place.offset(args_.gathered_strides, from * args_.heads.value),
               args_.row_bytes - place.column);
  }

  const Arguments& args_;
  const PeerCall<QueryPack> call_;
};

template <class Unit>
__global__ void __launch_bounds__(kThreads, kResident)
    exchange_gather_kernel(const __grid_constant__ Arguments args) {
  // The previous call may still run until here, even with another kernel between the two.
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const Gathering<Unit> gathering(args);
  gathering.send();
  gathering.count();
  gathering.receive();
}

/// Do the view's rows consist of whole units of 16 bytes?
bool in_units(const ConstTensorView& view) {
  constexpr std::int64_t kUnit = sizeof(uint4);
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  bool fits = reinterpret_cast<std::uintptr_t>(view.data) % kUnit == 0 && view.shape[3] * size % kUnit == 0;
  for (int i = 0; i < 3; ++i) fits = fits && (view.shape[i] == 1 || view.strides[i] * size % kUnit == 0);
  return fits;
}

void copy_in_bytes(const ConstTensorView& view, std::int64_t (&strides)[3]) {
  for (int i = 0; i < 3; ++i) strides[i] = view.strides[i] * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace

}  // namespace gathering

Status exchange_gather(const Peers& peers, const ConstTensorView& q, const TensorView& gathered,
                       const Executor& executor) {
  using namespace gathering;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(int units, multiprocessors(executor.device));
  if (q.elements() == 0) return {};
  Arguments args = {};
  args.row_bytes = static_cast<int>(q.shape[3] * size_of(q.dtype));
  args.peers = peer_memory<QueryPack>(peers, args.row_bytes);
  args.q = static_cast<const std::uint8_t*>(q.data);
  args.gathered = static_cast<std::uint8_t*>(gathered.data);
  copy_in_bytes(q, args.q_strides);
  copy_in_bytes(gathered, args.gathered_strides);
  args.packs = Divisor(args.peers.layout.packs);
  args.heads = Divisor(static_cast<int>(q.shape[2]));
  args.tokens = Divisor(static_cast<int>(q.shape[1]));
  args.count = Divisor(static_cast<int>(q.shape[0] * q.shape[1] * q.shape[2]) * args.peers.layout.packs);
  const int arriving = args.count.value * (args.peers.layout.world - 1);
  LaunchShape shape;
  shape.blocks = std::min({(arriving - 1) / kThreads + 1, units * kResident, exchange::Epoch::kMostCtas});
  shape.threads = kThreads;
  shape.overlaps_previous = true;
  auto* kernel = in_units(q) && in_units(gathered) ? exchange_gather_kernel<uint4>
                                                   : exchange_gather_kernel<std::uint8_t>;
  return launch(kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
