#include "choose/candidates.h"

#include <algorithm>
#include <array>

#include "choose/prefix_sharing.h"
#include "choose/typical.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "core/token_bytes.h"
#include "cost/device.h"
#include "cost/model.h"
#include "cost/packing.h"
#include "cost/times.h"
#include "kernel/former_names.h"
#include "plan/geometries.h"
#include "plan/prefix_plan.h"

namespace flashlatent {

namespace {

constexpr const char* kOtherAskedFor = "another kernel was asked for";
constexpr const char* kNoPrefill = "it does not do sparse_prefill";
constexpr const char* kOnlyByName = "runs only when asked for by name";
/// The least size of a plan. Callers allocate for the largest batch, and smaller batches may have more parts;
/// a plan of 144 parts with few requests fits into this.
constexpr std::size_t kLeastPlanBytes = 8192;

/// Why the device's kernels cannot count the tokens of this page table; empty if they can.
std::string too_far_for_device(const DecodeProblem& problem) {
  const std::int64_t tokens = std::int64_t{problem.cache.max_pages} * problem.cache.page_size;
  if (tokens <= kMostDeviceTokens) return "";
  return message("max_pages ", problem.cache.max_pages, " x page_size ", problem.cache.page_size, " is ",
                 tokens, " tokens; up to ", kMostDeviceTokens, " are accepted");
}

/// Why the device's kernels cannot find a shard's tokens in their context; empty if they can. Such a kernel
/// would need registers for the distances, and these kernels have none left.
std::string too_far_from_context(const DecodeProblem& problem) {
  const ContextShard& shard = problem.options.shard;
  if (!problem.options.separate.alibi || shard.world == 1) return "";
  return message("alibi is true and shard world is ", shard.world, "; with alibi 1 is accepted");
}

/// May this executor get this kernel? It may name another one.
bool admits(const Executor& executor, const DecodeKernel& kernel) {
  return executor.kernel.empty() || executor.kernel == kernel.name;
}

/// The workers with the memory speed of this call: the most that it reads of the cache may fit into L2.
schedule::Workers workers_in_call(const DecodeProblem& problem, const schedule::Workers& workers) {
  const auto& [query, cache, sparse, options] = problem;
  // With batch_invariant the batch must decide nothing.
  if (options.batch_invariant) return workers;
  const auto named = [query_tokens = query.tokens](std::int64_t topk) {
    return std::int64_t{query_tokens} * topk;
  };
  const auto in_pages = [](const auto& of) { return std::int64_t{of.max_pages} * of.page_size; };
  const std::int64_t tokens = sparse.enabled ? named(sparse.topk) : in_pages(cache);
  double bytes = static_cast<double>(tokens) * static_cast<double>(token_bytes(cache));
  if (cache.extra.enabled) {
    const std::int64_t extra = cache.extra.indexed ? named(cache.extra.topk) : in_pages(cache.extra);
    bytes += static_cast<double>(extra) * static_cast<double>(extra_token_bytes(cache));
  }
  return cost::reading(workers, query.batch * bytes);
}

/// Why the kernel does not take the problem on this executor; empty if it does.
std::string reason_to_decline(const choose::Cutter& cutter, const DecodeProblem& problem,
                              const Executor& executor, Purpose purpose) {
  const DecodeKernel& kernel = cutter.kernel;
  if (!admits(executor, kernel)) return kOtherAskedFor;
  // The oracle is a thousand times slower, so it must not be picked unasked.
  if (&cutter == choose::cutters().back() && executor.kernel.empty()) return kOnlyByName;
  if (is_in_turn(purpose)) {
    if (cutter.turns == nullptr) return kNoPrefill;
    return kernel.declines_turns(problem, purpose == Purpose::kTurnsMaxLogits).value_or("");
  }
  std::string reason = kernel.declines(problem).value_or("");
  if (reason.empty() && kernel.backend() == Backend::kCuda) reason = too_far_for_device(problem);
  if (reason.empty() && kernel.backend() == Backend::kCuda) reason = too_far_from_context(problem);
  if (!reason.empty() || problem.options.prefix_sharing != PrefixSharing::kAlways) return reason;
  const std::string no_prefixes = choose::reason_against_prefixes(kernel, problem);
  return no_prefixes.empty() ? "" : "prefix_sharing is always, but " + no_prefixes;
}

/// May requests differ in length, and is it known what that costs? Indices mostly name equally many tokens
/// for each request; with batch_invariant the batch must decide nothing.
bool lengths_vary(const DecodeProblem& problem) {
  const auto& [query, cache, sparse, options] = problem;
  return !sparse.enabled && !query.ragged && !cache.extra.enabled && cache.format == KvFormat::kPlain &&
         !options.batch_invariant && options.prefix_sharing == PrefixSharing::kOff &&
         (options.window == 0 || cache.layout != KvLayout::kLatent);
}

/// What launches of their own take for the edges of the layer that the kernel leaves out.
std::int64_t time_of_edges(const DecodeKernel& kernel, const DecodeProblem& problem,
                           const schedule::Geometry& g, const schedule::Workers& workers) {
  constexpr std::int64_t kMemberRows = 1024;
  const auto& options = problem.options;
  if (kernel.backend() != Backend::kCuda || !(options.q_edge || options.out_edge)) return 0;
  const FusedEdges fused = kernel.fuses == nullptr ? FusedEdges{} : kernel.fuses(problem, g, {}, {});
  const cost::Costs cost = cost::of(cost::Kernel::kLatent, cost::Cut::kEdgeLaunch);
  const std::int64_t rows = std::int64_t{problem.query.batch} * problem.query.tokens * problem.query.heads;
  const std::int64_t launch = cost.on(workers).per_call + cost.per_member_on(workers) * rows / kMemberRows;
  return launch * ((options.q_edge && !fused.query) + (options.out_edge && !fused.output));
}

/// What a call takes with a geometry of the kernel.
schedule::CallTimes times_of(const choose::Cutter& cutter, const DecodeProblem& problem,
                             const schedule::Geometry& g, const schedule::Workers& workers) {
  const std::int64_t edges = time_of_edges(cutter.kernel, problem, g, workers);
  const std::int64_t estimate = schedule::estimate(g) + edges;
  const bool never = g.cost.per_call >= cost::kNever.per_call;
  if (cutter.kernel.backend() != Backend::kCuda || never || !lengths_vary(problem))
    return {estimate, estimate};
  const auto times = [&](const schedule::Geometry& of) {
    return cutter.times == nullptr ? cost::as_cut(of) : cutter.times(problem, of, workers);
  };
  schedule::Geometry nearer = g;
  nearer.max_tokens = std::min(g.max_tokens, cost::kFarTokens);
  return {times(g).equal + edges, times(nearer).varied + edges};
}

/// The same of sparse prefill.
schedule::CallTimes times_in_turn(const DecodeKernel& kernel, const DecodeProblem& problem,
                                  const schedule::Geometry& g, const schedule::Workers& workers) {
  const std::int64_t time = schedule::estimate(g) + time_of_edges(kernel, problem, g, workers);
  return {time, time};
}

/// Chooses the candidate's geometry anew, for requests of typical_problem()'s lengths.
Status choose_for(const DecodeProblem& typical, const schedule::Workers& workers, Candidate& candidate) {
  const schedule::Workers here = workers_in_call(typical, workers);
  schedule::Geometry chosen = candidate.cutter->geometry(typical, here);
  FLASHLATENT_RETURN_IF_ERROR(schedule::validate(chosen));
  chosen.shard = candidate.at_reach.shard;
  candidate.times = times_of(*candidate.cutter, typical, chosen, here);
  candidate.geometry = with_reach(chosen, candidate.at_reach);
  return schedule::validate(candidate.geometry);
}

/// Why these workers cannot launch a call with this geometry: a clause; empty if they can.
std::string reason_of_room(const schedule::Geometry& g, const schedule::Workers& workers) {
  if (g.team <= 1 || workers.room.fits(g.team)) return {};
  return message("a team has ", g.team, " thread blocks, which must run at once; up to ",
                 workers.room.most_ctas(), " can on this device");
}

}  // namespace

/// Is there a kernel of the name that the executor asks for?
Status validate_kernel_name(const Executor& executor) {
  std::string names;
  for (const choose::Cutter* cutter : choose::cutters()) {
    const DecodeKernel& kernel = cutter->kernel;
    if (kernel.backend() != executor.backend) continue;
    if (admits(executor, kernel)) return {};
    names += message(names.empty() ? "" : ", ", kernel.name);
  }
  return unsupported("kernel is '", executor.kernel, "'", renamed(executor.kernel), "; ",
                     to_string(executor.backend), " has ", names);
}

Result<std::vector<Candidate>> candidates(const DecodeProblem& problem, const Executor& executor,
                                          const schedule::Workers& workers, Purpose purpose) {
  FLASHLATENT_RETURN_IF_ERROR(validate(problem));
  FLASHLATENT_RETURN_IF_ERROR(validate_kernel_name(executor));
  const bool in_turn = is_in_turn(purpose);
  const schedule::Workers here = in_turn ? workers : workers_in_call(problem, workers);
  const std::optional<DecodeProblem> typical = in_turn ? std::nullopt : typical_problem(problem);
  std::vector<Candidate> list;
  for (const choose::Cutter* cutter : choose::cutters()) {
    const DecodeKernel& kernel = cutter->kernel;
    if (kernel.backend() != executor.backend) continue;
    Candidate candidate{.kernel = &kernel,
                        .cutter = cutter,
                        .reason = reason_to_decline(*cutter, problem, executor, purpose)};
    if (candidate.reason.empty()) {
      candidate.geometry = (in_turn ? cutter->turns : cutter->geometry)(problem, here);
      const ContextShard& shard = problem.options.shard;
      candidate.geometry.shard = TokenShard(shard.rank, shard.world, shard.run);
      FLASHLATENT_RETURN_IF_ERROR(schedule::validate(candidate.geometry));
      if (!in_turn && problem.options.prefix_sharing != PrefixSharing::kOff) {
        candidate.no_prefixes = choose::reason_against_prefixes(kernel, problem);
        candidate.prefix = choose::prefix_shape_of(*cutter, problem, here);
        FLASHLATENT_RETURN_IF_ERROR(prefix::validate(candidate.prefix));
        if (candidate.no_prefixes.empty() && candidate.prefix.requests == 0) {
          candidate.no_prefixes = message("with batch ", problem.query.batch, " and max_pages ",
                                          problem.cache.max_pages, " nothing would be gained");
        }
      }
      candidate.times = in_turn ? times_in_turn(kernel, problem, candidate.geometry, here)
                                : times_of(*cutter, problem, candidate.geometry, here);
      candidate.at_reach = candidate.geometry;
      if (typical) FLASHLATENT_RETURN_IF_ERROR(choose_for(*typical, workers, candidate));
      candidate.reason = reason_of_room(candidate.geometry, here);
    }
    list.push_back(std::move(candidate));
  }
  return list;
}

const Candidate* cheapest(const std::vector<Candidate>& candidates) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.reason.empty()) continue;
    if (best == nullptr || cost::expected(candidate.times) < cost::expected(best->times)) best = &candidate;
  }
  return best;
}

bool packs(const DecodeProblem& problem, const Candidate& candidate, const schedule::Workers& workers) {
  return candidate.kernel->backend() == Backend::kCpu ||
         cost::packing_pays(candidate.geometry, problem.options.calls_per_plan, workers);
}

namespace {

/// Does the kernel decline because it reads keys and values of another layout? Kernels say so in these words.
bool is_of_other_layout(const Candidate& candidate) {
  const std::array<KvLayout, 3> layouts = {KvLayout::kLatent, KvLayout::kSeparate, KvLayout::kPacked};
  return std::any_of(layouts.begin(), layouts.end(), [&](KvLayout layout) {
    return candidate.reason.starts_with(message("the cache is ", to_string(layout), ";"));
  });
}

/// "a, b, c": the kernels of which `has` is true; empty if there are none.
template <class Has>
std::string names_of(const std::vector<Candidate>& candidates, const Has& has) {
  std::string names;
  for (const Candidate& candidate : candidates) {
    if (has(candidate)) names += message(names.empty() ? "" : ", ", candidate.kernel->name);
  }
  return names;
}

}  // namespace

Status none_takes(const DecodeProblem& problem, const std::vector<Candidate>& candidates) {
  std::string reasons;
  for (const Candidate& candidate : candidates) {
    if (candidate.reason != kOtherAskedFor && !is_of_other_layout(candidate)) {
      reasons += message("; ", candidate.kernel->name, ": ", candidate.reason);
    }
  }
  if (const std::string names = names_of(candidates, is_of_other_layout); !names.empty()) {
    reasons += message("; of another layout: ", names);
  }
  const Backend backend = candidates.front().kernel->backend();
  return unsupported("no ", to_string(backend), " kernel takes ", to_string(problem), reasons);
}

std::string explain(const std::vector<Candidate>& candidates) {
  const Candidate* best = cheapest(candidates);
  const auto takers = std::count_if(candidates.begin(), candidates.end(),
                                    [](const Candidate& candidate) { return candidate.reason.empty(); });
  std::string text;
  for (const Candidate& candidate : candidates) {
    if (is_of_other_layout(candidate)) continue;
    text += message(candidate.kernel->name, ": ");
    if (!candidate.reason.empty()) {
      text += "declines: " + candidate.reason;
    } else {
      text += &candidate == best ? "picked" : "not picked";
      // A kernel with kNever as cost has no measured estimate to print.
      if (&candidate != best && candidate.geometry.cost.per_call >= cost::kNever.per_call) {
        text += message(", ", kOnlyByName);
      } else if (takers > 1) {
        text += message(", estimated at ", static_cast<double>(candidate.times.equal) / 1000, " us");
        if (candidate.times.varied != candidate.times.equal) {
          text += message(", ", static_cast<double>(candidate.times.varied) / 1000, " if lengths vary");
        }
      }
      if (candidate.prefix.requests > 0) text += ", shares prefixes";
      if (!candidate.no_prefixes.empty()) text += ", shares no prefixes: " + candidate.no_prefixes;
    }
    text += "\n";
  }
  if (const std::string names = names_of(candidates, is_of_other_layout); !names.empty()) {
    text += message("of another layout: ", names, "\n");
  }
  return text;
}

std::int64_t estimate_of_equal(const DecodeProblem& problem, const Candidate& candidate,
                               const schedule::Workers& workers, std::int64_t tokens) {
  schedule::Geometry g = candidate.geometry;
  // With an extra cache max_tokens counts both caches' tokens.
  const std::int64_t fewer = problem.sparse.enabled ? std::max<std::int64_t>(problem.sparse.topk - tokens, 0)
                                                    : std::max<std::int64_t>(g.max_tokens - tokens, 0);
  g.max_tokens -= static_cast<std::int32_t>(std::min<std::int64_t>(fewer, g.max_tokens));
  return times_of(*candidate.cutter, problem, g, workers_in_call(problem, workers)).equal;
}

namespace {

/// A plan's section for prefixes follows the rest of the plan; so do their partial results in the workspace.
std::size_t plan_bytes_of(const Candidate& candidate) {
  if (candidate.prefix.requests == 0) {
    const std::int64_t bytes =
        std::max(schedule::plan_bytes(candidate.geometry), schedule::plan_bytes(candidate.at_reach));
    return std::max(static_cast<std::size_t>(bytes), kLeastPlanBytes);
  }
  return static_cast<std::size_t>(prefix::offset(candidate.geometry) + prefix::bytes(candidate.prefix));
}

std::size_t workspace_bytes_of(const DecodeProblem& problem, const Candidate& candidate) {
  const auto bytes_of = [&](const schedule::Geometry& g) {
    return candidate.kernel->workspace_bytes(problem, g);
  };
  const std::size_t bytes = std::max(bytes_of(candidate.geometry), bytes_of(candidate.at_reach));
  if (candidate.prefix.requests == 0) return bytes;
  return prefix::align(static_cast<std::int64_t>(bytes)) +
         prefix::workspace_rows(candidate.prefix) * (problem.cache.v_dim + 1) * sizeof(float);
}

}  // namespace

Sizes sizes_of(const DecodeProblem& problem, const std::vector<Candidate>& candidates,
               const Candidate& picked) {
  Sizes sizes;
  for (const Candidate& candidate : candidates) {
    if (!candidate.reason.empty() || (problem.options.batch_invariant && &candidate != &picked)) continue;
    sizes.plan = std::max(sizes.plan, plan_bytes_of(candidate));
    sizes.workspace = std::max(sizes.workspace, workspace_bytes_of(problem, candidate));
  }
  return sizes;
}

}  // namespace flashlatent
