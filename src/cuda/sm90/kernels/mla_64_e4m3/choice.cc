#include "cuda/sm90/kernels/mla_64_e4m3/choice.h"

#include "core/message.h"
#include "cost/model.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/dense_choice.h"
#include "cuda/host/if_compiled.h"
#include "plan/even_shares.h"
#include "plan/host_plan.h"

namespace flashlatent::mla_64_e4m3 {

cuda::InstanceKey key_of(const DecodeProblem& problem, const schedule::Geometry& geometry, bool has_pages) {
  const bool boxes = has_pages && !problem.sparse.enabled && problem.cache.page_size % kPageTokens == 0;
  return key(problem.cache.qk_dim, geometry.tile_rows,
             cuda::goes_by_lists(problem) ? cuda::Loading::kListedFp8
             : boxes                      ? cuda::Loading::kBoxes
                                          : cuda::Loading::kTokens);
}

}  // namespace flashlatent::mla_64_e4m3

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;

struct Shape {
  DenseShape line;
  cost::Costs shares;  // of CTAs that have a share of one request each
};
constexpr Shape kShape16 = {
    {.tile_rows = mla_64_e4m3::kFewRows, .cost = cost::of(Kernel::kMla64E4m3, Situation::kRows16)},
    cost::of(Kernel::kMla64E4m3, Situation::kSharesOfFewRows)};
constexpr Shape kShape64 = {
    {.tile_rows = mla_64_e4m3::kTileRows, .cost = cost::of(Kernel::kMla64E4m3, Situation::kRows64)},
    cost::of(Kernel::kMla64E4m3, Situation::kShares)};
constexpr Shape kShapeOfTiles = {
    {.tile_rows = mla_64_e4m3::kTileRows, .cost = cost::of(Kernel::kMla64E4m3, Situation::kTiles)},
    cost::of(Kernel::kMla64E4m3, Situation::kSharesOfTiles)};

/// Up to so many blocks a CTA, several requests have equally many parts each, even where they differ in
/// length.
constexpr int kFewBlocks = 2;
/// With more than so many blocks a CTA a line shares out varied lengths better.
constexpr int kManyBlocks = 16;

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = goes_by_lists(problem) ? declines_lists(problem, {KvFormat::kE4m3})
                                           : declines_tokens(problem, {KvFormat::kE4m3})) {
    return reason;
  }
  if (!problem.fp8_products()) {
    return message("products is ", to_string(problem.options.products),
                   " and q is not e4m3; products of fp8 are accepted");
  }
  // Tokens that do not count have a score of -inf, which another scale would turn around.
  if (const float scale = problem.options.softmax_scale; !(scale > 0)) {
    return message("softmax_scale is ", scale, "; with products of fp8 positive ones are accepted");
  }
  if (problem.cache.v_dim != e4m3_latent::kLatentDim) return unknown_dimensions(problem);
  return std::nullopt;
}

/// Shares of one request each, so that a CTA has one segment, and a combine step. Not where CTAs never split:
/// a workspace for larger batches may have no room for partial results.
std::optional<schedule::Geometry> shares_of_requests(const DecodeProblem& problem, schedule::Geometry line,
                                                     const schedule::Workers& workers,
                                                     const cost::Costs& costs) {
  if (line.partition != schedule::Partition::kLine || goes_by_lists(problem)) return std::nullopt;
  line.cost = costs.on(workers);
  const std::optional<schedule::Geometry> even = schedule::even_items(line);
  if (!even) return std::nullopt;
  const auto has_up_to = [&](int blocks) {
    return schedule::max_blocks(line) <= blocks * schedule::even_shares(*even);
  };
  if (problem.sparse.enabled || line.requests == 1 || has_up_to(kFewBlocks)) return even;
  if (!has_up_to(kManyBlocks)) return std::nullopt;
  cost::add(line.cost, cost::of(Kernel::kLatent, Situation::kReadsPlan).on(workers));
  return schedule::items_by_length(line);
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const int rows = rows_of_item(problem);
  const Shape& shape = rows <= mla_64_e4m3::kFewRows    ? kShape16
                       : rows <= mla_64_e4m3::kTileRows ? kShape64
                                                        : kShapeOfTiles;
  const schedule::Geometry line = dense_geometry(problem, workers, shape.line);
  const std::optional<schedule::Geometry> shares = shares_of_requests(problem, line, workers, shape.shares);
  return shares && schedule::estimate(*shares) <= schedule::estimate(line) ? *shares : line;
}

}  // namespace

const DecodeKernel kE4m3Kernel = {
    .name = "mla_64_e4m3",
    .backend = Backend::kCuda,
    .takes =
        "e4m3 latent caches with e4m3 products, queries bf16 and e4m3, dense and sparse, any heads, tokens "
        "and page size; extra caches and windows",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_e4m3::launch),
};

}  // namespace flashlatent::cuda
