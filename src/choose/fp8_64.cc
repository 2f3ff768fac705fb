// fp8_64.
#include "choose/cutters.h"
#include "choose/latent.h"
#include "choose/thresholds.h"
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/fp8/takes.h"

namespace flashlatent::choose {

namespace {

using cost::Cut;
using cost::Kernel;
using cost::Source;
using cost::Tile;

constexpr int kTileRows = fp8::kRows64;
constexpr DenseShape kShape = {.tile_rows = kTileRows, .cost = cost::of(Kernel::kFp8Rows64, Tile::kRows64)};
constexpr DenseShape kE4m3Shape = {.tile_rows = kTileRows,
                                   .cost = cost::of(Kernel::kFp8Rows64, {Source::kE4m3, Tile::kRows64})};
constexpr DenseShape kFp8_584Shape = {.tile_rows = kTileRows,
                                      .cost = cost::of(Kernel::kFp8Rows64, Source::kRopeRecords)};
constexpr DenseShape kFp8_584ShapeOfTiles = {
    .tile_rows = kTileRows, .cost = cost::of(Kernel::kFp8Rows64, {Source::kRopeRecords, Tile::kTiles})};

constexpr DenseShape kRecordsShape = {.tile_rows = kTileRows,
                                      .cost = cost::of(Kernel::kFp8Rows64, Source::kRecords)};
constexpr DenseShape kRecordsSharesShape = {
    .tile_rows = kTileRows, .cost = cost::of(Kernel::kFp8Rows64, {Source::kRecords, Cut::kShares})};

/// Of sparse prefill.
struct TurnsShapes {
  DenseShape one_tile, tiles;
};
consteval TurnsShapes turns_of(Source source) {
  return {
      {.tile_rows = kTileRows, .cost = cost::of(Kernel::kFp8Rows64, {source, Cut::kTurns})},
      {.tile_rows = kTileRows, .cost = cost::of(Kernel::kFp8Rows64, {source, Cut::kTurns, Tile::kTiles})}};
}
constexpr TurnsShapes kOwnTurns = turns_of(Source::kOwn);
constexpr TurnsShapes kE4m3Turns = turns_of(Source::kE4m3);
constexpr TurnsShapes kFp8_584Turns = turns_of(Source::kRopeRecords);
constexpr TurnsShapes kRecordsTurns = turns_of(Source::kRecords);

/// Shares of items, or whole items by kTurns, if that is no slower than a line.
schedule::Geometry records_geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const schedule::Geometry line = dense_geometry(problem, workers, kRecordsShape);
  if (!cuda::has_rows_alike(problem)) return line;
  return in_turn_if_faster(problem, listed_geometry(problem, workers, kRecordsSharesShape, line));
}

/// Whole items by kTurns, if that is no slower than a line.
schedule::Geometry fp8_584_geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = cuda::rows_of_item(problem) <= kTileRows;
  const schedule::Geometry line =
      dense_geometry(problem, workers, one_tile ? kFp8_584Shape : kFp8_584ShapeOfTiles);
  return cuda::has_rows_alike(problem) ? in_turn_if_faster(problem, line) : line;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  if (fp8::is_fp8_584(problem)) return fp8_584_geometry(problem, workers);
  if (fp8::is_of_records(problem)) return records_geometry(problem, workers);
  schedule::Geometry g = dense_geometry(problem, workers, fp8::is_e4m3(problem) ? kE4m3Shape : kShape);
  if (problem.rows_per_kv_head() > kTileRows) {
    cost::add(g.cost, cost::of(Kernel::kFp8Rows64, Cut::kMoreTiles).on(workers));
  } else if (g.requests <= kFp8Rows64Limits.few_requests) {
    cost::add(g.cost, cost::of(Kernel::kFp8Rows64, Cut::kFewRequests).on(workers));
  }
  return g;
}

/// Sparse prefill.
schedule::Geometry turns(const DecodeProblem& problem, const schedule::Workers& workers) {
  const TurnsShapes& shapes = fp8::is_fp8_584(problem)      ? kFp8_584Turns
                              : fp8::is_of_records(problem) ? kRecordsTurns
                              : fp8::is_e4m3(problem)       ? kE4m3Turns
                                                            : kOwnTurns;
  return turns_geometry(problem, workers,
                        cuda::rows_of_item(problem) <= kTileRows ? shapes.one_tile : shapes.tiles);
}

}  // namespace

const Cutter kFp8Rows64 = {.kernel = cuda::kFp8Rows64Kernel, .geometry = geometry, .turns = turns};

}  // namespace flashlatent::choose
