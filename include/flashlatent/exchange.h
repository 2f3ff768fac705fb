// Attention over tokens that are spread over several GPUs: one launch a GPU exchanges partial results and
// merges them.
#pragma once

#include <cstddef>
#include <span>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// The most GPUs of an exchange.
inline constexpr int kMostPeers = 16;

/// Bytes of the memory that each rank must have for exchanges among `world` ranks of up to `rows` rows (batch
/// * s_q * heads of one rank) of `v_dim` elements of 16 bits.
std::size_t exchange_bytes(int rows, int v_dim, int world);

/// The memories of the ranks of a group. They have the same size and are zeroed before any rank's first call.
/// Each GPU can write to the others' memory (CUDA IPC, NVLink).
struct Peers {
  int rank = 0;
  std::span<void* const> memory;  ///< One address a rank, as this process sees it, aligned to 256 bytes.
  std::size_t bytes = 0;          ///< Size of each memory.
};

/// Sends each rank this rank's partial results of that rank's heads, waits for the other ranks' results of
/// this rank's heads, and merges them as combine() does. Head h belongs to rank h / (h_q / world). Every rank
/// makes the same calls in the same order, on one stream a rank. CUDA graphs can capture the call.
///   partial_out  bf16 or fp16 (batch, s_q, h_q, d_v), innermost stride 1; d_v, addresses and strides
///                multiples of 8 elements
///   partial_lse  fp32 (batch, h_q, s_q), any strides; -inf counts for nothing
///   attn_sink    fp32 (h_q / world) or absent
///   out          the same dtype, (batch, s_q, h_q / world, d_v)
///   lse          fp32 (batch, h_q / world, s_q), any strides
/// Errors: kInvalidArgument (a tensor that does not fit, by name), kExhausted (Peers::bytes has no room for
/// the rows), kUnsupported (the CPU), kUnavailable, kInternal (the launch failed).
Status exchange_combine(const Peers& peers, const ConstTensorView& partial_out,
                        const ConstTensorView& partial_lse, const ConstTensorView& attn_sink,
                        const TensorView& out, const TensorView& lse, const Executor& executor);

}  // namespace flashlatent
