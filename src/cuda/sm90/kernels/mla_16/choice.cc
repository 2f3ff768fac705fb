#include "cuda/sm90/kernels/mla_16/choice.h"

#include "cost/table.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/dense_choice.h"
#include "cuda/host/dense_times.h"
#include "cuda/host/if_compiled.h"

namespace flashlatent::mla_16 {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading, int team) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, kTileRows, loading, 1, team};
}

}  // namespace flashlatent::mla_16

namespace flashlatent::cuda {

namespace {

constexpr cost::Costs kCost = cost::of(cost::Kernel::kMla16, cost::Situation::kRows16);

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  if (problem.rows_per_kv_head() > mla_16::kTileRows) return too_many_rows(problem, mla_16::kTileRows);
  const InstanceKey key = mla_16::key_of(problem, loading_of(problem), 1);
  if (!is_listed({mla_16::kKeys}, key)) return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  return dense_geometry(problem, workers, {.tile_rows = mla_16::kTileRows, .cost = kCost});
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  constexpr cost::Kernel kKernel = cost::Kernel::kMla16;
  constexpr cost::Costs kTimes = cost::of(kKernel, cost::Situation::kTimes);
  constexpr std::int32_t kLoneShare = cost::constants(kKernel, cost::Situation::kTimes).lone_share;
  constexpr cost::Costs kQueryTokens = cost::of(kKernel, cost::Situation::kQueryTokens);
  return with_query_tokens(dense_times(g, workers, {.costs = kTimes, .lone_share = kLoneShare}), problem,
                           kQueryTokens, workers);
}

std::optional<std::string> declines_turns(const DecodeProblem& problem) {
  if (auto reason = declines(problem)) return reason;
  InstanceKey key = mla_16::key_of(problem, loading_of(problem), 1);
  key.turns = true;
  return is_listed({mla_16::kTurnsKeys}, key)
             ? std::nullopt
             : std::optional(unknown_dimensions(problem, "576/512 and 512/512 are"));
}

schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  constexpr cost::Costs kOfTurns = cost::of(cost::Kernel::kMla16, cost::Situation::kTurns);
  return turns_geometry(problem, workers, {.tile_rows = mla_16::kTileRows, .cost = kOfTurns});
}

}  // namespace

const DecodeKernel kMla16Kernel = {
    .name = "mla_16",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, up to 16 query rows a KV head; "
        "dense and sparse, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_16::launch),
    .declines_turns = declines_turns,
    .turns = turns,
    .times = times,
};

}  // namespace flashlatent::cuda
