// mla_16 by teams of 4, 8 and 16 CTAs.
#include "choose/cutters.h"
#include "choose/latent_times.h"
#include "choose/teams.h"
#include "choose/thresholds.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_16/takes.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Kernel;

constexpr cost::TeamCosts kCosts4 = cost::of_teams(Kernel::kMla16Team4);
constexpr cost::TeamCosts kCosts8 = cost::of_teams(Kernel::kMla16Team8);
constexpr cost::TeamCosts kCosts16 = cost::of_teams(Kernel::kMla16Team16);
constexpr cost::TeamCosts kCosts16OfFewBlocks = cost::of_teams(Kernel::kMla16Team16, Cut::kTeamsOfFewBlocks);
constexpr cost::Costs kQueryTokens = cost::of(Kernel::kMla16, Cut::kQueryTokens);

template <int kTeam>
TeamShape shape_of(const DecodeProblem& problem) {
  cost::TeamCosts costs = kTeam > 8 ? kCosts16 : kTeam < 8 ? kCosts4 : kCosts8;
  if (kTeam > 8 && cuda::reach_of(problem) <= kTeamLimits.few_tokens_a_cta * kTeam)
    costs = kCosts16OfFewBlocks;
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

}  // namespace

const Cutter kMla16Team4 = {.kernel = cuda::kMla16Team4Kernel, .geometry = geometry<4>, .times = times<4>};
const Cutter kMla16Team8 = {.kernel = cuda::kMla16Team8Kernel, .geometry = geometry<8>, .times = times<8>};
const Cutter kMla16Team16 = {
    .kernel = cuda::kMla16Team16Kernel, .geometry = geometry<16>, .times = times<16>};

}  // namespace flashlatent::choose
