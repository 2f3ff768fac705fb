// mla_64_pingpong by teams of any size from fp8_584 and records by indices, for calls too small to fill the
// device: a cluster has one item's row tile, and each of its CTAs one or two blocks (any_team.cuh).
#include <span>

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"
#include "cuda/host/layer_edges.h"
#include "cuda/host/team_call.h"
#include "cuda/sm90/kernels/mla_64_pingpong/takes.h"
#include "plan/schedule.h"
#include "plan/token_lists.h"

namespace flashlatent::mla_64_pingpong {

int team_blocks_of(const DecodeProblem& problem) {
  schedule::Geometry g;
  schedule::set_lists(g, problem);
  return schedule::max_blocks(g);
}

}  // namespace flashlatent::mla_64_pingpong

namespace flashlatent::cuda {

namespace {

using mla_64_pingpong::kMostTeam;
using mla_64_pingpong::kMostTeamBlocks;

std::optional<std::string> declines(const DecodeProblem& problem) {
  const bool records = is_in(kByteScaleFormats, problem.cache.format);
  if (auto reason = declines_lists(problem, {},
                                   records ? std::span<const KvFormat>(kByteScaleFormats)
                                           : std::span<const KvFormat>(kRopeRecordFormats))) {
    return reason;
  }
  const ExtraCache& extra = problem.cache.extra;
  if (!problem.sparse.enabled || (extra.enabled && !extra.indexed)) {
    return message("tokens of the ", problem.sparse.enabled ? "extra" : to_string(problem.cache.format),
                   " cache come by page table; indices are accepted");
  }
  if (problem.query.ragged) return "queries are ragged; the same number of tokens a request is accepted";
  if (problem.options.batch_invariant) return not_invariant();
  if (const int blocks = mla_64_pingpong::team_blocks_of(problem); blocks > kMostTeam * kMostTeamBlocks) {
    return message("topk and the extra cache's make ", blocks, " blocks of 64 tokens; at most ",
                   kMostTeam * kMostTeamBlocks, " are accepted");
  }
  return std::nullopt;
}

/// A team of one writes its output without a merge.
FusedEdges fuses(const DecodeProblem& problem, const schedule::Geometry& geometry, const DecodeInputs& inputs,
                 const DecodeOutputs& outputs) {
  return {.query = fits_query_edge(problem, inputs, true),
          .output = geometry.team > 1 && fits_output_edge(inputs, outputs)};
}

}  // namespace

const DecodeKernel kMla64TeamKernel = {
    .name = "mla_64_team",
    .architecture = Architecture::kSm90a,
    .takes =
        "fp8_584, mxfp8_528 and nvfp4_288 caches, sparse, with an extra cache by indices or without, up to "
        "32 blocks of 64 tokens, any rows and page size, for small batches; not with batch_invariant",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_pingpong::launch_teams),
    .fuses = fuses,
};

}  // namespace flashlatent::cuda
