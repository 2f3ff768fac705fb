#include "dispatch/sparse_prefill.h"

#include "core/apart.h"
#include "core/edge_check.h"
#include "core/expect.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "core/query_parts.h"
#include "core/validate.h"
#include "dispatch/checked.h"
#include "dispatch/layer_edges.h"
#include "dispatch/select.h"
#include "plan/host_plan.h"
#include "plan/prefix_plan.h"

namespace flashlatent {

namespace {

constexpr std::int64_t kMostQueryTokens = 1 << 20;
constexpr std::size_t kAlignment = 256;

/// Expects rows (s_kv, 1, d), or a paged cache in any format.
Status validate_kv(const ConstTensorView& kv, const CacheFormat& said, const ConstTensorView& q,
                   std::int64_t d, Device device) {
  if (kv.rank != 3 && kv.rank != 4) {
    return invalid_argument("kv is ", kv.present() ? to_string(kv) : "missing",
                            "; expected rows (s_kv, 1, d), or a paged cache (pages, page_size, 1, d)");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("kv", kv));
  if (kv.rank == 3 && kv.dtype == Dtype::kU8) {
    return invalid_argument("kv is ", to_string(kv),
                            "; rows (s_kv, 1, d) of q's dtype, or an FP8 cache in pages, ",
                            "(pages, page_size, 1, d), are accepted");
  }
  if (kv.rank == 3 && q.dtype == Dtype::kU8) {
    return invalid_argument("q is ", to_string(q), "; with rows (s_kv, 1, d) bf16 and fp16 are accepted");
  }
  if (kv.rank == 3) return expect_strided("kv", kv, q.dtype, device, {-1, 1, d});
  FLASHLATENT_ASSIGN_OR_RETURN(const LatentFormat* format, resolve_format("kv", kv, said));
  if (format->plain() && q.dtype == Dtype::kU8) {
    return invalid_argument("q is ", to_string(q), "; with a cache of 16 bits bf16 and fp16 are accepted");
  }
  const bool takes_e4m3 = format->scales == ScaleKind::kOfCache;
  if (!format->plain() && q.dtype != Dtype::kBF16 && !(takes_e4m3 && q.dtype == Dtype::kU8)) {
    return invalid_argument("q is ", to_string(q), "; with an ", format->name, " cache bf16",
                            takes_e4m3 ? " and e4m3 (uint8) are" : " is", " accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("kv", kv, format->dtype(q.dtype), device, {-1, -1, 1, format->last_extent(d)}));
  return expect_page_strides("kv", kv, *format);
}

/// Checks shapes and dtypes by the names of this call. What it has in common with decode is checked there.
Status validate_shapes(const SparsePrefillInputs& inputs, const CacheFormat& format, Device device) {
  const ConstTensorView& q = inputs.q;
  if (q.rank != 3 || (q.dtype != Dtype::kBF16 && q.dtype != Dtype::kF16 && q.dtype != Dtype::kU8)) {
    return invalid_argument("q is ", q.present() ? to_string(q) : "missing",
                            "; expected bf16 or fp16 (s_q, h_q, d), or uint8 with an e4m3 cache");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("q", q, q.dtype, device, {-1, -1, -1}));
  const std::int64_t s_q = q.shape[0];
  if (s_q < 0 || s_q > kMostQueryTokens) {
    return invalid_argument("s_q (query tokens) is ", s_q, "; it must be from 0 to ", kMostQueryTokens);
  }
  if (inputs.q_rope.present()) FLASHLATENT_RETURN_IF_ERROR(query_parts::expect_fit(q, inputs.q_rope));
  const std::int64_t d = inputs.q_rope.present() ? query_parts::dim_of(q, inputs.q_rope) : q.shape[2];
  FLASHLATENT_RETURN_IF_ERROR(validate_kv(inputs.kv, format, q, d, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("indices", inputs.indices, Dtype::kI32, device, {s_q, 1, -1}));
  if (inputs.extra_indices.present()) {
    FLASHLATENT_RETURN_IF_ERROR(
        expect_strided("extra_indices", inputs.extra_indices, Dtype::kI32, device, {s_q, 1, -1}));
  } else if (inputs.extra_kv_cache.present()) {
    return invalid_argument(
        "extra_kv_cache is given, but extra_indices is missing; expected int32 (s_q, 1, extra topk)");
  }
  if (const ConstTensorView& extra = inputs.extra_kv_cache; extra.present() && extra.rank != 4) {
    return invalid_argument("extra_kv_cache is ", to_string(extra),
                            "; expected a paged cache, (pages, page_size, 1, d)");
  }
  for (const auto& [name, view] :
       {std::pair<const char*, const ConstTensorView*>{"topk_length", &inputs.topk_length},
        {"extra_topk_length", &inputs.extra_topk_length}}) {
    if (view->present()) {
      FLASHLATENT_RETURN_IF_ERROR(expect_strided(name, *view, Dtype::kI32, device, {s_q}));
    }
  }
  return expect_query_edge(q, inputs.q_rope, inputs.q_norm, inputs.q_rotate, device);
}

Status validate_outputs(const DecodeProblem& problem, const SparsePrefillInputs& inputs,
                        const SparsePrefillOutputs& outputs, bool max_logits, Device device) {
  const std::int64_t s_q = problem.query.batch, h_q = problem.query.heads, v_dim = problem.cache.v_dim;
  const TensorView out(nullptr, problem.cache.dtype, {s_q, h_q, v_dim}, device);
  FLASHLATENT_RETURN_IF_ERROR(
      expect_output_edge(problem.options.out_edge, out, inputs.out_rotate, outputs.out_fp8, device));
  if (outputs.out.present() || !outputs.out_fp8.present()) {
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("out", outputs.out, out.dtype, device, {s_q, h_q, v_dim}));
  }
  if (max_logits) {
    FLASHLATENT_RETURN_IF_ERROR(expect("max_logits", outputs.max_logits, Dtype::kF32, device, {s_q, h_q}));
  } else if (outputs.max_logits.present()) {
    return invalid_argument("max_logits is ", to_string(outputs.max_logits),
                            ", but the call is one without largest scores; no tensor is accepted");
  }
  return expect("lse", outputs.lse, Dtype::kF32, device, {s_q, h_q});
}

/// The rows as a cache whose pages have one token.
ConstTensorView rows_as_pages(ConstTensorView rows) {
  rows.shape = {rows.shape[0], 1, rows.shape[1], rows.shape[2]};
  rows.strides = {rows.strides[0], rows.strides[0], rows.strides[1], rows.strides[2]};
  rows.rank = 4;
  return rows;
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The decode call that runs, and its kernel. On CUDA query tokens are taken by Partition::kTurns, and there
/// is no plan.
struct Chosen {
  SparsePrefillCall call;
  Selection selection;

  WorkspaceSize workspace() const {
    return workspace_with_edges(aligned(selection.plan_bytes) + selection.workspace_bytes, call.problem);
  }
  /// Of a call with these outputs.
  WorkspaceSize workspace(const DecodeOutputs& outputs) const {
    WorkspaceSize size = workspace();
    const FusedEdges fused = fused_edges(selection, call.problem, call.inputs, outputs);
    size.bytes = size.edges_begin + used_edge_room(call.problem, outputs, fused);
    return size;
  }
};

DecodeOutputs decode_outputs_of(const SparsePrefillOutputs& outputs) {
  return {out_as_decode(outputs), with_last_query_token(outputs.lse), outputs.out_fp8};
}

/// The call's tensors as its kernel sees them.
LayerEdges edges_of(const Chosen& chosen, const DecodeOutputs& outputs, void* room) {
  const auto& [problem, inputs] = chosen.call;
  return {problem, inputs, outputs, fused_edges(chosen.selection, problem, inputs, outputs), room};
}

/// Makes the plan at the begin of the workspace and returns it.
Memory build_plan(const Selection& selection, const PlanLengths& lengths, Memory workspace) {
  const Memory plan{workspace.data, aligned(selection.plan_bytes)};
  if (selection.geometry.lists == 2) {
    schedule::build_on_host(selection.geometry, schedule::union_lengths(lengths), plan.data);
  } else {
    prefix::build_on_host(selection.geometry, selection.prefix, {},
                          static_cast<const std::int32_t*>(lengths.cache.data), plan.data);
  }
  return plan;
}

Result<Chosen> choose_kernel(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                             const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_ASSIGN_OR_RETURN(SparsePrefillCall call, as_decode(inputs, options, device_of(executor)));
  FLASHLATENT_ASSIGN_OR_RETURN(
      Selection selection, select(call.problem, executor, purpose_on(executor.backend, options.max_logits)));
  return Chosen{call, selection};
}

}  // namespace

Purpose purpose_on(Backend backend, bool max_logits) {
  if (backend != Backend::kCuda) return Purpose::kDecode;
  return max_logits ? Purpose::kTurnsMaxLogits : Purpose::kTurns;
}

TensorView max_logits_as_decode(const SparsePrefillOutputs& outputs) {
  return outputs.max_logits.present() ? with_last_query_token(outputs.max_logits) : TensorView();
}

Result<SparsePrefillCall> as_decode(const SparsePrefillInputs& inputs, const SparsePrefillOptions& options,
                                    Device device) {
  FLASHLATENT_RETURN_IF_ERROR(validate_shapes(inputs, options.format, device));
  SparsePrefillCall call;
  call.inputs.q = with_query_token(inputs.q);
  if (inputs.q_rope.present()) call.inputs.q_rope = with_query_token(inputs.q_rope);
  call.inputs.kv_cache = inputs.kv.rank == 3 ? rows_as_pages(inputs.kv) : inputs.kv;
  call.inputs.indices = inputs.indices;
  call.inputs.topk_length = inputs.topk_length;
  call.inputs.attn_sink = inputs.attn_sink;
  call.inputs.extra_kv_cache = inputs.extra_kv_cache;
  call.inputs.extra_indices = inputs.extra_indices;
  call.inputs.extra_topk_length = inputs.extra_topk_length;
  call.inputs.kv_scale = inputs.kv_scale;
  call.inputs.q_scale = inputs.q_scale;
  call.inputs.q_norm = inputs.q_norm;
  call.inputs.q_rotate = with_query_token(inputs.q_rotate);
  call.inputs.out_rotate = with_query_token(inputs.out_rotate);
  DecodeProblem::Options decode_options;
  decode_options.softmax_scale = options.softmax_scale;
  decode_options.out_edge = options.out_edge;
  decode_options.products = options.products;
  FLASHLATENT_ASSIGN_OR_RETURN(call.problem, infer_problem(call.inputs, options.v_dim, decode_options,
                                                           options.format, options.extra_format));
  FLASHLATENT_RETURN_IF_ERROR(validate_inputs(call.problem, call.inputs, device));
  return call;
}

Result<std::size_t> sparse_prefill_workspace_bytes(const SparsePrefillInputs& inputs,
                                                   const SparsePrefillOptions& options,
                                                   const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Chosen chosen, choose_kernel(inputs, options, executor));
  return chosen.workspace().bytes;
}

Result<std::size_t> sparse_prefill_workspace_bytes(const SparsePrefillInputs& inputs,
                                                   const SparsePrefillOutputs& outputs,
                                                   const SparsePrefillOptions& options,
                                                   const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Chosen chosen, choose_kernel(inputs, options, executor));
  FLASHLATENT_RETURN_IF_ERROR(
      validate_outputs(chosen.call.problem, inputs, outputs, options.max_logits, device_of(executor)));
  return chosen.workspace(decode_outputs_of(outputs)).bytes;
}

Result<std::string> sparse_prefill_kernel(const SparsePrefillInputs& inputs,
                                          const SparsePrefillOutputs& outputs,
                                          const SparsePrefillOptions& options, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Chosen chosen, choose_kernel(inputs, options, executor));
  const DecodeOutputs decode = decode_outputs_of(outputs);
  const LayerEdges edges = edges_of(chosen, decode, kUnreadRoom);
  FLASHLATENT_ASSIGN_OR_RETURN(const DecodeKernel* kernel,
                               kernel_of_call(*chosen.selection.kernel, chosen.call.problem, edges.inputs(),
                                              edges.outputs(), executor.kernel));
  return std::string(kernel->name);
}

Result<FusedEdges> sparse_prefill_edges(const SparsePrefillInputs& inputs,
                                        const SparsePrefillOutputs& outputs,
                                        const SparsePrefillOptions& options, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Chosen chosen, choose_kernel(inputs, options, executor));
  return fused_edges(chosen.selection, chosen.call.problem, chosen.call.inputs, decode_outputs_of(outputs));
}

Status sparse_prefill(const SparsePrefillInputs& inputs, const SparsePrefillOutputs& outputs,
                      const SparsePrefillOptions& options, Memory workspace, const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const Chosen chosen, choose_kernel(inputs, options, executor));
  const DecodeProblem& problem = chosen.call.problem;
  const Selection& selection = chosen.selection;
  const Device device = device_of(executor);
  FLASHLATENT_RETURN_IF_ERROR(validate_outputs(problem, inputs, outputs, options.max_logits, device));
  const WorkspaceSize size = chosen.workspace(decode_outputs_of(outputs));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("workspace", workspace, size.bytes, kAlignment));
  FLASHLATENT_RETURN_IF_ERROR(expect_apart(inputs, outputs, {workspace.data, size.bytes}, device));
  if (problem.query.batch == 0) return {};
  const DecodeOutputs decode_outputs = decode_outputs_of(outputs);
  auto* const bytes = static_cast<std::byte*>(workspace.data);
  const LayerEdges edges = edges_of(chosen, decode_outputs, bytes + size.edges_begin);
  FLASHLATENT_RETURN_IF_ERROR(check_call(false, problem, chosen.call.inputs, executor));
  FLASHLATENT_ASSIGN_OR_RETURN(
      const DecodeKernel* kernel,
      kernel_of_call(*selection.kernel, problem, edges.inputs(), edges.outputs(), executor.kernel));
  FLASHLATENT_RETURN_IF_ERROR(edges.before(executor));
  Memory plan, rest;
  if (executor.backend == Backend::kCpu) {
    plan = build_plan(selection, lengths_of(problem, edges.inputs()), workspace);
    rest = {bytes + plan.bytes, size.edges_begin - plan.bytes};
  }
  FLASHLATENT_RETURN_IF_ERROR(kernel->launch({problem,
                                              edges.inputs(),
                                              edges.outputs(),
                                              selection.geometry,
                                              selection.prefix,
                                              plan,
                                              rest,
                                              executor,
                                              max_logits_as_decode(outputs),
                                              {},
                                              {},
                                              /*sparse_prefill=*/true}));
  return edges.behind(executor);
}

}  // namespace flashlatent
