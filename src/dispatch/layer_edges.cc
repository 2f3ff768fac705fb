#include "dispatch/layer_edges.h"

#include <cstddef>

#include "core/edge_check.h"
#include "core/return_if_error.h"
#include "dispatch/on_backend.h"

namespace flashlatent {

namespace {

/// `like`, contiguous, at `data`.
ConstTensorView contiguous_at(ConstTensorView like, void* data) {
  like.data = data;
  std::int64_t stride = 1;
  for (int i = like.rank - 1; i >= 0; --i) {
    like.strides[i] = stride;
    stride *= like.shape[i];
  }
  return like;
}

TensorView writable(const ConstTensorView& view) {
  TensorView to;
  to.data = const_cast<void*>(view.data);  // memory of the workspace
  to.dtype = view.dtype;
  to.device = view.device;
  to.rank = view.rank;
  to.shape = view.shape;
  to.strides = view.strides;
  return to;
}

}  // namespace

FusedEdges fused_edges(const Selection& selection, const DecodeProblem& problem, const DecodeInputs& inputs,
                       const DecodeOutputs& outputs) {
  const bool wanted = problem.options.q_edge || problem.options.out_edge;
  // Where a plan chooses between two kernels, both get the same tensors.
  if (!wanted || selection.kernel->fuses == nullptr || selection.near.kernel != nullptr) return {};
  return selection.kernel->fuses(problem, selection.geometry, inputs, outputs);
}

WorkspaceSize workspace_with_edges(std::size_t own, const DecodeProblem& problem) {
  const std::size_t edges = edge_room(problem).bytes();
  if (edges == 0) return {own, own};
  const std::size_t begin = (own + 255) / 256 * 256;
  return {begin + edges, begin};
}

std::size_t used_edge_room(const DecodeProblem& problem, const DecodeOutputs& outputs, FusedEdges fused) {
  const EdgeRoom room = edge_room(problem);
  if (problem.options.out_edge && !fused.output && !outputs.out.present()) return room.bytes();
  return problem.options.q_edge && !fused.query ? room.query : 0;
}

LayerEdges::LayerEdges(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
                       FusedEdges fused, void* room)
    : given_(inputs),
      wanted_(outputs),
      prepares_(problem.options.q_edge && !fused.query),
      finishes_(problem.options.out_edge && !fused.output),
      inputs_(inputs),
      outputs_(outputs) {
  if (prepares_) {
    ConstTensorView& prepared = inputs.q_rope.present() ? inputs_.q_rope : inputs_.q;
    prepared = contiguous_at(prepared, room);
    inputs_.q_norm = 0;
    inputs_.q_rotate = {};
  }
  if (finishes_) {
    inputs_.out_rotate = {};
    outputs_.out_fp8 = {};
    if (!outputs.out.present()) {
      outputs_.out = output_shape(problem, inputs, inputs.q.device);
      outputs_.out.data = static_cast<std::byte*>(room) + edge_room(problem).query;
    }
  }
}

Status LayerEdges::before(const Executor& executor) const {
  const bool parts = given_.q_rope.present();
  if (executor.backend == Backend::kCpu) {
    FLASHLATENT_RETURN_IF_ERROR(expect_positions(given_.q_rotate, kQueryRotation, given_.q));
    FLASHLATENT_RETURN_IF_ERROR(expect_positions(given_.out_rotate, kOutputRotation, given_.q));
  }
  if (!prepares_ || given_.q.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, prepare_queries)(
      parts ? given_.q_rope : given_.q, given_.q_norm, given_.q_rotate,
      writable(parts ? inputs_.q_rope : inputs_.q), executor);
}

Status LayerEdges::behind(const Executor& executor) const {
  if (!finishes_ || outputs_.out.elements() == 0) return {};
  return FLASHLATENT_ON_BACKEND(executor, finish_outputs)(outputs_.out, given_.out_rotate, wanted_.out,
                                                          wanted_.out_fp8, executor);
}

}  // namespace flashlatent
