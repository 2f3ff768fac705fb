// Plan once a step, decode once a layer. The caller owns tensors, plan and workspace; nothing here allocates
// device memory or synchronises a stream.
//
// The functions that take a problem and an executor choose a kernel in each call, which takes some KB of host
// memory and some microseconds. A Plan (plan.h) chooses once.
#pragma once

#include <cstddef>
#include <string>

#include "flashlatent/backend.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Views of the caller's tensors, all on the executor's device; what is not used stays absent. The innermost
/// stride is 1, others are free; on CUDA addresses and strides of q and kv_cache are multiples of 16 bytes
/// and of out of 4 bytes, and not negative. Outputs and the workspace overlap
/// neither inputs nor each other.
/// Lengths out of range are clamped and pages out of range skipped, as said below; check_inputs() reports
/// them.
struct DecodeInputs {
  ConstTensorView q;              ///< (batch, s_q, h_q, qk_dim), or ragged (total tokens, h_q, qk_dim);
                                  ///< Query::e4m3: uint8.
  ConstTensorView kv_cache;       ///< (pages, page_size, h_kv, qk_dim), q's dtype; kFp8_656: uint8
                                  ///< (pages, page_size, 1, 656); kFp8_584: uint8 (pages, page_size, 1, 584)
                                  ///< as fp8_584_pages() (kv_cache.h) makes it: the token stride is 584, the
                                  ///< page stride a multiple of 16 from least_page_stride_584() up; kE4m3:
                                  ///< uint8 (pages, page_size, 1, qk_dim).
  ConstTensorView block_table;    ///< int32 (batch, max_pages), not sparse: the page table. Entries past a
                                  ///< request's pages are never read; tokens behind an entry that is negative
                                  ///< or not a page of the cache are skipped.
  ConstTensorView cache_seqlens;  ///< int32 (batch): L, up to 2^31 - 1. A negative length counts as 0, one
                                  ///< above max_pages * page_size as max_pages * page_size. CUDA kernels
                                  ///< take page tables of up to 2^31 - 2^14 tokens. Sparse: absent.
  ConstTensorView indices;        ///< int32 (batch, s_q, topk), only sparse: index = page * page_size +
                                  ///< offset in the page; skipped if negative or past the cache's end.
  ConstTensorView topk_length;    ///< int32 (batch), only sparse, optional: only so many of a request's
                                  ///< indices are read. Negative counts as 0, more than topk as that.
  ConstTensorView cu_seqlens_q;   ///< int32 (batch + 1), only with Query::ragged: request i has the tokens
                                  ///< [cu_seqlens_q[i], cu_seqlens_q[i + 1]) of q, at most s_q. From 0 to
                                  ///< the total, never falling; on the CPU anything else is refused, on
                                  ///< CUDA tokens past s_q or the total are left out.
  ConstTensorView attn_sink;      ///< fp32 (h_q), only with Options::attn_sink: out is scaled by
                                  ///< exp(lse) / (exp(lse) + exp(sink)); lse stays. +-inf are legal.

  // Instead of kv_cache, with KvLayout::kSeparate and kPacked.
  ConstTensorView key_cache;     ///< q's dtype; kE4m3: uint8. Separate (pages, page_size, h_kv, qk_dim),
                                 ///< packed (pages, h_kv, qk_dim / x, page_size, x).
  ConstTensorView value_cache;   ///< The same; (pages, page_size, h_kv, v_dim), packed (pages, h_kv, v_dim,
                                 ///< page_size).
  ConstTensorView key_scale;     ///< fp32 (1) or (h_kv), only with kE4m3, optional: a key is e4m3 * scale.
  ConstTensorView value_scale;   ///< The same of values.
  ConstTensorView kv_scale;      ///< fp32 (1), only with kE4m3 and a latent cache, optional: an element of
                                 ///< kv_cache and extra_kv_cache is e4m3 * scale. Absent: 1.
  ConstTensorView q_scale;       ///< fp32 (1) or (h_q), only with Query::e4m3, optional: an element of q is
                                 ///< e4m3 * scale. Absent: 1.
  ConstTensorView alibi_slopes;  ///< fp32 (h_q), only with SeparateOptions::alibi.

  // Only with Cache::extra.
  ConstTensorView extra_kv_cache;       ///< As kv_cache, of Extra::page_size.
  ConstTensorView extra_indices;        ///< int32 (batch, s_q, extra topk), as indices.
  ConstTensorView extra_topk_length;    ///< int32 (batch), optional, as topk_length.
  ConstTensorView extra_block_table;    ///< int32 (batch, extra max_pages), as block_table.
  ConstTensorView extra_cache_seqlens;  ///< int32 (batch), or (batch, s_q) where query tokens see different
                                        ///< numbers of tokens, which are not ragged then: clamped as
                                        ///< cache_seqlens. There is no causal mask on the extra cache.
};

/// All rows of all query tokens are written; lse of query tokens that a ragged request does not have is
/// that of empty rows.
struct DecodeOutputs {
  TensorView out;  ///< (batch, s_q, h_q, v_dim) or ragged (total tokens, h_q, v_dim), q's dtype, bf16 if
                   ///< that is e4m3. 0 for an empty row.
  TensorView lse;  ///< fp32 (batch, h_q, s_q), any strides, natural logarithm. Options::empty_lse for an
                   ///< empty row.
};

/// What plan() reads: how many tokens requests attend to.
struct PlanLengths {
  ConstTensorView cache;  ///< DecodeInputs::cache_seqlens; sparse: topk_length, absent if that is.
  ConstTensorView extra;  ///< With Cache::extra: extra_cache_seqlens; indexed: extra_topk_length, likewise.
  /// With ragged queries: DecodeInputs::cu_seqlens_q, optional. Where query tokens are shared out one by one
  /// (two caches, a window over a latent cache) a plan without it counts s_q for each request.
  ConstTensorView cu_seqlens_q;

  PlanLengths() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): most problems have one cache
  PlanLengths(const ConstTensorView& cache_, const ConstTensorView& extra_ = {},
              const ConstTensorView& cu_seqlens_q_ = {})
      : cache(cache_), extra(extra_), cu_seqlens_q(cu_seqlens_q_) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  PlanLengths(const TensorView& cache_) : cache(cache_) {}
};
/// Those of a call.
PlanLengths lengths_of(const DecodeProblem& problem, const DecodeInputs& inputs);

/// The problem that these tensors pose, with `options`; kInvalidArgument if they do not fit together. A uint8
/// kv_cache is kFp8_656, kFp8_584 or kE4m3, as its last dimension says, a uint8 key_cache kE4m3, one of
/// rank 5 kPacked; a uint8 q is e4m3; `indices` make it sparse, extra_kv_cache gives it an extra cache,
/// attn_sink and alibi_slopes set their options; an option that is set without its tensor is refused. Beside
/// key_cache `v_dim` is not read: value_cache says it.
Result<DecodeProblem> infer_problem(const DecodeInputs& inputs, int v_dim,
                                    const DecodeProblem::Options& options);

/// Upper bounds in bytes; they depend on shapes, the device and (CPU) the number of threads, never on
/// lengths, so that they can be taken once at the largest batch. Align both buffers to 256 bytes. Errors:
/// kInvalidArgument (a field of the problem out of its range), kUnsupported (no kernel takes it),
/// kUnavailable.
Result<std::size_t> plan_bytes(const DecodeProblem& problem, const Executor& executor);
Result<std::size_t> workspace_bytes(const DecodeProblem& problem, const Executor& executor);

/// Schedules one step into `plan`: which part does which blocks of which request, and where partial results
/// go. On CUDA one kernel launch, which a CUDA graph can capture: replayed, it plans for the lengths then in
/// `lengths`. A plan stays right, if not balanced, when lengths change after it was made, with shared
/// prefixes too; the one exception is batch_invariant, with which it must be made again. Errors: those of
/// plan_bytes(), kInvalidArgument (lengths, alignment), kExhausted (`plan` is too small).
Status plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan, const Executor& executor);

/// What the host knows of a step's requests, for prefixes that they share. All on the CPU.
struct HostPages {
  ConstTensorView block_table;    ///< int32 (batch, max_pages): what DecodeInputs::block_table will be.
  ConstTensorView cache_seqlens;  ///< int32 (batch): what DecodeInputs::cache_seqlens is.
};

/// The same with Options::prefix_sharing: requests whose page tables begin alike are found (whole blocks of
/// 64 tokens; the query tokens' own never), and where that pays they attend to those tokens together, as a
/// group, in decode(). describe_plan() says which. Without `pages`, or with prefix_sharing off, none do. The
/// plan keeps the groups: a graph that has captured this call replays with them and with the lengths then in
/// `lengths`. It is right for other lengths as long as the page tables of the requests that are long enough
/// for their group's prefix begin with its pages. A request that has become shorter than the prefix, or some
/// of whose query tokens no longer see all of it, attends to all of its tokens by itself. Errors: those of
/// plan(), kInvalidArgument (pages, by name).
Status plan(const DecodeProblem& problem, const PlanLengths& lengths, const HostPages& pages, Memory plan,
            const Executor& executor);

/// The name of the kernel that decode() runs with these tensors: the picked one (picked_kernel()), or another
/// one if the picked kernel cannot read or write the tensors as they lie (of `mla_64_roles`,
/// docs/kernels/mla_64_roles.md). Errors are those of decode() that concern tensors.
Result<std::string> running_kernel(const DecodeProblem& problem, const DecodeInputs& inputs,
                                   const DecodeOutputs& outputs, const Executor& executor);

/// Runs one layer of the step that `plan` was made for, with the same problem and executor. `plan` is only
/// read; `workspace` holds nothing from one call to the next, but serves one call at a time: on a GPU thread
/// blocks tell each other there how far they are. If another stream's call or copy writes there meanwhile,
/// results may be wrong or the call may wait for ever. Errors: those of plan_bytes(), kUnsupported (tensors
/// that the kernel which the executor names cannot read or write as they lie), kInvalidArgument (a tensor
/// that does not fit the problem, by name; alignment; on the CPU a plan of another problem), kExhausted (a
/// buffer is too small), kInternal (a launch failed). After any other error than the last nothing was
/// written.
Status decode(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
              Memory plan, Memory workspace, const Executor& executor);

}  // namespace flashlatent
