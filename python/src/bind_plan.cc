// flashlatent.Plan, and a plan as data.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "dispatch/select.h"
#include "flashlatent/plan_description.h"
#include "plan/describe.h"
#include "plan/host_plan.h"
#include "python/src/bindings.h"
#include "python/src/check.h"
#include "python/src/constructor.h"
#include "python/src/cuda_stream.h"
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
      segment["slot"] = s.partial;
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
  result["partition"] = plan.partition;
  result["team"] = plan.team;
  result["rounds"] = plan.rounds;
  result["block_tokens"] = plan.block_tokens;
  result["cost_per_block"] = plan.cost_per_block;
  result["cost_per_split"] = plan.cost_per_split;
  result["largest"] = plan.largest();
  result["ideal"] = plan.ideal();
  result["imbalance"] = plan.imbalance();
  result["slots"] = plan.partials;
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
  check_workers(workers);
  const std::vector<Candidate> list = take(candidates(problem, executor_on(device, 0, kernel), workers));
  const Candidate* picked = cheapest(list);
  if (picked == nullptr) raise(none_takes(problem, list));
  const schedule::Geometry& geometry = picked->geometry;
  std::vector<std::max_align_t> memory(schedule::plan_bytes(geometry) / sizeof(std::max_align_t) + 1);
  schedule::build_on_host(geometry, lengths.data(), memory.data(),
                          {.packs = packs(problem, *picked, workers)});
  return to_dict(
      take(describe_plan(geometry, lengths.data(), {memory.data(), memory.size() * sizeof(std::max_align_t)},
                         picked->kernel->name)));
}

void schedule(Plan& plan, nb::handle lengths, nb::handle extra_lengths, nb::handle cu_seqlens_q,
              nb::handle pages, nb::handle like, nb::handle storage, nb::handle stream) {
  if (!extra_lengths.is_none() && !plan.problem().cache.extra.enabled) {
    refuse("extra_lengths is given, but the plan's problem has no extra cache; leave it out");
  }
  if (!pages.is_none() && plan.problem().options.prefix_sharing == PrefixSharing::kOff) {
    refuse("pages is given, but the plan's problem has prefix_sharing 'off'; leave it out");
  }
  if (like.is_none()) like = lengths.is_none() ? extra_lengths : lengths;
  const WorkStream work(like, plan.device(), stream);
  const Array array = Array::read(plan.problem().sparse.enabled ? "topk_length" : "cache_seqlens", lengths);
  const Array extra = Array::read(
      plan.problem().cache.extra.indexed ? "extra_topk_length" : "extra_cache_seqlens", extra_lengths);
  const Array begins = Array::read("cu_seqlens_q", cu_seqlens_q);
  const PlanLengths given(array.view(), extra.view(), begins.view());
  if (pages.is_none()) {
    plan.schedule(given, like, storage, work.handle());
  } else {
    const bool is_tuple = nb::isinstance<nb::tuple>(pages);
    if (!is_tuple || nb::len(pages) != 2) {
      refuse("pages is a ", type_of(pages), is_tuple ? message(" of ", nb::len(pages)) : "",
             "; a tuple (block_table, cache_seqlens) on the CPU is expected");
    }
    const Array table = Array::read("pages.block_table", nb::object(pages[0]));
    const Array host_lengths = Array::read("pages.cache_seqlens", nb::object(pages[1]));
    const HostPages host{table.view(), host_lengths.view()};
    plan.schedule(given, like, storage, work.handle(), false, &host);
  }
  work.finish();
}

nb::tuple decode(Plan& plan, DecodeArguments&& given) {
  const Dtype dtype = plan.problem().cache.dtype;
  const InputArrays arrays(given, dtype == Dtype::kBF16 ? std::optional(dtype) : std::nullopt);
  const DecodeInputs inputs = arrays.inputs();
  const WorkStream work(given.q, plan.device(), given.stream);
  check_inputs(either(given.check_inputs, plan.checks_inputs()), plan.problem(), inputs, given.q,
               plan.device(), work.handle());
  nb::tuple result = plan.decode(inputs, arrays.out_fp8(), std::move(given), work.handle());
  work.finish();
  return result;
}

}  // namespace

void bind_plan(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Plan> plan(module, "Plan",
                        R"(A problem on a device: schedule() once a step, decode() once a layer.

It holds the plan and, unless callers bring their own, a workspace, so it serves one call at a time (layers one
after the other). On CUDA both calls only enqueue work and can be captured in a CUDA graph: a captured schedule()
plans on replay for the lengths that are then in memory. Make one call before the capture, so that kernels are
loaded and memory is there, and keep the plan as long as the graph, which works in its memory. A plan stays right, if
not balanced, when lengths change, but not with batch_invariant: schedule() again then.

problem  the Problem that all its calls pose
device   'cpu', 'cuda' or 'cuda:N'
threads  CPU: 0 means all
kernel   forces one of info()'s kernels; '': the library picks
check_inputs  True: every call looks at its lengths and page numbers first, as flashlatent.decode() says; None: on
           the CPU only; False: calls that ask for it
Raises UnsupportedError with each kernel's reason if none takes the problem, UnavailableError where the device
can't be used.)");
  module.def(
      "_Plan",
      [](const DecodeProblem& problem, const std::string& device, int threads, const std::string& kernel,
         std::optional<bool> check_inputs) {
        return Plan(problem, executor_on(device, threads, kernel), check_inputs);
      },
      "problem"_a, nb::kw_only(), "device"_a = "cpu", "threads"_a = 0, "kernel"_a = "",
      "check_inputs"_a.none() = false);
  define_constructor(plan, module, "_Plan");
  plan.def_static(
          "like",
          [](const DecodeProblem& problem, nb::handle array, int threads, const std::string& kernel,
             std::optional<bool> check_inputs) {
            const Array like = Array::read("array", array, Dtype::kBF16);
            return new Plan(problem, executor_on(like.view().device, threads, kernel), check_inputs);
          },
          "problem"_a, "array"_a, nb::kw_only(), "threads"_a = 0, "kernel"_a = "",
          "check_inputs"_a.none() = false,
          R"(A Plan on the device of an array.

problem  a Problem
array    of any package; it is not read
threads, kernel, check_inputs  as in Plan())")
      .def("schedule", &schedule, "lengths"_a.none(), nb::kw_only(), "extra_lengths"_a = nb::none(),
           "cu_seqlens_q"_a = nb::none(), "pages"_a = nb::none(), "like"_a = nb::none(),
           "plan"_a = nb::none(), "stream"_a = nb::none(),
           R"(Plans one step: which part does which blocks of which request.

lengths  int32 (batch): cache_seqlens, or topk_length where decode is sparse (None: all have topk; or (batch, s_q)); clamped to
         what the page table, or topk, has room for
extra_lengths  with an extra cache: extra_cache_seqlens, or extra_topk_length (None: all have the extra topk)
cu_seqlens_q   of a ragged batch: with two caches, or a window over a latent cache, query tokens are shared out one by
         one, and a plan that is not told counts as many for each request as the one with the most has
pages    with a Problem that has prefix_sharing: (block_table, cache_seqlens) on the CPU, int32 (batch, max_pages) and
         (batch), as decode() will have them: requests whose page tables begin alike attend to those tokens together
         where that pays. The plan stays right as long as the page tables of those that are long enough begin with
         the pages they had in common; who has become shorter attends to all of its tokens by itself
like     an array of the package whose allocator and current stream are used; lengths if not given
plan     uint8, contiguous, on the plan's device, plan_bytes long: where the plan goes; the object's own memory
         if not given
stream   CUDA: the stream to work on, an integer handle (cudaStream_t) or a stream object of torch or CuPy; the
         current one of like's package if not given

A plan stays right, if not balanced, when lengths change after it was made, with shared prefixes too. The one
exception is batch_invariant: with it a plan must be made again.)");
  using namespace arguments;
  def_method(plan, "decode", &decode, std::tuple_cat(kLatent, std::tuple(kCacheSeqlens)),
             std::tuple_cat(std::tuple(kQRope, kIndices, kCuSeqlensQ), kExtra, kLatentCall, kCall),
             R"(Runs one layer; returns (out, lse).

Shapes, dtypes and errors as in flashlatent.decode(); arrays must fit the problem and be on the plan's device.
`plan` is what schedule() wrote to, if that was not the object's own. out, lse and
workspace are made if not given. check_inputs is off unless it or the Plan's is given (None: on the CPU only).)");
  def_method(plan, "decode_kv", &decode, std::tuple_cat(kKeyValue, std::tuple(required(kCacheSeqlens))),
             std::tuple_cat(std::tuple(kCuSeqlensQ), kKeyValueCall, kCall),
             R"(Runs one layer of separate or packed keys and values; returns (out, lse).

As decode(), with the arrays of flashlatent.decode_kv(); the problem has the options, `alibi` and `attn_sink` too.
`plan` as in decode().)");
  plan.def("__repr__",
           [](const Plan& plan) {
             return message("<flashlatent.Plan ", plan.handle().kernel(), " on ", to_string(plan.device()),
                            ": ", to_string(plan.problem()), ">");
           })
      .def_prop_ro(
          "problem", [](const Plan& plan) { return plan.problem(); }, "The Problem that it was made for.")
      .def_prop_ro(
          "kernel", [](const Plan& plan) { return std::string(plan.handle().kernel()); },
          "The name of the kernel that runs.")
      .def_prop_ro(
          "near_kernel",
          [](const Plan& plan) {
            const char* name = plan.handle().near_kernel();
            return name == nullptr ? std::optional<std::string>() : std::string(name);
          },
          "The name of the kernel that runs in place of `kernel` where schedule() finds no request longer "
          "than\n"
          "near_tokens on the device; None if there is one kernel.")
      .def_prop_ro(
          "near_tokens", [](const Plan& plan) { return plan.handle().near_tokens(); },
          "See near_kernel; 0 if there is one kernel.")
      .def_prop_ro(
          "device", [](const Plan& plan) { return to_string(plan.device()); },
          "Where it runs: 'cpu', 'cuda:0', ...")
      .def_prop_ro(
          "plan_bytes", [](const Plan& plan) { return plan.handle().plan_bytes(); },
          "Bytes that a caller's plan storage must have. Depends on shapes, never on lengths.")
      .def_prop_ro(
          "workspace_bytes", [](const Plan& plan) { return with_alignment(plan.handle().workspace_bytes()); },
          "Bytes that a caller's workspace must have. Depends on shapes, never on lengths.");
  module.def("describe_plan", &describe, "problem"_a, "lengths"_a, nb::kw_only(), "device"_a = "cpu",
             "workers"_a, "kernel"_a = "",
             R"(The schedule of a batch as a dict, made on the host. Needs no GPU, nor a build with CUDA.

problem  a Problem
lengths  a sequence of integers, the problem's batch of them, in tokens: cache_seqlens, or topk_length of sparse decode
device   'cpu', 'cuda': whose kernels
workers  multiprocessors (an H200 has 132) or threads, 1 to 65536
kernel   forces one of info()'s kernels; '': the library picks

Returns 'kernel', 'partition', 'lanes', 'rounds', 'block_tokens', 'cost_per_block', 'cost_per_split', 'largest',
'ideal', 'imbalance', 'slots', 'merges' and 'parts': each {'cost', 'segments': [{'request', 'round', 'blocks':
(begin, end), 'slot'}]}. 'slot' is the place of the segment's partial result, 'slots' the number of these. A
segment of slot -1 is a whole request, which is not merged.)");
}

}  // namespace flashlatent::python
