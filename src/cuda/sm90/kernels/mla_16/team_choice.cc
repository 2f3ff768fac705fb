// mla_16 by teams, for calls too small to fill the device.
#include "cuda/cuda_backend.h"
#include "cuda/host/dense_times.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/teams.h"
#include "cuda/sm90/kernels/mla_16/choice.h"

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

constexpr cost::TeamCosts kCosts4 = cost::of_teams(Kernel::kMla16Team4);
constexpr cost::TeamCosts kCosts8 = cost::of_teams(Kernel::kMla16Team8);
constexpr cost::TeamCosts kCosts16 = cost::of_teams(Kernel::kMla16Team16);
constexpr cost::TeamCosts kCosts16OfFewBlocks =
    cost::of_teams(Kernel::kMla16Team16, Situation::kTeamsOfFewBlocks);
constexpr cost::Costs kQueryTokens = cost::of(Kernel::kMla16, Situation::kQueryTokens);
constexpr int kFewTokens = 256;  // four blocks

template <int kTeam>
std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  if (problem.options.batch_invariant) return not_invariant();
  if (!is_listed({mla_16::kTeamKeys}, mla_16::key_of(problem, loading_of(problem), kTeam))) {
    return kTeam > 8 ? unknown_dimensions(problem, "576/512 is") : unknown_dimensions(problem);
  }
  return std::nullopt;
}

template <int kTeam>
TeamShape shape_of(const DecodeProblem& problem) {
  cost::TeamCosts costs = kTeam > 8 ? kCosts16 : kTeam < 8 ? kCosts4 : kCosts8;
  if (kTeam > 8 && reach_of(problem) <= kFewTokens * kTeam) costs = kCosts16OfFewBlocks;
  return {.tile_rows = mla_16::kTileRows, .team = kTeam, .costs = costs};
}

template <int kTeam>
schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  return team_geometry(problem, workers, shape_of<kTeam>(problem));
}

template <int kTeam>
schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  return with_query_tokens(team_times(g, workers, shape_of<kTeam>(problem)), problem, kQueryTokens, workers);
}

template <int kTeam>
constexpr DecodeKernel kernel(const char* name) {
  return {
      .name = name,
      .backend = Backend::kCuda,
      .takes = kTeam > 8
                   ? "bf16 and fp16 caches of qk_dim/v_dim 576/512, any rows, for small batches; dense and "
                     "sparse, any page size; not with batch_invariant"
                   : "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, any rows, for small "
                     "batches; dense and sparse, any page size; not with batch_invariant",
      .declines = declines<kTeam>,
      .geometry = geometry<kTeam>,
      .workspace_bytes = team_workspace_bytes,
      .launch = FLASHLATENT_IF_COMPILED(mla_16::launch),
      .times = times<kTeam>};
}

}  // namespace

const DecodeKernel kMla16Team4Kernel = kernel<4>("mla_16_team4");
const DecodeKernel kMla16Team8Kernel = kernel<8>("mla_16_team8");
const DecodeKernel kMla16Team16Kernel = kernel<16>("mla_16_team16");

}  // namespace flashlatent::cuda
