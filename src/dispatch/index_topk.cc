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
#include "dispatch/select.h"

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
  if (keys.present() && !is_half(keys.dtype)) {
    return invalid_argument("keys is ", to_string(keys), "; bf16 and fp16 are accepted");
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
                         const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  FLASHLATENT_RETURN_IF_ERROR(expect_index_cache(index_cache, format, page_size, device_of(executor)));
  FLASHLATENT_RETURN_IF_ERROR(expect_keys(keys, slot_mapping, device_of(executor)));
  FLASHLATENT_RETURN_IF_ERROR(expect_apart("keys", keys, "index_cache", index_cache));
  if (slot_mapping.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, append_index_keys)(keys, slot_mapping, index_cache, format,
                                                             page_size, executor);
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
  FLASHLATENT_RETURN_IF_ERROR(expect_apart("index_cache", index_cache, "out", out));
  if (out.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, gather_index_keys)(index_cache, block_table, cu_seqlens, out,
                                                             format, page_size, executor);
}

}  // namespace flashlatent
