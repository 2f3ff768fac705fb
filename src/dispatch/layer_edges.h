// The edges of a decode call or a sparse prefill that its kernel leaves out, as launches of their own before
// and behind it.
#pragma once

#include <cstdint>

#include "core/edge_room.h"
#include "dispatch/select.h"

namespace flashlatent {

/// The edges that the selected kernel sees to in a call.
FusedEdges fused_edges(const Selection& selection, const DecodeProblem& problem, const DecodeInputs& inputs,
                       const DecodeOutputs& outputs);

/// The bytes of a call's workspace, and the offset of the room for its edges, behind its kernel's `own`
/// bytes.
struct WorkspaceSize {
  std::size_t bytes, edges_begin;
};
WorkspaceSize workspace_with_edges(std::size_t own, const DecodeProblem& problem);

/// The part of that room that LayerEdges uses in a call with these outputs.
std::size_t used_edge_room(const DecodeProblem& problem, const DecodeOutputs& outputs, FusedEdges fused);

/// The room of a call that is asked about and does not run: aligned as in a workspace, and never read.
inline void* const kUnreadRoom = reinterpret_cast<void*>(std::uintptr_t{256});

/// A call's tensors as its kernel sees them. `room`: edge_room() bytes, for the prepared query and an output
/// that is not finished. The call's tensors are validated.
class LayerEdges {
 public:
  LayerEdges(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs,
             FusedEdges fused, void* room);

  const DecodeInputs& inputs() const { return inputs_; }
  const DecodeOutputs& outputs() const { return outputs_; }

  /// Prepares the query. On the CPU positions are checked first, also those of the output.
  Status before(const Executor& executor) const;
  /// Finishes the output.
  Status behind(const Executor& executor) const;

 private:
  const DecodeInputs& given_;
  const DecodeOutputs& wanted_;
  const bool prepares_, finishes_;
  DecodeInputs inputs_;
  DecodeOutputs outputs_;
};

}  // namespace flashlatent
