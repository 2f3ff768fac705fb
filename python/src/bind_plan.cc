// flashlatent.Plan, and a plan as data.
#include <nanobind/stl/vector.h>

#include "flashlatent/plan.h"
#include "plan/host_plan.h"
#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/plan.h"

namespace flashlatent::python {

namespace {

nb::dict to_dict(const PlanDescription& plan) {
  nb::list parts;
  for (const PlanPart& part : plan.parts) {
    nb::list segments;
    for (const PlanSegment& s : part.segments) {
      nb::dict segment;
      segment["request"] = s.request;
      segment["round"] = s.round;
      segment["blocks"] = nb::make_tuple(s.block_begin, s.block_end);
      segment["slot"] = s.slot;
      segments.append(segment);
    }
    nb::dict entry;
    entry["cost"] = part.cost;
    entry["segments"] = segments;
    parts.append(entry);
  }
  nb::dict result;
  result["kernel"] = plan.kernel;
  result["lanes"] = plan.lanes;
  result["rounds"] = plan.rounds;
  result["block_tokens"] = plan.block_tokens;
  result["cost_per_block"] = plan.cost_per_block;
  result["cost_per_split"] = plan.cost_per_split;
  result["largest"] = plan.largest();
  result["ideal"] = plan.ideal();
  result["imbalance"] = plan.imbalance();
  result["slots"] = plan.slots;
  result["merges"] = plan.merges;
  result["parts"] = parts;
  return result;
}

/// The same plan as schedule() makes, made on the host. Asks no device.
nb::dict describe(const DecodeProblem& problem, const std::vector<std::int32_t>& lengths,
                  const std::string& device, int workers, const std::string& kernel) {
  if (lengths.size() != static_cast<std::size_t>(problem.query.batch)) {
    refuse("lengths has ", lengths.size(), " entries; the problem's batch is ", problem.query.batch);
  }
  if (workers < 1 || workers > 1 << 16) refuse("workers is ", workers, "; 1 to 65536 are accepted");
  const std::vector<Candidate> list = take(candidates(problem, executor_on(device, 0, kernel), workers));
  const Candidate* picked = cheapest(list);
  if (picked == nullptr) {
    if (list.empty()) refuse("device is '", device, "'; this build has no kernel for it");
    raise(none_takes(problem, list));
  }
  const schedule::Geometry& geometry = picked->geometry;
  std::vector<std::max_align_t> memory(schedule::plan_bytes(geometry) / sizeof(std::max_align_t) + 1);
  schedule::build_on_host(geometry, lengths.data(), memory.data());
  return to_dict(
      take(describe_plan(geometry, lengths.data(), {memory.data(), memory.size() * sizeof(std::max_align_t)},
                         picked->kernel->name)));
}

}  // namespace

void bind_plan(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Plan>(module, "Plan",
                   "A problem on a device: schedule() once a step, decode() once a layer. See _native.pyi.")
      .def(
          "__init__",
          [](Plan* self, const DecodeProblem& problem, const std::string& device, int threads,
             const std::string& kernel) { new (self) Plan(problem, executor_on(device, threads, kernel)); },
          "problem"_a, nb::kw_only(), "device"_a = "cpu", "threads"_a = 0, "kernel"_a = "")
      .def_static(
          "like",
          [](const DecodeProblem& problem, nb::handle array, int threads, const std::string& kernel) {
            const Array like = Array::read("array", array, Dtype::kBF16);
            return new Plan(problem, executor_on(like.view().device, threads, kernel));
          },
          "problem"_a, "array"_a, nb::kw_only(), "threads"_a = 0, "kernel"_a = "",
          "A plan on the device of this array.")
      .def("schedule", &Plan::schedule, "lengths"_a.none(), nb::kw_only(), "like"_a = nb::none(),
           "stream"_a = nb::none(), "once"_a = false,
           "Plans one step for these lengths: cache_seqlens, or topk_length where decode is sparse.")
      .def("decode", &Plan::decode, "q"_a, "kv_cache"_a, "block_table"_a = nb::none(),
           "cache_seqlens"_a = nb::none(), nb::kw_only(), "indices"_a = nb::none(),
           "topk_length"_a = nb::none(), "cu_seqlens_q"_a = nb::none(), "attn_sink"_a = nb::none(),
           "out"_a = nb::none(), "lse"_a = nb::none(), "workspace"_a = nb::none(), "stream"_a = nb::none(),
           "Runs one layer; returns (out, lse).")
      .def("__repr__",
           [](const Plan& plan) {
             return message("<flashlatent.Plan ", plan.selection().kernel->name, " on ",
                            to_string(plan.device()), ": ", to_string(plan.problem()), ">");
           })
      .def_prop_ro("problem", [](const Plan& plan) { return plan.problem(); })
      .def_prop_ro("kernel", [](const Plan& plan) { return std::string(plan.selection().kernel->name); })
      .def_prop_ro("device", [](const Plan& plan) { return to_string(plan.device()); })
      .def_prop_ro("plan_bytes", [](const Plan& plan) { return plan.selection().plan_bytes; })
      .def_prop_ro("workspace_bytes", [](const Plan& plan) {
        const std::size_t bytes = plan.selection().workspace_bytes;
        return bytes == 0 ? 0 : bytes + kMemoryAlignment;
      });
  module.def(
      "describe_plan", &describe, "problem"_a, "lengths"_a, nb::kw_only(), "device"_a = "cpu", "workers"_a,
      "kernel"_a = "",
      "The schedule of a batch as a dict: parts, their segments and costs. Needs no GPU. See _native.pyi.");
}

}  // namespace flashlatent::python
