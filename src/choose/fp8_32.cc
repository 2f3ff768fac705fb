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

using cost::Kernel;
using cost::Situation;

using Shapes = std::array<DenseShape, 3>;
constexpr Shapes kShapes = {{{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRows8)},
                             {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRows16)},
                             {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRows32)}}};
constexpr Shapes kE4m3Shapes = {
    {{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kE4m3Rows8)},
     {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kE4m3Rows16)},
     {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kE4m3Rows32)}}};
constexpr Shapes kFp8_584Shapes = {
    {{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kFp8_584Rows8)},
     {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kFp8_584Rows16)},
     {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kFp8_584Rows32)}}};
constexpr Shapes kListedSharesShapes = {
    {{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kListedSharesRows8)},
     {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kListedSharesRows16)},
     {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kListedSharesRows32)}}};
constexpr Shapes kRecordsShapes = {
    {{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRecordsRows8)},
     {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRecordsRows16)},
     {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRecordsRows32)}}};
constexpr Shapes kRecordsSharesShapes = {
    {{.tile_rows = 8, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRecordsSharesRows8)},
     {.tile_rows = 16, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRecordsSharesRows16)},
     {.tile_rows = 32, .cost = cost::of(Kernel::kFp8Rows32, Situation::kRecordsSharesRows32)}}};
constexpr TeamShape kTeamShape = {
    .tile_rows = fp8::kTeamRows, .team = fp8::kTeamCtas, .costs = cost::of_teams(Kernel::kFp8Rows16Team8)};
constexpr TeamShape kE4m3TeamShape = {
    .tile_rows = fp8::kTeamRows,
    .team = fp8::kTeamCtas,
    .costs = cost::of_teams(Kernel::kFp8Rows16Team8, Situation::kE4m3Teams)};

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

schedule::Geometry geometry_of_teams(const DecodeProblem& problem, const schedule::Workers& workers) {
  return team_geometry(problem, workers, fp8::is_e4m3(problem) ? kE4m3TeamShape : kTeamShape);
}

}  // namespace

const Cutter kFp8Rows32 = {.kernel = cuda::kFp8Rows32Kernel, .geometry = geometry};
const Cutter kFp8Rows16Team8 = {.kernel = cuda::kFp8Rows16Team8Kernel, .geometry = geometry_of_teams};

}  // namespace flashlatent::choose
