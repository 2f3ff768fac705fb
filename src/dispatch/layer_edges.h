// The edges of a decode call that its kernel leaves out, as launches of their own before and behind it.
#pragma once

#include <cstdint>

#include "core/edge_room.h"
#include "dispatch/select.h"

namespace flashlatent {

/// The edges that the selected kernel sees to in a call.
FusedEdges fused_edges(const Selection& selection, const DecodeProblem& problem, const DecodeInputs& inputs,
                       const DecodeOutputs& outputs);

/// The bytes of a call's workspace, and where the room for its edges begins, behind its kernel's `own` bytes.
struct WorkspaceSize {
  std::size_t bytes, edges;
};
WorkspaceSize workspace_with_edges(std::size_t own, const DecodeProblem& problem);

/// Room for calls that are asked about, and do not run: aligned as in a workspace.
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
