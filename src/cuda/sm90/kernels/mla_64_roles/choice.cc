#include "cuda/sm90/kernels/mla_64_roles/choice.h"

#include "core/message.h"
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/dense_choice.h"
#include "cuda/host/dense_times.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/tensors.h"
#include "plan/host_plan.h"

namespace flashlatent::mla_64_roles {

cuda::InstanceKey key_of(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  const bool boxes = !problem.sparse.enabled && cache.page_size % kPageTokens == 0;
  return {cache.dtype, cache.qk_dim, cache.v_dim, kTileRows,
          boxes ? cuda::Loading::kBoxes : cuda::Loading::kTokens};
}

}  // namespace flashlatent::mla_64_roles

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

constexpr DenseShape kShape = {.tile_rows = mla_64_roles::kTileRows,
                               .cost = cost::of(Kernel::kMla64Roles, Situation::kRows64)};
constexpr DenseShape kShapeByTokens = {.tile_rows = mla_64_roles::kTileRows,
                                       .cost = cost::of(Kernel::kMla64Roles, Situation::kRows64ByTokens)};
constexpr DenseShape kShapeOfTiles = {.tile_rows = mla_64_roles::kTileRows,
                                      .cost = cost::of(Kernel::kMla64Roles, Situation::kTiles)};

constexpr int kMostLanes = 8;
/// Shares are mostly 2 to 22 % faster than a line, but not where a few of many requests are much longer than
/// the others, since each request has at least one CTA. Up to kFewRequests requests get shares whatever their
/// lengths (one of 131,072 tokens takes 5 % longer with 7 requests of 512 beside it; it would take 9 % with
/// 15 and 31 % with 31). More requests get shares up to kManyBlocks blocks a CTA, if lengths are equal.
constexpr int kFewRequests = 8;
constexpr int kManyBlocks = 32;

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  if (problem.options.batch_invariant) return "batch_invariant is true; false is accepted";
  // The scorer has no registers left for the span of a shared context that each query token sees.
  const int ranks = problem.options.shard.world;
  if (ranks > 1 && problem.options.causal && problem.query.tokens > 1) {
    return message(
        "shard is of ", ranks, " ranks, s_q is ", problem.query.tokens,
        " and causal is true; contexts that are whole, one query token or causal false are accepted");
  }
  if (!is_listed({mla_64_roles::kKeys}, mla_64_roles::key_of(problem)))
    return unknown_dimensions(problem, "576/512 is");
  return std::nullopt;
}

/// Shares of one request each, so that a CTA has one segment. Empty where even_items() is: a workspace for
/// larger batches may have no room for partial results then.
std::optional<schedule::Geometry> shares_of_requests(schedule::Geometry line,
                                                     const schedule::Workers& workers) {
  line.cost = cost::of(Kernel::kMla64Roles, Situation::kSharesOfTiles).on(workers);
  if (line.requests <= 1) return schedule::even_items(line);
  const int shares = line.parts / line.requests;
  if (line.requests > kFewRequests && schedule::max_blocks(line) > kManyBlocks * shares) return std::nullopt;
  // With four tiles, 12 requests (24 CTAs of 33 parts) take 4 to 5 % longer by shares; with two tiles (48 of
  // 66) 7 to 11 % less.
  if (line.lanes > 2 && 5 * line.requests * shares < 4 * line.parts) return std::nullopt;
  cost::add(line.cost, cost::of(Kernel::kLatent, Situation::kReadsPlan).on(workers));
  return schedule::items_by_length(line);
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = problem.rows_per_kv_head() <= mla_64_roles::kTileRows;
  const DenseShape& shape_of_one = loading_of(problem) == Loading::kTokens ? kShapeByTokens : kShape;
  schedule::Geometry line = dense_geometry(problem, workers, one_tile ? shape_of_one : kShapeOfTiles);
  if (one_tile || line.lanes > kMostLanes) return line;
  if (schedule::cuts_line(line.partition) && line.requests == 1 && line.lanes == 2) {
    cost::add(line.cost, cost::of(Kernel::kMla64Roles, Situation::kLoneRequest).on(workers));
  }
  std::optional<schedule::Geometry> shares = shares_of_requests(line, workers);
  if (!shares || schedule::estimate(*shares) >= schedule::estimate(line)) return line;
  // Only beside mla_64_pingpong's shares: the costs of a line are the same for both dtypes and however tokens
  // are loaded.
  if (problem.cache.dtype == Dtype::kF16) {
    cost::add(shares->cost, cost::of(Kernel::kLatent, Situation::kPartials32).on(workers));
  }
  if (mla_64_roles::key_of(problem).loading == Loading::kTokens) {
    cost::add(shares->cost, cost::of(Kernel::kMla64Roles, Situation::kByTokens).on(workers));
  }
  return *shares;
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  constexpr cost::Costs kTimes = cost::of(Kernel::kMla64Roles, Situation::kTimes);
  constexpr cost::Costs kTimesByTokens = cost::of(Kernel::kMla64Roles, Situation::kTimesByTokens);
  constexpr cost::Costs kTimesOfTiles = cost::of(Kernel::kMla64Roles, Situation::kTimesOfTiles);
  constexpr cost::Costs kQueryTokens = cost::of(Kernel::kMla64Roles, Situation::kQueryTokens);
  const auto of_call = [&] {
    if (schedule::combines_shares(g.partition)) {
      return share_times(g, workers, cost::of(Kernel::kMla64Roles, Situation::kSharesOfTiles));
    }
    if (problem.rows_per_kv_head() > mla_64_roles::kTileRows) {
      return dense_times(g, workers, {.costs = kTimesOfTiles});
    }
    return dense_times(g, workers,
                       {.costs = loading_of(problem) == Loading::kTokens ? kTimesByTokens : kTimes});
  };
  return with_query_tokens(of_call(), problem, kQueryTokens, workers);
}

std::optional<std::string> declines_turns(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  InstanceKey key = mla_64_roles::key_of(problem);
  key.turns = true;
  return is_listed({mla_64_roles::kTurnsKeys}, key)
             ? std::nullopt
             : std::optional(unknown_dimensions(problem, "576/512 and 512/512 are"));
}

schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = problem.rows_per_kv_head() <= mla_64_roles::kTileRows;
  const cost::Costs cost = one_tile ? cost::of(Kernel::kMla64Roles, Situation::kTurns)
                                    : cost::of(Kernel::kMla64Roles, Situation::kTurnsOfTiles);
  return turns_geometry(problem, workers, {.tile_rows = mla_64_roles::kTileRows, .cost = cost});
}

/// Why a call needs the substitute, although this kernel takes its problem.
enum class Obstacle { kNone, kNoPages, kHeads, kQuery, kOut };

/// TMA boxes need pages, and KV heads that begin at whole chunks. Query rows are loaded by boxes, and outputs
/// are written by boxes or 16 bytes at a time.
Obstacle obstacle_of(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs) {
  const ConstTensorView& cache = inputs.kv_cache;
  if (mla_64_roles::key_of(problem).loading == Loading::kBoxes) {
    if (cache.shape[0] == 0) return Obstacle::kNoPages;
    if (!heads_in_chunks(cache)) return Obstacle::kHeads;
  }
  if (!rows_in_boxes(problem, inputs)) return Obstacle::kQuery;
  return is_aligned(outputs.out, 16) ? Obstacle::kNone : Obstacle::kOut;
}

std::string reason_of(Obstacle obstacle, const DecodeProblem& problem, const DecodeInputs& inputs,
                      const DecodeOutputs& outputs) {
  switch (obstacle) {
    case Obstacle::kNone:
      break;
    case Obstacle::kNoPages:
      return "kv_cache has 0 pages; at least one is accepted";
    case Obstacle::kHeads:
      return message("kv_cache is ", to_string(inputs.kv_cache),
                     "; KV heads whose stride is a multiple of 128 bytes are accepted");
    case Obstacle::kQuery:
      return message("q is ", to_string(inputs.q),
                     inputs.q_rope.present() ? message(", q_rope ", to_string(inputs.q_rope)) : "",
                     " with h_kv ", problem.cache.heads,
                     "; one query token, one KV head and query tokens that follow one another without a gap, "
                     "or one KV head and a number of heads that divides 64 or is a multiple of it are "
                     "accepted");
    case Obstacle::kOut:
      return check_alignment("out", outputs.out, 16).message();
  }
  return "";
}

/// mla_64_pingpong, which cuts requests into the same shares.
const DecodeKernel* substitute(const DecodeProblem& problem, const DecodeInputs& inputs,
                               const DecodeOutputs& outputs, std::string* reason) {
  const Obstacle obstacle = obstacle_of(problem, inputs, outputs);
  if (obstacle == Obstacle::kNone) return nullptr;
  if (reason != nullptr) *reason = reason_of(obstacle, problem, inputs, outputs);
  return &kMla64PingpongKernel;
}

}  // namespace

const DecodeKernel kMla64RolesKernel = {
    .name = "mla_64_roles",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, dense and sparse, any heads, tokens and page size; no "
        "batch_invariant",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_roles::launch),
    .substitute = substitute,
    .declines_turns = declines_turns,
    .turns = turns,
    .times = times,
};

}  // namespace flashlatent::cuda
