#include "flashlatent/index_topk.h"

#include "core/expect.h"
#include "core/index_check.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/validate.h"
#include "dispatch/on_backend.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/index_backend.h"
#endif
#include "core/index_keys.h"
#include "dispatch/select.h"
#include "dispatch/token_edges.h"

namespace flashlatent {

namespace {

Status validate_kernel(const Executor& executor) {
  if (executor.kernel.empty()) return validate(executor);
  const bool cpu = executor.backend == Backend::kCpu;
  if (executor.kernel != "index_topk" && !(cpu && executor.kernel == "reference")) {
    return unsupported("kernel is '", executor.kernel, "', which does not choose index keys; ",
                       cpu ? "index_topk and reference do" : "index_topk does");
  }
  Executor unnamed = executor;  // the names of decode kernels are others
  unnamed.kernel.clear();
  return validate(unnamed);
}

Status expect_keys(const ConstTensorView& keys, const ConstTensorView& slot_mapping, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_integers("slot_mapping", slot_mapping, device, {-1}));
  if (keys.present() && !is_half(keys.dtype) && keys.dtype != Dtype::kF32) {
    return invalid_argument("keys is ", to_string(keys), "; bf16, fp16 and fp32 are accepted");
  }
  return expect_strided("keys", keys, keys.present() ? keys.dtype : Dtype::kBF16, device,
                        {slot_mapping.shape[0], kIndexDim});
}

}  // namespace

Result<std::size_t> index_topk_workspace_bytes(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs,
                                               const IndexTopkOptions& options, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_kernel(executor));
  FLASHLATENT_ASSIGN_OR_RETURN(const IndexCall call,
                               index_call(inputs, outputs, options, device_of(executor)));
  if (call.rows() == 0) return std::size_t{0};
  return FLASHLATENT_ON_BACKEND(executor, index_topk_workspace_bytes)(call, executor);
}

Status index_topk(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs,
                  const IndexTopkOptions& options, Memory workspace, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_kernel(executor));
  FLASHLATENT_ASSIGN_OR_RETURN(const IndexCall call,
                               index_call(inputs, outputs, options, device_of(executor)));
  if (call.rows() == 0) return {};
  FLASHLATENT_ASSIGN_OR_RETURN(const std::size_t bytes,
                               FLASHLATENT_ON_BACKEND(executor, index_topk_workspace_bytes)(call, executor));
  FLASHLATENT_RETURN_IF_ERROR(validate_memory("workspace", workspace, bytes));
  FLASHLATENT_RETURN_IF_ERROR(expect_apart(inputs, outputs, {workspace.data, bytes}, device_of(executor)));
  return FLASHLATENT_ON_BACKEND(executor, index_topk)(call, workspace, executor);
}

Status merge_topk(const ConstTensorView& scores, const ConstTensorView& counts,
                  const ConstTensorView& indices, int rank, const TensorView& out,
                  const TensorView& out_counts, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_ASSIGN_OR_RETURN(
      const MergeCall call, merge_call(scores, counts, indices, rank, out, out_counts, device_of(executor)));
  if (out.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, merge_topk)(call, executor);
}

Status append_index_keys(const ConstTensorView& keys, const ConstTensorView& slot_mapping,
                         const TensorView& index_cache, IndexFormat format, int page_size,
                         const Executor& executor, const TokenEdges& edges) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(expect_index_cache(index_cache, format, page_size, device_of(executor)));
  FLASHLATENT_RETURN_IF_ERROR(expect_keys(keys, slot_mapping, device_of(executor)));
  FLASHLATENT_RETURN_IF_ERROR(expect_token_edges(edges, {"keys", keys}, {"keys", keys}, device_of(executor)));
  const ConstTensorView cache = index_cache;
  const NamedView written[] = {{"index_cache", &cache}};
  FLASHLATENT_RETURN_IF_ERROR(
      expect_apart_from(written, edges, {{"keys", &keys}, {"slot_mapping", &slot_mapping}}));
  if (slot_mapping.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, append_index_keys)(keys, slot_mapping, index_cache, format,
                                                             page_size, executor, edges);
}

Status quantize_index_queries(const ConstTensorView& q, const ConstTensorView& weights,
                              const Rotation& rotate, RotaryColumns columns, IndexFormat format,
                              const IndexQueries& out, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  if (!q.present() || !is_half(q.dtype) || (q.rank != 3 && q.rank != 4)) {
    return invalid_argument("q is ", q.present() ? to_string(q) : "missing",
                            "; expected bf16 or fp16 (tokens, heads, 128) or (batch, s_q, heads, 128) on ",
                            to_string(device));
  }
  std::vector<std::int64_t> shape(q.rank, -1);
  shape.back() = kIndexDim;
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("q", q, q.dtype, device, shape));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("q", q));
  shape.assign(q.shape.begin(), q.shape.begin() + q.rank);
  const std::vector<std::int64_t> heads(shape.begin(), shape.end() - 1),
      tokens(heads.begin(), heads.end() - 1);
  if (weights.present() && weights.dtype != Dtype::kF32 && !is_half(weights.dtype)) {
    return invalid_argument("weights is ", to_string(weights), "; bf16, fp16 and fp32 are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(
      expect("weights", weights, weights.present() ? weights.dtype : Dtype::kF32, device, heads));
  if (rotate.present()) {
    if (!rotate.table.present()) {
      return invalid_argument("positions are given and table is missing; positions and table go together");
    }
    FLASHLATENT_RETURN_IF_ERROR(expect_rotation(rotate, tokens, {"q", q}, kIndexDim, device));
  }
  shape.back() = index_keys::data_bytes(format);
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("codes", out.codes, Dtype::kU8, device, shape));
  FLASHLATENT_RETURN_IF_ERROR(expect("out_weights", out.weights, Dtype::kF32, device, heads));
  if (format == IndexFormat::kFp8_132) {
    if (out.scales.present()) {
      return invalid_argument("scales is given and format is fp8_132; its scales go to the weights");
    }
  } else {
    shape.back() = index_keys::kGroups;
    FLASHLATENT_RETURN_IF_ERROR(expect_strided("scales", out.scales, Dtype::kU8, device, shape));
  }
  const bool in_place = weights.data == out.weights.data && weights.strides == out.weights.strides &&
                        weights.dtype == Dtype::kF32;
  const ConstTensorView codes = out.codes, scales = out.scales, out_weights = out.weights;
  const NamedView written[] = {{"codes", &codes}, {"out_weights", &out_weights}, {"scales", &scales}};
  const std::span present(written, scales.present() ? 3 : 2);
  FLASHLATENT_RETURN_IF_ERROR(expect_apart_from(present, rotate, {{"q", &q}}));
  if (!in_place) {
    const NamedView read[] = {{"weights", &weights}};
    FLASHLATENT_RETURN_IF_ERROR(expect_apart(present, read));
  }
  if (q.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, quantize_index_queries)(q, weights, rotate, columns, format, out,
                                                                  executor);
}

Status gather_index_keys(const ConstTensorView& index_cache, const ConstTensorView& block_table,
                         const ConstTensorView& cu_seqlens, const TensorView& out, IndexFormat format,
                         int page_size, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_RETURN_IF_ERROR(expect_index_cache(index_cache, format, page_size, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_gathered(block_table, cu_seqlens, {}, device));
  if (out.present() && !is_half(out.dtype) && out.dtype != Dtype::kF32) {
    return invalid_argument("out is ", to_string(ConstTensorView(out)), "; bf16, fp16 and fp32 are accepted");
  }
  FLASHLATENT_RETURN_IF_ERROR(
      expect_strided("out", out, out.present() ? out.dtype : Dtype::kBF16, device, {-1, kIndexDim}));
  const ConstTensorView rows = out;
  const NamedView written[] = {{"out", &rows}}, read[] = {{"index_cache", &index_cache},
                                                          {"block_table", &block_table},
                                                          {"cu_seqlens", &cu_seqlens}};
  FLASHLATENT_RETURN_IF_ERROR(expect_apart(written, read));
  if (out.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, gather_index_keys)(index_cache, block_table, cu_seqlens, out,
                                                             format, page_size, executor);
}

}  // namespace flashlatent
