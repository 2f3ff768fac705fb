// Plan once a step, decode once a layer. The caller owns tensors, plan and workspace; nothing here allocates
// device memory or synchronises a stream.
//
// The functions that take a problem and an executor choose a kernel in each call, which takes some KB of host
// memory and some microseconds. A Plan (plan.h) chooses once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "flashlatent/backend.h"
#include "flashlatent/edges.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Views of the caller's tensors, all on the executor's device. A tensor that a call does not use is absent.
/// The innermost stride is 1; other strides are free. On CUDA addresses and strides are not negative, and are
/// multiples of 16 bytes for q, q_rope and kv_cache and of 4 bytes for out. Outputs and the
/// workspace overlap neither inputs nor each other.
/// Lengths out of range are clamped and pages out of range skipped, as said below; check_inputs() reports
/// them.
struct DecodeInputs {
  ConstTensorView q;  ///< (batch, s_q, h_q, qk_dim), or ragged (total tokens, h_q, qk_dim);
                      ///< Query::e4m3: uint8.
  /// Optional, only with a latent cache and qk_dim 576 or 320: the last 64 columns of the query. q then has
  /// the first 512 or 256 columns, so an engine's two tensors need no concatenation. Shape (..., 64), else
  /// q's shape and dtype; any strides. Results have the same bits as with one tensor.
  ConstTensorView q_rope;
  /// q's dtype (pages, page_size, h_kv, qk_dim). kE4m3: uint8 (pages, page_size, 1, qk_dim). Formats of a
  /// token's bytes: uint8 (pages, page_size, 1, 656, 584, 528 or 288). Where a page's scales follow its data
  /// (kFp8_584, ScalePlace::kPage) the view is one that latent_pages() (kv_cache.h) makes: the token stride
  /// is the last dimension, the page stride a multiple of 16 and at least least_page_stride().
  ConstTensorView kv_cache;
  /// int32 (batch, max_pages), not sparse: the page table. Entries past a request's pages are never read.
  /// Tokens of an entry that is negative, or not less than the cache's pages, are skipped.
  ConstTensorView block_table;
  ConstTensorView cache_seqlens;  ///< int32 (batch): L, up to 2^31 - 1. A negative length counts as 0, one
                                  ///< above max_pages * page_size as max_pages * page_size. CUDA kernels
                                  ///< take page tables of up to 2^31 - 2^14 tokens. Sparse: absent.
  /// int32 (batch, s_q, topk), only sparse: page * page_size + offset in the page; skipped if negative or
  /// past the cache's end. An index that is named twice counts twice.
  ConstTensorView indices;
  /// int32 (batch), or (batch, s_q) if q is not ragged, only sparse, optional: only this many of a request's
  /// or query token's indices are read. A negative value counts as 0, one above topk as topk. With
  /// batch_invariant a plan needs lengths of the same shape.
  ConstTensorView topk_length;
  ConstTensorView cu_seqlens_q;  ///< int32 (batch + 1), only with Query::ragged: request i has the tokens
                                 ///< [cu_seqlens_q[i], cu_seqlens_q[i + 1]) of q, at most s_q. From 0 to
                                 ///< the total, never falling; on the CPU anything else is refused, on
                                 ///< CUDA tokens past s_q or the total are left out.
  ConstTensorView attn_sink;     ///< fp32 (h_q), only with Options::attn_sink: out is scaled by exp(lse) /
                                 ///< (exp(lse) + exp(sink)); lse does not change. +-inf are legal.

  // Only with KvLayout::kSeparate and kPacked, instead of kv_cache.
  ConstTensorView key_cache;  ///< q's dtype; kE4m3: uint8. Separate (pages, page_size, h_kv, qk_dim),
                              ///< packed (pages, h_kv, qk_dim / x, page_size, x).
  /// As key_cache: (pages, page_size, h_kv, v_dim), packed (pages, h_kv, v_dim, page_size).
  ConstTensorView value_cache;
  ConstTensorView key_scale;     ///< fp32 (1) or (h_kv), only with kE4m3, optional: a key is e4m3 * scale.
  ConstTensorView value_scale;   ///< As key_scale, for values.
  ConstTensorView kv_scale;      ///< fp32 (1), only with kE4m3 and a latent cache, optional: an element of
                                 ///< kv_cache and extra_kv_cache is e4m3 * scale. Absent: 1.
  ConstTensorView q_scale;       ///< fp32 (1) or (h_q), only with Query::e4m3, optional: an element of q is
                                 ///< e4m3 * scale. Absent: 1.
  ConstTensorView alibi_slopes;  ///< fp32 (h_q), only with SeparateOptions::alibi.

  // Only with Cache::extra: the extra cache.
  ConstTensorView extra_kv_cache;     ///< As kv_cache, with pages of Extra::page_size.
  ConstTensorView extra_indices;      ///< int32 (batch, s_q, extra topk), as indices.
  ConstTensorView extra_topk_length;  ///< int32 (batch) or (batch, s_q), optional, as topk_length.
  ConstTensorView extra_block_table;  ///< int32 (batch, extra max_pages), as block_table.
  /// int32 (batch), clamped as cache_seqlens. Or, if q is not ragged, (batch, s_q): query tokens may see
  /// different numbers of tokens. There is no causal mask on the extra cache.
  ConstTensorView extra_cache_seqlens;

  // The edges of a layer (edges.h). Only with Options::q_edge: what prepare_queries() does to q first. The
  // prepared query is rounded once, to q's dtype.
  float q_norm = 0;  ///< Epsilon of the RMS norm over each head; 0: none; not with q_rope.
  /// Positions (batch, s_q), ragged (total tokens). The table's columns are the last ones of the head, of
  /// q_rope where that is present.
  Rotation q_rotate;
  Rotation out_rotate;  ///< Only with Options::out_edge: the rotation that out is turned back by.
};

/// All rows of all query tokens are written. Query tokens that a ragged request does not have get the lse of
/// empty rows.
struct DecodeOutputs {
  TensorView out;  ///< (batch, s_q, h_q, v_dim) or ragged (total tokens, h_q, v_dim), q's dtype, or bf16 if q
                   ///< is e4m3. 0 for an empty row.
  TensorView lse;  ///< fp32 (batch, h_q, s_q), any strides, natural logarithm. Options::empty_lse for an
                   ///< empty row.
  /// Only with Options::out_edge, optional: `out`, rotated back, in FP8. `out` may then be absent. A kernel
  /// that casts in its epilogue does not round to out's dtype between (docs/numerics.md).
  Fp8Output out_fp8 = {};
};

/// What plan() reads: how many tokens each request attends to.
struct PlanLengths {
  ConstTensorView cache;  ///< DecodeInputs::cache_seqlens. Sparse: topk_length, absent if the call has none.
  /// With Cache::extra: extra_cache_seqlens. Indexed: extra_topk_length, absent if the call has none.
  ConstTensorView extra;
  /// With ragged queries: DecodeInputs::cu_seqlens_q, optional. It matters where each query token is an item
  /// of the schedule (two caches, a window over a latent cache): without it a plan assumes s_q query tokens
  /// for each request.
  ConstTensorView cu_seqlens_q;

  PlanLengths() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): most problems have one cache
  PlanLengths(const ConstTensorView& cache_, const ConstTensorView& extra_ = {},
              const ConstTensorView& cu_seqlens_q_ = {})
      : cache(cache_), extra(extra_), cu_seqlens_q(cu_seqlens_q_) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  PlanLengths(const TensorView& cache_) : cache(cache_) {}
};
/// The PlanLengths of a call with these inputs.
PlanLengths lengths_of(const DecodeProblem& problem, const DecodeInputs& inputs);

/// The problem that these tensors pose, with `options`. The tensors decide:
/// - a uint8 kv_cache is kFp8_656, kFp8_584 or kE4m3 by its last dimension; with 528 or 288 it has the format
///   that `format` names, and is refused if `format` names none;
/// - a uint8 extra_kv_cache has the format of kv_cache, or the one that `extra_format` names; with 288 bytes
///   beside kMxfp8_528 it is kNvfp4_288;
/// - a uint8 key_cache is kE4m3, and one of rank 5 is kPacked;
/// - a uint8 q is e4m3; q and q_rope together have qk_dim columns;
/// - `indices` make the problem sparse; extra_kv_cache gives it an extra cache;
/// - attn_sink and alibi_slopes set their options, q_norm and q_rotate q_edge, and out_rotate out_edge, which
///   a call with out_fp8 alone must set.
/// `v_dim` is the value's dimension of a latent cache; beside key_cache it is not read. Errors:
/// kInvalidArgument (tensors that do not fit together; an option that is set without its tensor).
Result<DecodeProblem> infer_problem(const DecodeInputs& inputs, int v_dim,
                                    const DecodeProblem::Options& options, const CacheFormat& format = {},
                                    std::optional<KvFormat> extra_format = {});

/// Upper bounds in bytes. They depend on shapes, the device and (CPU) the number of threads, never on
/// lengths. So callers can allocate once, for the largest batch. Align both buffers to 256 bytes. Errors:
/// kInvalidArgument (a field of the problem out of its range), kUnsupported (no kernel takes it),
/// kUnavailable.
Result<std::size_t> plan_bytes(const DecodeProblem& problem, const Executor& executor);
Result<std::size_t> workspace_bytes(const DecodeProblem& problem, const Executor& executor);

/// Schedules one step into `plan`: which part has which blocks of which request, and where partial results
/// go. On CUDA this is one kernel launch (two with Options::shard). A CUDA graph can capture it; each replay
/// plans for the lengths that are then in `lengths`. A plan stays right when lengths change after it was
/// made, if not balanced, with shared prefixes too. The one exception is batch_invariant: then plan again.
/// Errors: those of plan_bytes(), kInvalidArgument (lengths, alignment), kExhausted (`plan` is too small),
/// kInternal (a launch failed).
Status plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan, const Executor& executor);

/// What the host knows of the requests of a step, for shared prefixes. All tensors are on the CPU.
struct HostPages {
  ConstTensorView block_table;    ///< int32 (batch, max_pages): what DecodeInputs::block_table will be.
  ConstTensorView cache_seqlens;  ///< int32 (batch): what DecodeInputs::cache_seqlens is.
};

/// plan() with Options::prefix_sharing. Finds requests whose page tables begin alike, in whole blocks of 64
/// tokens and without their query tokens' own. Where sharing pays, these requests attend to the common tokens
/// together, as a group, in decode(); describe_plan() shows the groups. Without `pages`, or with
/// prefix_sharing off, there are no groups.
///
/// The plan keeps the groups: a graph that has captured this call replays with these groups and with the
/// lengths that are then in `lengths`. The plan is right for other lengths as long as each request that is
/// long enough for its group's prefix still has the prefix's pages. A request that became shorter, or some of
/// whose query tokens no longer see all of the prefix, attends to all of its tokens by itself. Errors: those
/// of plan(), kInvalidArgument (pages, by name).
Status plan(const DecodeProblem& problem, const PlanLengths& lengths, const HostPages& pages, Memory plan,
            const Executor& executor);

/// The name of the kernel that decode() runs with these tensors: the picked one (picked_kernel()), or its
/// substitute if the picked kernel cannot read or write the tensors as they lie
/// (docs/kernels/mla_64_roles.md). Errors: those of decode() about tensors.
Result<std::string> running_kernel(const DecodeProblem& problem, const DecodeInputs& inputs,
                                   const DecodeOutputs& outputs, const Executor& executor);

/// Runs one layer of the step that `plan` was made for, with the same problem and executor. `plan` is only
/// read. `workspace` holds nothing from one call to the next, but serves one call at a time: on a GPU the
/// CTAs of a call report their progress to each other in it. If a call or copy on another stream writes to it
/// meanwhile, results may be wrong, or the call may never end. Errors: those of plan_bytes(), kUnsupported
/// (the kernel that the executor names cannot read or write the tensors as they lie), kInvalidArgument (a
/// tensor that does not fit the problem, by name; alignment; on the CPU a plan of another problem),
/// kExhausted (a buffer is too small), kInternal (a launch failed). Nothing is written before any error but
/// the last.
Status decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
              Memory plan, Memory workspace, const Executor& executor);

}  // namespace flashlatent
