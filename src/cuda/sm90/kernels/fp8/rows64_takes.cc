// Any number of query rows, in tiles of 64.
#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"
#include "cuda/host/layer_edges.h"
#include "cuda/sm90/kernels/fp8/takes.h"

namespace flashlatent::fp8 {

FusedEdges fuses(const DecodeProblem& problem, const schedule::Geometry& geometry, const DecodeInputs& inputs,
                 const DecodeOutputs& outputs) {
  const schedule::Geometry g = cuda::geometry_of_call(problem, inputs, geometry);
  const bool whole = g.partition == schedule::Partition::kWhole || g.partition == schedule::Partition::kTurns;
  const bool merged =
      schedule::combines_shares(g.partition) && g.tile_rows < kRows64;  // ops/combine_edges.cu
  const cuda::InstanceKey key = with_edges(key_of(problem, g, true));
  if (std::ranges::find(kEdgesKeys, key) == kEdgesKeys.end()) return {};
  const bool loads_rows = g.tile_rows < kRows64;  // one by one
  // A warp of few rows has columns of a record's rows, not rows: it knows no row's squares. By 64 rows a norm
  // of records has not run yet.
  const bool norms = is_of_records(problem) && inputs.q_norm > 0;
  return {.query = !norms && cuda::fits_query_edge(problem, inputs, !loads_rows),
          .output = (whole || merged) && cuda::fits_output_edge(inputs, outputs)};
}

}  // namespace flashlatent::fp8

namespace flashlatent::cuda {

namespace {

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (fp8::is_fp8_584(problem)) return fp8::declines_fp8_584(problem);
  if (fp8::is_of_records(problem)) return fp8::declines_records(problem);
  std::optional<std::string> reason = fp8::declines_cache(problem);
  if (!reason && fp8::is_e4m3(problem)) reason = declines_e4m3_products(problem);
  return reason;
}

std::optional<std::string> declines_turns(const DecodeProblem& problem, bool max_logits) {
  std::optional<std::string> reason = fp8::declines_max_logits(problem, max_logits);
  return reason ? reason : declines(problem);
}

}  // namespace

const DecodeKernel kFp8Rows64Kernel = {
    .name = "fp8_64",
    .architecture = Architecture::kSm90a,
    .takes =
        "fp8_656 caches, and e4m3 latents of 576 with products in bf16, dense and sparse; fp8_584, mxfp8_528 "
        "and nvfp4_288 caches, sparse, with or without an extra cache; any number of query rows, any page "
        "size",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(fp8::launch),
    .declines_turns = declines_turns,
    .fuses = fp8::fuses,
};

}  // namespace flashlatent::cuda
