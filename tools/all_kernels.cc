#include "tools/all_kernels.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "core/return_if_error.h"
#include "dispatch/select.h"
#include "flashlatent/plan.h"
#include "tools/shape_summary.h"

namespace flashlatent::tools {

namespace {

constexpr double kFarBehind = 1.08;
constexpr int kLonger = 3;  // times as many repeats where a pick seems behind

/// One step by one kernel: a plan and some calls.
class Step {
 public:
  static Result<std::unique_ptr<Step>> create(const runtime::BenchInput& input, int layers,
                                              const Executor& executor) {
    Result<Plan> plan = Plan::make(input.problem, executor);
    if (!plan.ok()) return plan.status();
    Result<runtime::Buffer> memory = runtime::Buffer::allocate(executor, plan->plan_bytes());
    if (!memory.ok()) return memory.status();
    Result<runtime::Buffer> workspace = runtime::Buffer::allocate(executor, plan->workspace_bytes());
    if (!workspace.ok()) return workspace.status();
    return std::unique_ptr<Step>(
        new Step(input, layers, std::move(*plan), std::move(*memory), std::move(*workspace)));
  }

  const char* kernel() const { return plan_.kernel(); }
  Status run() const {
    FLASHLATENT_RETURN_IF_ERROR(plan_.schedule(input_.inputs.cache_seqlens, memory_.memory()));
    for (int i = 0; i < layers_; ++i) {
      FLASHLATENT_RETURN_IF_ERROR(
          plan_.decode(input_.inputs, input_.outputs, memory_.memory(), workspace_.memory()));
    }
    return {};
  }

 private:
  Step(const runtime::BenchInput& input, int layers, Plan plan, runtime::Buffer memory,
       runtime::Buffer workspace)
      : input_(input),
        layers_(layers),
        plan_(std::move(plan)),
        memory_(std::move(memory)),
        workspace_(std::move(workspace)) {}

  const runtime::BenchInput& input_;
  int layers_;
  Plan plan_;
  runtime::Buffer memory_, workspace_;
};

/// The kernels that may be picked and that can run on these tensors.
Result<std::vector<std::unique_ptr<Step>>> steps_of(const runtime::BenchInput& input, int layers,
                                                    const Executor& executor) {
  Result<std::vector<std::string>> names = kernels_in_question(input.problem, executor);
  if (!names.ok()) return names.status();
  std::vector<std::unique_ptr<Step>> steps;
  for (const std::string& name : *names) {
    Executor by_name = executor;
    by_name.kernel = name;
    Result<std::unique_ptr<Step>> step = Step::create(input, layers, by_name);
    if (!step.ok()) return step.status();
    // Some kernels see from the tensors only that they cannot run.
    if (running_kernel(input.problem, input.inputs, input.outputs, by_name).ok()) {
      steps.push_back(std::move(*step));
    }
  }
  return steps;
}

Status time_all(KernelTimes& times, const std::vector<std::unique_ptr<Step>>& steps,
                const runtime::TimingOptions& options, int layers, const Executor& executor) {
  std::vector<std::function<Status()>> calls;
  calls.reserve(steps.size());
  for (const auto& step : steps) calls.emplace_back([&step] { return step->run(); });
  Result<std::vector<runtime::Timing>> timings = runtime::time_turn_about(calls, options, executor);
  if (!timings.ok()) return timings.status();
  times.ms.clear();
  for (std::size_t k = 0; k < steps.size(); ++k) {
    times.ms.emplace_back(steps[k]->kernel(), (*timings)[k].median / layers);
  }
  return {};
}

/// The shapes whose pick is behind, the furthest first.
std::vector<const KernelTimes*> behind(const std::vector<KernelTimes>& shapes) {
  std::vector<const KernelTimes*> list;
  for (const KernelTimes& shape : shapes) {
    if (shape.loss() > kBehind) list.push_back(&shape);
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const KernelTimes* a, const KernelTimes* b) { return a->loss() > b->loss(); });
  return list;
}

long count_far(const std::vector<KernelTimes>& shapes) {
  return std::count_if(shapes.begin(), shapes.end(),
                       [](const KernelTimes& shape) { return shape.loss() > kFarBehind; });
}

}  // namespace

double KernelTimes::of(const std::string& kernel) const {
  for (const auto& [name_of_kernel, time] : ms) {
    if (name_of_kernel == kernel) return time;
  }
  return 0;
}

const std::pair<std::string, double>& KernelTimes::best() const {
  return *std::min_element(ms.begin(), ms.end(), [](auto& a, auto& b) { return a.second < b.second; });
}

Result<KernelTimes> time_kernels(const runtime::BenchInput& input, const runtime::TimingOptions& options,
                                 int layers, const Executor& executor) {
  KernelTimes times;
  Result<std::string> picked = running_kernel(input.problem, input.inputs, input.outputs, executor);
  if (!picked.ok()) return picked.status();
  times.picked = *picked;
  Result<std::vector<std::unique_ptr<Step>>> steps = steps_of(input, layers, executor);
  if (!steps.ok()) return steps.status();
  runtime::TimingOptions rounds = options;
  rounds.graph_calls = 1;
  FLASHLATENT_RETURN_IF_ERROR(time_all(times, *steps, rounds, layers, executor));
  if (times.loss() > kBehind) {
    rounds.repeats *= kLonger;
    FLASHLATENT_RETURN_IF_ERROR(time_all(times, *steps, rounds, layers, executor));
  }
  return times;
}

std::string to_text(const std::vector<KernelTimes>& shapes) {
  const auto list = behind(shapes);
  const double count = static_cast<double>(shapes.size());
  std::string text =
      fmt::format("\npicked kernels beside the best by name: {} of {} within 3 % ({:.1f} %), {} beyond 8 %\n",
                  shapes.size() - list.size(), shapes.size(),
                  100 * (count - static_cast<double>(list.size())) / count, count_far(shapes));
  for (const KernelTimes* shape : list) {
    text += fmt::format("{:<50} {} {:.4f} ms, {:.3f} of {}'s\n", shape->name, shape->picked,
                        shape->of(shape->picked), shape->loss(), shape->best().first);
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<KernelTimes>& shapes) {
  return {{"shapes", shapes.size()},
          {"within_3_percent", shapes.size() - behind(shapes).size()},
          {"beyond_8_percent", count_far(shapes)}};
}

}  // namespace flashlatent::tools
