// Columns of a query of a latent cache, for host and device. Of 576 columns 512 are the latent part and 64
// the RoPE part, of 320 columns 256 and 64. The RoPE part may be a tensor of its own (query_parts.h). Kernels
// read both parts by pointers and strides of their own: in one tensor the second part begins behind the
// first.
#pragma once

#ifdef __CUDACC__
#define FLASHLATENT_QUERY_FUNCTION __host__ __device__ constexpr
#else
#define FLASHLATENT_QUERY_FUNCTION constexpr
#endif

namespace flashlatent::query_parts {

inline constexpr int kRopeDim = 64;

/// Does a query of so many columns have a RoPE part? Of any other number it is one part.
FLASHLATENT_QUERY_FUNCTION bool has_rope(int qk_dim) {
  return qk_dim == 576 || qk_dim == 320;
}
/// Columns of the first part.
FLASHLATENT_QUERY_FUNCTION int first_columns(int qk_dim) {
  return has_rope(qk_dim) ? qk_dim - kRopeDim : qk_dim;
}

}  // namespace flashlatent::query_parts
