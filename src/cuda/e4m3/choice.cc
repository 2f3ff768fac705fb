#include "cuda/e4m3/choice.h"

#include "core/message.h"
#include "cost/model.h"
#include "cuda/common/dense_choice.h"
#include "cuda/common/if_compiled.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::mla_e4m3 {

cuda::InstanceKey key_of(const DecodeProblem& problem, const schedule::Geometry& geometry, bool has_pages) {
  const bool boxes = has_pages && !problem.sparse.enabled && problem.cache.page_size % kPageTokens == 0;
  return key(problem.cache.qk_dim, geometry.tile_rows,
             boxes ? cuda::Loading::kBoxes : cuda::Loading::kTokens);
}

}  // namespace flashlatent::mla_e4m3

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

constexpr DenseShape kShape16 = {.tile_rows = mla_e4m3::kFewRows,
                                 .cost = cost::of(Kernel::kE4m3, Situation::kRows16)};
constexpr DenseShape kShape64 = {.tile_rows = mla_e4m3::kTileRows,
                                 .cost = cost::of(Kernel::kE4m3, Situation::kRows64)};
constexpr DenseShape kShapeOfTiles = {.tile_rows = mla_e4m3::kTileRows,
                                      .cost = cost::of(Kernel::kE4m3, Situation::kTiles)};

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kE4m3})) return reason;
  if (!problem.fp8_products()) {
    return message("products is ", to_string(problem.options.products),
                   " and q is not e4m3; products of fp8 are accepted");
  }
  if (problem.cache.v_dim != e4m3_latent::kLatentDim) return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const int rows = problem.rows_per_kv_head();
  return dense_geometry(problem, workers,
                        rows <= kShape16.tile_rows   ? kShape16
                        : rows <= kShape64.tile_rows ? kShape64
                                                     : kShapeOfTiles);
}

}  // namespace

const DecodeKernel kE4m3Kernel = {
    .name = "mla_64_e4m3",
    .backend = Backend::kCuda,
    .takes =
        "e4m3 latent caches with e4m3 products, queries bf16 and e4m3, dense and sparse, any heads, tokens "
        "and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_e4m3::launch),
};

}  // namespace flashlatent::cuda
