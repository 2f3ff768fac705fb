// mla_16_transposed.
#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/latent_times.h"
#include "core/formats/formats.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/mla_16_transposed/takes.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Kernel;
using cost::Source;
using cost::Tile;

constexpr cost::Costs kCost8 = cost::of(Kernel::kMla16Transposed, Tile::kRows8);
constexpr cost::Costs kCostFp8 = cost::of(Kernel::kMla16Transposed, Source::kFp8);
constexpr cost::Costs kCostFp8_584 = cost::of(Kernel::kMla16Transposed, Source::kRopeRecords);
constexpr cost::Costs kCostOfRecords = cost::of(Kernel::kMla16Transposed, Source::kRecords);
constexpr cost::Costs kCostOfRecordsShares =
    cost::of(Kernel::kMla16Transposed, {Source::kRecords, Cut::kShares});
constexpr cost::Costs kCostOfShares = cost::of(Kernel::kMla16Transposed, Cut::kListedShares);

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const auto cost = [&] {
    if (cuda::loading_of(problem) == cuda::Loading::kRecords) return kCostOfRecords;
    if (format_of(problem.cache).all_value) return kCostFp8_584;
    return problem.cache.format == KvFormat::kPlain ? kCost8 : kCostFp8;
  };
  const cuda::InstanceKey key = mla_16_transposed::key_of(problem, cuda::loading_of(problem));
  const DenseShape shape = {.tile_rows = key.tile_rows, .cost = cost()};
  const schedule::Geometry g = dense_geometry(problem, workers, shape);
  if (!cuda::is_listed({mla_16_transposed::kShareKeys}, key)) return g;
  const bool records = cuda::loading_of(problem) == cuda::Loading::kRecords;
  const DenseShape of_shares = {.tile_rows = key.tile_rows,
                                .cost = records ? kCostOfRecordsShares : kCostOfShares};
  const schedule::Geometry shares = listed_geometry(problem, workers, of_shares, g);
  return cuda::has_rows_alike(problem) ? whole_if_faster(problem, shares) : shares;
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  constexpr cost::Costs kTimes = cost::of(Kernel::kMla16Transposed, Cut::kTimes);
  constexpr cost::Costs kQueryTokens = cost::of(Kernel::kMla16Transposed, Cut::kQueryTokens);
  return with_query_tokens(dense_times(g, workers, kTimes), problem, kQueryTokens, workers);
}

schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  constexpr cost::Costs kOfTurns = cost::of(Kernel::kMla16Transposed, {Source::kRopeRecords, Cut::kTurns});
  constexpr cost::Costs kOfRecords = cost::of(Kernel::kMla16Transposed, {Source::kRecords, Cut::kTurns});
  const bool records = cuda::loading_of(problem) == cuda::Loading::kRecords;
  return turns_geometry(problem, workers,
                        {.tile_rows = mla_16_transposed::kTileRows, .cost = records ? kOfRecords : kOfTurns});
}

}  // namespace

const Cutter kMla16Transposed = {
    .kernel = cuda::kMla16TransposedKernel, .geometry = geometry, .times = times, .turns = turns};

}  // namespace flashlatent::choose
