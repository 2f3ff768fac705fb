// mla_16.
#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/latent_times.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_16/takes.h"

namespace flashlatent::choose {

namespace {

constexpr cost::Costs kCost = cost::of(cost::Kernel::kMla16, cost::Tile::kRows16);

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  return dense_geometry(problem, workers, {.tile_rows = mla_16::kTileRows, .cost = kCost});
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  constexpr cost::Kernel kKernel = cost::Kernel::kMla16;
  constexpr cost::Costs kTimes = cost::of(kKernel, cost::Cut::kTimes);
  constexpr cost::Costs kQueryTokens = cost::of(kKernel, cost::Cut::kQueryTokens);
  return with_query_tokens(dense_times(g, workers, kTimes), problem, kQueryTokens, workers);
}

schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  constexpr cost::Costs kOfTurns = cost::of(cost::Kernel::kMla16, cost::Cut::kTurns);
  return turns_geometry(problem, workers, {.tile_rows = mla_16::kTileRows, .cost = kOfTurns});
}

}  // namespace

const Cutter kMla16 = {.kernel = cuda::kMla16Kernel, .geometry = geometry, .times = times, .turns = turns};

}  // namespace flashlatent::choose
