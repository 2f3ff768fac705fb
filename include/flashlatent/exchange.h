// Attention over tokens that are spread over several GPUs: one launch a GPU gathers queries, and one
// exchanges partial results and merges them.
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

/// The same for gatherings of up to `rows` rows of `d` elements of 16 bits. Memory for both needs the larger
/// size.
std::size_t exchange_gather_bytes(int rows, int d, int world);

/// What the ranks of a group share. All of them have memories of the same size, zeroed before the first call
/// of any rank, on GPUs that NVLink joins: a store of 16 bytes must reach another GPU as a whole.
struct Peers {
  int rank = 0;
  std::span<void* const> memory;  ///< One address a rank, as this process sees it, aligned to 256 bytes.
  std::size_t bytes = 0;          ///< Size of each memory.
};

/// Sends each rank this rank's partial results of that rank's heads, waits for those of its own, and merges
/// them as combine() does. Every rank makes the same calls, in the same order, on one stream a rank; head h
/// is rank h / (h_q / world)'s. CUDA graphs can capture it. If a rank makes no call, the other ranks' calls
/// wait without end; builds with FLASHLATENT_DEVICE_CHECKS stop with an error.
///   partial_out  bf16 or fp16 (batch, s_q, h_q, d_v), innermost stride 1; d_v, addresses and strides are
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

/// Sends each rank this rank's queries, waits for those of all others, and lays them out as one tensor. Every
/// rank makes the same calls, as for exchange_combine(). CUDA graphs can capture it.
///   q         bf16, fp16 or bytes (e4m3) (batch, s_q, h, d), innermost stride 1
///   gathered  the same dtype, (batch, s_q, world * h, d), innermost stride 1; head r * h + i is rank r's i
/// Fastest if d, addresses and strides are multiples of 16 bytes; else queries are copied byte by byte.
/// Errors: those of exchange_combine().
Status exchange_gather(const Peers& peers, const ConstTensorView& q, const TensorView& gathered,
                       const Executor& executor);

}  // namespace flashlatent
