#include "python/src/plan.h"

#include <cstring>

#include "dispatch/select.h"
#include "python/src/check.h"
#include "python/src/errors.h"

namespace flashlatent::python {

Plan::Plan(const DecodeProblem& problem, const Executor& executor, std::optional<bool> check_inputs)
    : handle_(take(flashlatent::Plan::make(problem, executor))),
      device_(device_of(executor)),
      check_inputs_(check_inputs) {}

Status Plan::plan_into(Memory memory, const PlanLengths& lengths, const HostPages* pages,
                       void* stream) const {
  const flashlatent::Plan there = handle_.with_stream(stream);
  return pages == nullptr ? there.schedule(lengths, memory) : there.schedule(lengths, *pages, memory);
}

void Plan::schedule(const PlanLengths& lengths, nb::handle like, nb::handle storage, void* stream, bool fresh,
                    const HostPages* pages) {
  if (!storage.is_none()) {
    const Memory memory = memory_of("plan", Array::output("plan", storage, {}, fresh));
    if (device_.type == DeviceType::kCpu && !is_aligned(memory) && memory.bytes >= handle_.plan_bytes()) {
      // A plan must not depend on where it lies: arrays are copied.
      Buffer buffer;
      const Memory aligned = buffer.at_least(handle_.plan_bytes(), device_, like);
      check(plan_into(aligned, lengths, pages, stream));
      std::memcpy(memory.data, aligned.data, handle_.plan_bytes());
      return;
    }
    check(plan_into(memory, lengths, pages, stream));
    return;
  }
  if (plan_use_.any()) {
    refuse("the plan of ", to_string(problem()), " is in use by a decode call of another thread; plan= of ",
           "schedule(), or a Plan or Step for each thread, is expected");
  }
  check(plan_into(plan_.at_least(handle_.plan_bytes(), device_, like), lengths, pages, stream));
  scheduled_ = true;
}

nb::tuple Plan::decode(const DecodeInputs& inputs, const Fp8Output& out_fp8, DecodeArguments given,
                       void* stream, bool fresh_workspace) {
  const nb::handle q = given.q;
  if (given.plan.is_none() && !scheduled_) {
    refuse("the plan of ", to_string(problem()),
           " is not made yet; call schedule() before decode(), once a step");
  }
  const auto& [query, cache, sparse, options] = problem();
  const bool own_plan = given.plan.is_none(), own_workspace = given.workspace.is_none();
  const bool new_out = given.out.is_none() && !out_fp8.present(), new_lse = given.lse.is_none();
  if (new_out) {
    const char* dtype = query.e4m3 ? "bfloat16" : nullptr;  // q's
    given.out = query.ragged ? empty_like(q, {inputs.q.shape[0], query.heads, cache.v_dim}, dtype)
                             : empty_like(q, {query.batch, query.tokens, query.heads, cache.v_dim}, dtype);
  }
  if (new_lse) given.lse = empty_like(q, {query.batch, query.heads, query.tokens}, "float32");
  const Array out = Array::output("out", given.out, cache.dtype, new_out);
  const Array lse = Array::output("lse", given.lse, {}, new_lse);
  const DecodeOutputs outputs{out.view(), lse.view(), out_fp8};
  Memory plan = own_plan ? plan_.memory() : memory_of("plan", Array::read("plan", given.plan));
  Buffer aligned_plan;
  if (device_.type == DeviceType::kCpu && !is_aligned(plan) && plan.bytes >= handle_.plan_bytes()) {
    const Memory aligned = aligned_plan.at_least(handle_.plan_bytes(), device_, q);
    std::memcpy(aligned.data, plan.data, handle_.plan_bytes());
    plan = aligned;
  }
  Buffer of_this_call;  // where another thread's call works in workspace_
  Buffer& own = workspace_use_.any() ? of_this_call : workspace_;
  const Memory workspace =
      own_workspace ? own.at_least(handle_.workspace_bytes(), device_, q)
                    : workspace_inside(Array::output("workspace", given.workspace, {}, fresh_workspace),
                                       handle_.workspace_bytes());
  const InUse::Call with_plan(own_plan ? &plan_use_ : nullptr);
  const InUse::Call with_workspace(own_workspace && &own == &workspace_ ? &workspace_use_ : nullptr);
  const flashlatent::Plan there = handle_.with_stream(stream);
  Status status;
  if (device_.type == DeviceType::kCpu || checks_every_call()) {
    const nb::gil_scoped_release release;
    status = there.decode(inputs, outputs, plan, workspace);
  } else {  // it only enqueues: shorter than a wait for the interpreter's lock
    status = there.decode(inputs, outputs, plan, workspace);
  }
  check(status);
  return nb::make_tuple(std::move(given.out), std::move(given.lse));
}

}  // namespace flashlatent::python
