// A problem with its kernel, plan storage and workspace at hand: what each call needs is looked up once.
#pragma once

#include "dispatch/select.h"
#include "python/src/array.h"
#include "python/src/memory.h"

namespace flashlatent::python {

class Plan {
 public:
  /// Raises what select() has to say.
  Plan(const DecodeProblem& problem, const Executor& executor);

  const DecodeProblem& problem() const { return problem_; }
  const Executor& executor() const { return executor_; }
  const Selection& selection() const { return selection_; }
  Device device() const { return device_; }

  /// Plans a step. `lengths` may be None where the problem has none; then `like` is an array of the package
  /// whose stream and allocator are used. `once`: not if a plan was made that the next decode() finds:
  /// outside of CUDA graphs any, in a graph being captured one made in the same graph (a plan stays right
  /// when lengths change).
  void schedule(nb::handle lengths, nb::handle like, nb::handle stream, bool once);

  /// One layer.
  nb::tuple decode(nb::handle q, nb::handle kv_cache, nb::handle block_table, nb::handle cache_seqlens,
                   nb::handle indices, nb::handle topk_length, nb::handle cu_seqlens_q, nb::handle attn_sink,
                   nb::object out, nb::object lse, nb::handle workspace, nb::handle stream);

 private:
  DecodeProblem problem_;
  Executor executor_;
  Device device_;
  Selection selection_;
  Buffer plan_;
  Buffer workspace_;
  Memory plan_memory_;
  bool scheduled_ = false;              // by a call that was executed
  unsigned long long captured_in_ = 0;  // the id of the last graph whose capture has a plan; 0: none
};

}  // namespace flashlatent::python
