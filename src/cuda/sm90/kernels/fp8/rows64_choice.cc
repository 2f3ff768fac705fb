// Any number of query rows, in tiles of 64.
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/dense_choice.h"
#include "cuda/host/if_compiled.h"
#include "cuda/sm90/kernels/fp8/choice.h"

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

constexpr int kTileRows = fp8::kRows64;
constexpr DenseShape kShape = {.tile_rows = kTileRows,
                               .cost = cost::of(Kernel::kFp8Rows64, Situation::kRows64)};
constexpr DenseShape kE4m3Shape = {.tile_rows = kTileRows,
                                   .cost = cost::of(Kernel::kFp8Rows64, Situation::kE4m3Rows64)};
constexpr DenseShape kFp8_584Shape = {.tile_rows = kTileRows,
                                      .cost = cost::of(Kernel::kFp8Rows64, Situation::kFp8_584)};
constexpr DenseShape kFp8_584ShapeOfTiles = {.tile_rows = kTileRows,
                                             .cost = cost::of(Kernel::kFp8Rows64, Situation::kFp8_584Tiles)};
constexpr int kFewRequests = 2;

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (fp8::is_fp8_584(problem)) return fp8::declines_fp8_584(problem);
  std::optional<std::string> reason = fp8::declines_cache(problem);
  if (!reason && fp8::is_e4m3(problem)) reason = declines_e4m3_products(problem);
  return reason;
}

/// Whole items in turn where that is no slower than a line.
schedule::Geometry fp8_584_geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool one_tile = rows_of_item(problem) <= kTileRows;
  const schedule::Geometry line =
      dense_geometry(problem, workers, one_tile ? kFp8_584Shape : kFp8_584ShapeOfTiles);
  return has_rows_alike(problem) ? in_turn_if_faster(problem, line) : line;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  if (fp8::is_fp8_584(problem)) return fp8_584_geometry(problem, workers);
  schedule::Geometry g = dense_geometry(problem, workers, fp8::is_e4m3(problem) ? kE4m3Shape : kShape);
  if (problem.rows_per_kv_head() > kTileRows) {
    cost::add(g.cost, cost::of(Kernel::kFp8Rows64, Situation::kMoreTiles).on(workers));
  } else if (g.requests <= kFewRequests) {
    cost::add(g.cost, cost::of(Kernel::kFp8Rows64, Situation::kFewRequests).on(workers));
  }
  return g;
}

}  // namespace

const DecodeKernel kFp8Rows64Kernel = {
    .name = "fp8_64",
    .backend = Backend::kCuda,
    .takes =
        "fp8_656 caches, and e4m3 latents of 576 with products in bf16, dense and sparse; fp8_584 caches, "
        "sparse, with or without an extra cache; any number of query rows, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(fp8::launch),
};

}  // namespace flashlatent::cuda
