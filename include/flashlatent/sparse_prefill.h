// Sparse prefill: many query tokens in one call each attend to the tokens that their own indices name
// (DeepSeek Sparse Attention, arXiv 2512.02556).
#pragma once

#include <cstddef>
#include <limits>
#include <optional>

#include "flashlatent/backend.h"
#include "flashlatent/edges.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Views of the caller's tensors, all on the executor's device. A tensor that a call does not use is absent.
/// The innermost stride is 1; other strides are free. Outputs overlap
/// neither inputs nor each other.
struct SparsePrefillInputs {
  /// bf16 or fp16 (s_q, h_q, d), s_q up to 2^20; with an e4m3 cache also uint8, e4m3.
  ConstTensorView q;
  /// Optional, (s_q, h_q, 64), as DecodeInputs::q_rope: q then has the first columns, and d counts both.
  ConstTensorView q_rope;
  /// q's dtype (s_kv, 1, d); or a paged cache as DecodeInputs::kv_cache: (pages, page_size, 1, d), or uint8
  /// in any format.
  ConstTensorView kv;
  /// int32 (s_q, 1, topk): a row of kv, or page * page_size + offset in the page; skipped if negative or past
  /// the end. An index that is named twice counts twice.
  ConstTensorView indices;
  /// int32 (s_q), optional: only this many of a query token's indices are read. A negative value counts as 0,
  /// one above topk as topk.
  ConstTensorView topk_length;
  /// fp32 (h_q), optional: out is scaled by exp(lse) / (exp(lse) + exp(sink)); lse and max_logits do not
  /// change. +-inf are legal.
  ConstTensorView attn_sink;

  /// Optional: a second, paged cache in the same softmax, with kv's dtype, and kv's format or
  /// SparsePrefillOptions::extra_format.
  ConstTensorView extra_kv_cache;
  ConstTensorView extra_indices;      ///< int32 (s_q, 1, extra topk), as indices.
  ConstTensorView extra_topk_length;  ///< int32 (s_q), optional, as topk_length.

  ConstTensorView kv_scale;  ///< fp32 (1), optional, only with e4m3: an element is e4m3 * scale. Absent: 1.
  /// fp32 (1) or (h_q), optional, only with an e4m3 q: its scale, of all heads or of each. Absent: 1.
  ConstTensorView q_scale;

  // The edges of a layer, as in DecodeInputs, with positions (s_q).
  float q_norm = 0;
  Rotation q_rotate;
  Rotation out_rotate;
};

/// A query token without any token to attend to has out = 0 and max_logits = lse = -inf.
struct SparsePrefillOutputs {
  TensorView out;  ///< (s_q, h_q, v_dim), q's dtype; bf16 where q is e4m3.
  /// fp32 (s_q, h_q), any strides: the largest softmax_scale * q . k. Absent without
  /// SparsePrefillOptions::max_logits.
  TensorView max_logits;
  TensorView lse;          ///< fp32 (s_q, h_q), any strides, natural logarithm.
  Fp8Output out_fp8 = {};  ///< Only with SparsePrefillOptions::out_edge, as DecodeOutputs::out_fp8.
};

struct SparsePrefillOptions {
  /// Factor of q . k, finite. Must be set: the initial value, NaN, is refused.
  float softmax_scale = std::numeric_limits<float>::quiet_NaN();
  int v_dim = 512;                            ///< How many first elements of a row of kv are V.
  CacheFormat format = {};                    ///< For a kv of bytes, as for infer_problem().
  std::optional<KvFormat> extra_format = {};  ///< For an extra_kv_cache of bytes, likewise.
  bool out_edge = false;                      ///< The call has out_fp8. out_rotate sets it, too.
  /// Does the call have max_logits? Without it more kernels take FP8 caches, with edges in their own passes.
  bool max_logits = true;
  Products products = Products::kAuto;  ///< With e4m3, as DecodeProblem::Options::products.
};

/// Bytes of the workspace that sparse_prefill() needs; on CUDA those of the edges alone: a query with q_norm
/// or q_rotate, an output with out_edge. They depend on shapes and dtypes; no element is read. Errors: those
/// of sparse_prefill() about inputs.
Result<std::size_t> sparse_prefill_workspace_bytes(const SparsePrefillInputs& inputs,
                                                   const SparsePrefillOptions& options,
                                                   const Executor& executor);

/// The same of a call with these outputs, which may be less: what its kernel does in its own passes needs no
/// room. Errors: those of sparse_prefill().
Result<std::size_t> sparse_prefill_workspace_bytes(const SparsePrefillInputs& inputs,
                                                   const SparsePrefillOutputs& outputs,
                                                   const SparsePrefillOptions& options,
                                                   const Executor& executor);

/// For query token t and query head h, over the tokens of kv (and of extra_kv_cache) that t's indices name:
///   S = softmax_scale * q . K^T;  out = softmax(S) . V;  max_logits = max S;  lse = ln sum exp S.
/// `workspace` is aligned to 256 bytes and holds nothing from one call to the next. On CUDA the call is one
/// launch, and one for each edge that its kernel does not have in its own passes, which a graph can capture.
/// Errors: kInvalidArgument (a tensor or option that does not fit, by name), kUnsupported (no kernel of the
/// backend takes it; says why), kUnavailable, kExhausted (`workspace` is too small); after any of them
/// nothing was written.
Status sparse_prefill(const SparsePrefillInputs& inputs, const SparsePrefillOutputs& outputs,
                      const SparsePrefillOptions& options, Memory workspace, const Executor& executor);

}  // namespace flashlatent
