// Partial results to the ranks whose heads they are, and the merge, in one launch (core/exchange_memory.h).
//
//   a CTA, with the same rows on every rank:
//     stores the peers' rows in the peers' memories | fence | sets its flag at each of them
//     waits for the peers' flags here
//     merges its rows: a warp a row, the parts in order of ranks
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "core/exchange_memory.h"
#include "cuda/common/launch.h"
#include "cuda/common/runtime.h"
#include "cuda/cuda_backend.h"
#include "cuda/parts/arguments.h"

namespace flashlatent::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Arguments {
  exchange::Layout layout;
  std::uint8_t* memory[kMostPeers];
  const void* partial_out;
  const float* partial_lse;
  const float* sink;
  void* out;
  float* lse;
  std::int64_t partial_out_strides[3];  // batch, token, head
  std::int64_t partial_lse_strides[3];  // batch, head, token
  std::int64_t out_strides[3];          // batch, token, head
  std::int64_t lse_strides[3];          // batch, head, token
  int rank, rows, tokens, heads;        // rows and heads of a rank
};

__device__ __forceinline__ void set_flag(void* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t read_flag(const void* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

/// Where a row of a rank's is in the call's tensors.
struct Place {
  std::int64_t batch;
  int token, head;

  __device__ __forceinline__ Place(const Arguments& args, int row)
      : batch(row / args.heads / args.tokens),
        token(row / args.heads % args.tokens),
        head(row % args.heads) {}

  template <class T>
  __device__ __forceinline__ T* in_rows(T* data, const std::int64_t (&strides)[3], int first_head) const {
    return data + batch * strides[0] + token * strides[1] + (first_head + head) * strides[2];
  }
  __device__ __forceinline__ std::int64_t in_lse(const std::int64_t (&strides)[3], int first_head) const {
    return batch * strides[0] + (first_head + head) * strides[1] + token * strides[2];
  }
};

/// Two elements of 16 bits.
template <class Element>
__device__ __forceinline__ float2 widen(std::uint32_t pair);
template <>
__device__ __forceinline__ float2 widen<__nv_bfloat16>(std::uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&pair));
}
template <>
__device__ __forceinline__ float2 widen<__half>(std::uint32_t pair) {
  return __half22float2(*reinterpret_cast<__half2*>(&pair));
}
template <class Element>
__device__ __forceinline__ std::uint32_t narrow(float2 x);
template <>
__device__ __forceinline__ std::uint32_t narrow<__nv_bfloat16>(float2 x) {
  const __nv_bfloat162 pair = __float22bfloat162_rn(x);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ std::uint32_t narrow<__half>(float2 x) {
  const __half2 pair = __float22half2_rn(x);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <class Element>
class Exchange {
 public:
  __device__ __forceinline__ explicit Exchange(const Arguments& args)
      : args_(args),
        own_(args.memory[args.rank]),
        epoch_(*reinterpret_cast<const volatile std::uint32_t*>(own_ + args.layout.epoch(blockIdx.x)) + 1),
        begin_(static_cast<int>(std::int64_t{args.rows} * blockIdx.x / gridDim.x)),
        end_(static_cast<int>(std::int64_t{args.rows} * (blockIdx.x + 1) / gridDim.x)) {}

  /// This rank's part of the peers' rows to them.
  __device__ __forceinline__ void send() const {
    const int count = end_ - begin_;
    for (int i = warp(); i < count * (args_.layout.world - 1); i += kWarps) {
      const int peer = (args_.rank + 1 + i / count) % args_.layout.world, index = i % count;
      const Place place(args_, begin_ + index);
      const auto* from = reinterpret_cast<const uint4*>(partial_row(place, peer * args_.heads));
      std::uint8_t* to = args_.memory[peer] + args_.layout.row(parity(), blockIdx.x, args_.rank, index);
      for (int unit = lane(); unit < units(); unit += 32) {
        reinterpret_cast<uint4*>(to)[unit] = __ldg(from + unit);
      }
      if (lane() == 0) {
        reinterpret_cast<float*>(to)[units() * 4] =
            __ldg(args_.partial_lse + place.in_lse(args_.partial_lse_strides, peer * args_.heads));
      }
    }
  }

  /// Until all peers' parts of this CTA's rows are here.
  __device__ __forceinline__ void meet() const {
    __syncthreads();
    const int peer = threadIdx.x;
    if (peer < args_.layout.world && peer != args_.rank) {
      __threadfence_system();  // what the CTA has stored comes before the flag
      set_flag(args_.memory[peer] + args_.layout.flag(blockIdx.x, args_.rank), epoch_);
      const std::uint8_t* flag = own_ + args_.layout.flag(blockIdx.x, peer);
      // A peer may be one exchange ahead.
      while (static_cast<std::int32_t>(read_flag(flag) - epoch_) < 0) {
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void merge() const {
    for (int index = warp(); index < end_ - begin_; index += kWarps) {
      const Place place(args_, begin_ + index);
      float max = -INFINITY;
      for (int i = 0; i < args_.layout.world; ++i) max = fmaxf(max, lse_of(place, i, index));
      const float base = max == -INFINITY ? 0 : max;
      float sum = 0;
      for (int i = 0; i < args_.layout.world; ++i) sum += weight(lse_of(place, i, index), base);
      const float lse = sum == 0 ? -INFINITY : base + logf(sum);
      float factor = sum == 0 ? 0 : 1 / sum;
      if (args_.sink != nullptr && sum != 0) factor /= 1 + expf(__ldg(args_.sink + place.head) - lse);
      auto* out = reinterpret_cast<uint4*>(
          place.in_rows(static_cast<std::uint16_t*>(args_.out), args_.out_strides, 0));
      for (int unit = lane(); unit < units(); unit += 32)
        out[unit] = merged(place, index, unit, base, factor);
      if (lane() == 0) args_.lse[place.in_lse(args_.lse_strides, 0)] = lse;
    }
  }

  /// The next exchange of this CTA is another one.
  __device__ __forceinline__ void end() const {
    if (threadIdx.x == 0) *reinterpret_cast<std::uint32_t*>(own_ + args_.layout.epoch(blockIdx.x)) = epoch_;
  }

 private:
  __device__ __forceinline__ static int warp() { return threadIdx.x / 32; }
  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ int parity() const { return static_cast<int>(epoch_ % 2); }
  /// Of 16 bytes, in a row.
  __device__ __forceinline__ int units() const { return args_.layout.v_dim / 8; }

  __device__ __forceinline__ const std::uint16_t* partial_row(const Place& place, int first_head) const {
    return place.in_rows(static_cast<const std::uint16_t*>(args_.partial_out), args_.partial_out_strides,
                         first_head);
  }
  /// Row number `index` of this CTA's, as a peer sent it.
  __device__ __forceinline__ const std::uint8_t* received(int peer, int index) const {
    return own_ + args_.layout.row(parity(), blockIdx.x, peer, index);
  }

  __device__ __forceinline__ float lse_of(const Place& place, int part, int index) const {
    if (part == args_.rank) {
      return __ldg(args_.partial_lse + place.in_lse(args_.partial_lse_strides, part * args_.heads));
    }
    return __ldcg(reinterpret_cast<const float*>(received(part, index)) + units() * 4);
  }
  __device__ __forceinline__ static float weight(float lse, float base) {
    return exp2f((lse - base) * parts::kLog2E);
  }

  __device__ __forceinline__ uint4 merged(const Place& place, int index, int unit, float base,
                                          float factor) const {
    float2 sums[4] = {};
    for (int i = 0; i < args_.layout.world; ++i) {
      const float w = weight(lse_of(place, i, index), base);
      const uint4 pack =
          i == args_.rank ? __ldg(reinterpret_cast<const uint4*>(partial_row(place, i * args_.heads)) + unit)
                          : __ldcg(reinterpret_cast<const uint4*>(received(i, index)) + unit);
      if (w == 0) continue;  // a part without tokens, whatever it holds
      const std::uint32_t pairs[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = widen<Element>(pairs[j]);
        sums[j] = {fmaf(w, x.x, sums[j].x), fmaf(w, x.y, sums[j].y)};
      }
    }
    std::uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = narrow<Element>({sums[j].x * factor, sums[j].y * factor});
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  const Arguments& args_;
  std::uint8_t* own_;
  const std::uint32_t epoch_;
  const int begin_, end_;
};

template <class Element>
__global__ void __launch_bounds__(kThreads) exchange_kernel(const __grid_constant__ Arguments args) {
  const Exchange<Element> exchange(args);
  exchange.send();
  exchange.meet();
  exchange.merge();
  exchange.end();
}

}  // namespace

Status exchange_combine(const Peers& peers, const ConstTensorView& partial_out,
                        const ConstTensorView& partial_lse, const ConstTensorView& attn_sink,
                        const TensorView& out, const TensorView& lse, const Executor& executor) {
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Arguments args = {};
  const auto world = static_cast<int>(peers.memory.size());
  args.rows = static_cast<int>(out.shape[0] * out.shape[1] * out.shape[2]);
  if (args.rows == 0) return {};
  // How many bytes there are says where rows are, the same in calls of any shapes.
  args.layout = exchange::layout_of(peers.bytes, static_cast<int>(out.shape[3]), world);
  for (int i = 0; i < world; ++i) args.memory[i] = static_cast<std::uint8_t*>(peers.memory[i]);
  args.partial_out = partial_out.data;
  args.partial_lse = static_cast<const float*>(partial_lse.data);
  args.sink = attn_sink.present() ? static_cast<const float*>(attn_sink.data) : nullptr;
  args.out = out.data;
  args.lse = static_cast<float*>(lse.data);
  std::copy_n(partial_out.strides.begin(), 3, args.partial_out_strides);
  std::copy_n(partial_lse.strides.begin(), 3, args.partial_lse_strides);
  std::copy_n(out.strides.begin(), 3, args.out_strides);
  std::copy_n(lse.strides.begin(), 3, args.lse_strides);
  args.rank = peers.rank;
  args.tokens = static_cast<int>(out.shape[1]);
  args.heads = static_cast<int>(out.shape[2]);
  LaunchShape shape;
  shape.blocks = std::min(args.rows, exchange::kCtas);
  shape.threads = kThreads;
  auto* kernel = out.dtype == Dtype::kBF16 ? exchange_kernel<__nv_bfloat16> : exchange_kernel<__half>;
  return launch(kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
