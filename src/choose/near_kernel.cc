#include "choose/near_kernel.h"

#include <algorithm>
#include <cmath>

#include "choose/thresholds.h"
#include "choose/typical.h"
#include "core/message.h"
#include "core/return_if_error.h"
#include "cuda/host/geometry.h"
#include "cuda/host/latent_problem.h"

namespace flashlatent {

namespace {

using choose::kNearKernelLimits;

/// The candidates that are fastest at some length below `reach`.
Result<std::vector<Candidate>> fastest_candidates(const DecodeProblem& problem, const Executor& executor,
                                                  const schedule::Workers& workers, std::int64_t reach) {
  std::vector<Candidate> list;
  DecodeProblem expecting = problem;
  for (const int tokens : kNearKernelLimits.lengths) {
    if (tokens >= reach) break;
    expecting.options.typical_tokens = tokens;
    FLASHLATENT_ASSIGN_OR_RETURN(std::vector<Candidate> all, candidates(expecting, executor, workers));
    if (const Candidate* best = cheapest(all); best != nullptr && best->kernel->leaves) {
      list.push_back(*best);
    }
  }
  return list;
}

/// The lengths at which kernels are compared: each twice the one before, then the reach.
std::vector<std::int64_t> compared_lengths(std::int64_t reach) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t tokens = kNearKernelLimits.least_tokens; tokens < reach; tokens *= 2) {
    lengths.push_back(tokens);
  }
  lengths.push_back(reach);
  return lengths;
}

/// How many times as long as the least of each length times are, as a geometric mean over lengths.
template <class TimeAt>
double loss(const std::vector<double>& least, const TimeAt& time_at) {
  double sum = 0;
  for (std::size_t i = 0; i < least.size(); ++i) sum += std::log(time_at(i) / least[i]);
  return std::exp(sum / static_cast<double>(least.size()));
}

}  // namespace

bool lengths_may_decide(const DecodeProblem& problem, const Executor& executor) {
  const DecodeProblem::Options& options = problem.options;
  return executor.backend == Backend::kCuda && executor.kernel.empty() &&
         problem.cache.layout == KvLayout::kLatent && problem.cache.format == KvFormat::kPlain &&
         !problem.sparse.enabled && !cuda::goes_by_lists(problem) && !options.batch_invariant &&
         options.prefix_sharing == PrefixSharing::kOff && options.shard.world == 1 &&
         cuda::reach_of(problem) >= kNearKernelLimits.least_reach;
}

Result<std::optional<NearCandidate>> near_candidate(const DecodeProblem& problem, const Executor& executor,
                                                    const schedule::Workers& workers, const Candidate& far) {
  const int requests = problem.query.batch;
  if (!far.kernel->leaves || requests == 0 || requests > kNearKernelLimits.most_requests) {
    return std::optional<NearCandidate>();
  }
  const std::optional<DecodeProblem> typical = typical_problem(problem);
  const std::int64_t reach = cuda::reach_of(typical ? *typical : problem);
  FLASHLATENT_ASSIGN_OR_RETURN(const std::vector<Candidate> list,
                               fastest_candidates(problem, executor, workers, reach));
  const std::vector<std::int64_t> lengths = compared_lengths(reach);
  const auto times_of = [&](const Candidate& candidate) {
    std::vector<double> times;
    times.reserve(lengths.size());
    for (const std::int64_t tokens : lengths) {
      times.push_back(static_cast<double>(estimate_of_equal(problem, candidate, workers, tokens)));
    }
    return times;
  };
  const std::vector<double> far_times = times_of(far);
  std::vector<std::vector<double>> times;
  std::vector<double> least = far_times;
  for (const Candidate& candidate : list) {
    times.push_back(times_of(candidate));
    for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], times.back()[i]);
  }
  double best = loss(least, [&](std::size_t i) { return far_times[i]; }) * kNearKernelLimits.gain;
  std::optional<NearCandidate> near;
  for (std::size_t c = 0; c < list.size(); ++c) {
    // Up to the last length before the first at which the far kernel is as fast. If there is none, the far
    // kernel was picked for lengths that vary, and stays alone.
    std::size_t end = 0;
    while (end < lengths.size() && times[c][end] < far_times[end]) ++end;
    if (end == 0 || end == lengths.size()) continue;
    const double both = loss(least, [&](std::size_t i) {
      return (i < end ? times[c] : far_times)[i] + kNearKernelLimits.second_launch;
    });
    if (both >= best) continue;
    best = both;
    near = NearCandidate{list[c], static_cast<std::int32_t>(lengths[end - 1])};
  }
  return near;
}

Result<std::string> explain_near(const DecodeProblem& problem, const Executor& executor,
                                 const schedule::Workers& workers, const std::vector<Candidate>& list) {
  const Candidate* far = cheapest(list);
  if (far == nullptr || !lengths_may_decide(problem, executor)) return std::string();
  FLASHLATENT_ASSIGN_OR_RETURN(const auto near, near_candidate(problem, executor, workers, *far));
  if (!near) return std::string();
  return message("beside it, for calls whose longest request has up to ", near->most_tokens,
                 " tokens: ", near->candidate.kernel->name, "\n");
}

}  // namespace flashlatent
