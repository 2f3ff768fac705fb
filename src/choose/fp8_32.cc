// fp8_32, and fp8_16_team8.
#include <algorithm>
#include <array>

#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/teams.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/fp8/takes.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Kernel;
using cost::Source;
using cost::Tile;

using Shapes = std::array<DenseShape, 3>;
consteval Shapes shapes_of(Source source, Cut cut = Cut::kLine) {
  return {{{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, {source, cut, Tile::kRows8})},
           {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, {source, cut, Tile::kRows16})},
           {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, {source, cut, Tile::kRows32})}}};
}
constexpr Shapes kShapes = shapes_of(Source::kOwn);
constexpr Shapes kE4m3Shapes = shapes_of(Source::kE4m3);
constexpr Shapes kFp8_584Shapes = shapes_of(Source::kRopeRecords);
constexpr Shapes kListedSharesShapes = shapes_of(Source::kOwn, Cut::kListedShares);
constexpr Shapes kRecordsShapes = shapes_of(Source::kRecords);
constexpr Shapes kRecordsSharesShapes = shapes_of(Source::kRecords, Cut::kShares);
constexpr Shapes kTurnsShapes = shapes_of(Source::kOwn, Cut::kTurns);
constexpr Shapes kE4m3TurnsShapes = shapes_of(Source::kE4m3, Cut::kTurns);
constexpr Shapes kFp8_584TurnsShapes = shapes_of(Source::kRopeRecords, Cut::kTurns);
constexpr Shapes kRecordsTurnsShapes = shapes_of(Source::kRecords, Cut::kTurns);
constexpr TeamShape kTeamShape = {
    .tile_rows = fp8::kTeamRows, .team = fp8::kTeamCtas, .costs = cost::of_teams(Kernel::kFp8Rows16Team8)};
constexpr TeamShape kE4m3TeamShape = {
    .tile_rows = fp8::kTeamRows,
    .team = fp8::kTeamCtas,
    .costs = cost::of_teams(Kernel::kFp8Rows16Team8, {Source::kE4m3, Cut::kTeams})};

/// The smallest of these tiles for the problem's rows.
const DenseShape& shape_of(const DecodeProblem& problem, const Shapes& shapes) {
  const DenseShape* shape = shapes.data();
  while (shape->tile_rows < std::min(cuda::rows_of_item(problem), fp8::kMostFewRows)) ++shape;
  return *shape;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool records = fp8::is_of_records(problem);
  if (!records && !fp8::is_fp8_584(problem)) {
    return dense_geometry(problem, workers, shape_of(problem, fp8::is_e4m3(problem) ? kE4m3Shapes : kShapes));
  }
  const schedule::Geometry line =
      dense_geometry(problem, workers, shape_of(problem, records ? kRecordsShapes : kFp8_584Shapes));
  if (!cuda::has_rows_alike(problem)) return line;
  const Shapes& of_shares = records ? kRecordsSharesShapes : kListedSharesShapes;
  return in_turn_if_faster(problem, listed_geometry(problem, workers, shape_of(problem, of_shares), line));
}

/// Sparse prefill.
schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  const Shapes& shapes = fp8::is_fp8_584(problem)      ? kFp8_584TurnsShapes
                         : fp8::is_of_records(problem) ? kRecordsTurnsShapes
                         : fp8::is_e4m3(problem)       ? kE4m3TurnsShapes
                                                       : kTurnsShapes;
  return turns_geometry(problem, workers, shape_of(problem, shapes));
}

schedule::Geometry geometry_of_teams(const DecodeProblem& problem, const schedule::Workers& workers) {
  return team_geometry(problem, workers, fp8::is_e4m3(problem) ? kE4m3TeamShape : kTeamShape);
}

}  // namespace

const Cutter kFp8Rows32 = {.kernel = cuda::kFp8Rows32Kernel, .geometry = geometry, .turns = turns};
const Cutter kFp8Rows16Team8 = {.kernel = cuda::kFp8Rows16Team8Kernel, .geometry = geometry_of_teams};

}  // namespace flashlatent::choose
