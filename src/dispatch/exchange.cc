#include "flashlatent/exchange.h"

#include "core/exchange_memory.h"
#include "core/expect.h"
#include "core/message.h"
#include "core/return_if_error.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"

namespace flashlatent {

namespace {

constexpr int kUnit = 8;  // elements that a thread reads and writes together

Status expect_units(const char* name, const ConstTensorView& view) {
  bool fits = reinterpret_cast<std::uintptr_t>(view.data) % (kUnit * sizeof(std::uint16_t)) == 0;
  fits = fits && view.shape[view.rank - 1] > 0;
  for (int i = 0; i + 1 < view.rank; ++i) fits = fits && (view.shape[i] == 1 || view.strides[i] % kUnit == 0);
  if (fits && view.shape[view.rank - 1] % kUnit == 0) return {};
  return invalid_argument(name, " is ", to_string(view), " at ", view.data,
                          "; d_v, the address and the strides must be multiples of ", kUnit, " elements");
}

Status validate_peers(const Peers& peers) {
  const auto world = static_cast<int>(peers.memory.size());
  if (world < 2 || world > kMostPeers) {
    return invalid_argument("there are ", world, " memories of peers; 2 to ", kMostPeers, " are accepted");
  }
  if (peers.rank < 0 || peers.rank >= world) {
    return invalid_argument("rank is ", peers.rank, "; 0 to ", world - 1, " are accepted");
  }
  return {};
}

Status validate_exchange(const Peers& peers, const ConstTensorView& partial_out,
                         const ConstTensorView& partial_lse, const ConstTensorView& attn_sink,
                         const TensorView& out, const TensorView& lse, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(validate_peers(peers));
  const auto world = static_cast<std::int64_t>(peers.memory.size());
  if (partial_out.dtype != Dtype::kBF16 && partial_out.dtype != Dtype::kF16) {
    return invalid_argument("partial_out is ", to_string(partial_out), "; bf16 and fp16 are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("partial_out", partial_out, partial_out.dtype, device, {-1, -1, -1, -1}));
  const auto& [batch, s_q, h_q, d_v] =
      std::array{partial_out.shape[0], partial_out.shape[1], partial_out.shape[2], partial_out.shape[3]};
  if (h_q % world != 0) {
    return invalid_argument("partial_out has ", h_q, " heads; a multiple of the ", world,
                            " ranks is expected");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect("partial_lse", partial_lse, Dtype::kF32, device, {batch, h_q, s_q}));
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("out", out, partial_out.dtype, device, {batch, s_q, h_q / world, d_v}));
  FLASHLATENT_RETURN_IF_ERROR(expect("lse", lse, Dtype::kF32, device, {batch, h_q / world, s_q}));
  FLASHLATENT_RETURN_IF_ERROR(expect_units("partial_out", partial_out));
  FLASHLATENT_RETURN_IF_ERROR(expect_units("out", out));
  const std::size_t rows =
      exchange::layout_of<exchange::ResultPack>(peers.bytes, static_cast<int>(d_v), static_cast<int>(world))
          .rows();
  if (static_cast<std::size_t>(batch * s_q * (h_q / world)) > rows) {
    return Status(StatusCode::kExhausted,
                  message("partial_out has ", batch * s_q * (h_q / world), " rows of a rank; memory of ",
                          peers.bytes, " bytes has room for ", rows, ", see exchange_bytes()"));
  }
  return attn_sink.present() ? expect_strided("attn_sink", attn_sink, Dtype::kF32, device, {h_q / world})
                             : Status{};
}

Status validate_gather(const Peers& peers, const ConstTensorView& q, const TensorView& gathered,
                       Device device) {
  FLASHLATENT_RETURN_IF_ERROR(validate_peers(peers));
  const auto world = static_cast<int>(peers.memory.size());
  const Dtype dtype = q.present() ? q.dtype : Dtype::kBF16;
  if (dtype != Dtype::kBF16 && dtype != Dtype::kF16 && dtype != Dtype::kU8) {
    return invalid_argument("q is ", to_string(q), "; bf16, fp16 and uint8, which is e4m3, are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("q", q, dtype, device, {-1, -1, -1, -1}));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("q", q));
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("gathered", gathered, dtype, device,
                                             {q.shape[0], q.shape[1], q.shape[2] * world, q.shape[3]}));
  const std::int64_t count = q.shape[0] * q.shape[1] * q.shape[2];
  const auto row_bytes = static_cast<int>(q.shape[3] * static_cast<std::int64_t>(size_of(q.dtype)));
  const std::size_t rows = exchange::layout_of<exchange::QueryPack>(peers.bytes, row_bytes, world).rows();
  if (static_cast<std::size_t>(count) <= rows) return {};
  return Status(StatusCode::kExhausted,
                message("q has ", count, " rows of ", row_bytes, " bytes; memory of ", peers.bytes,
                        " bytes has room for ", rows, ", see exchange_gather_bytes()"));
}

}  // namespace

std::size_t exchange_bytes(int rows, int v_dim, int world) {
  return exchange::layout_for<exchange::ResultPack>(rows, v_dim, world).bytes();
}

std::size_t exchange_gather_bytes(int rows, int d, int world) {
  return exchange::layout_for<exchange::QueryPack>(rows, d * static_cast<int>(sizeof(std::uint16_t)), world)
      .bytes();
}

Status exchange_combine(const Peers& peers, const ConstTensorView& partial_out,
                        const ConstTensorView& partial_lse, const ConstTensorView& attn_sink,
                        const TensorView& out, const TensorView& lse, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(
      validate_exchange(peers, partial_out, partial_lse, attn_sink, out, lse, device_of(executor)));
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    return cuda::exchange_combine(peers, partial_out, partial_lse, attn_sink, out, lse, executor);
  }
#endif
  return unsupported("partial_out is on the CPU; GPUs that write to each other's memory exchange so");
}

Status exchange_gather(const Peers& peers, const ConstTensorView& q, const TensorView& gathered,
                       const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(validate_gather(peers, q, gathered, device_of(executor)));
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) return cuda::exchange_gather(peers, q, gathered, executor);
#endif
  return unsupported("q is on the CPU; GPUs that write to each other's memory gather so");
}

}  // namespace flashlatent
