#include "cuda/sm90/kernels/mla_64_e4m3/takes.h"

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"

namespace flashlatent::mla_64_e4m3 {

cuda::InstanceKey key_of(const DecodeProblem& problem, const schedule::Geometry& geometry, bool has_pages) {
  if (geometry.partition == schedule::Partition::kTurns) {
    return cuda::in_turn(key(problem.cache.qk_dim, geometry.tile_rows, cuda::Loading::kTokens));
  }
  const bool boxes = has_pages && !problem.sparse.enabled && problem.cache.page_size % kPageTokens == 0;
  return key(problem.cache.qk_dim, geometry.tile_rows,
             cuda::goes_by_lists(problem) ? cuda::Loading::kListedFp8
             : boxes                      ? cuda::Loading::kBoxes
                                          : cuda::Loading::kTokens);
}

}  // namespace flashlatent::mla_64_e4m3

namespace flashlatent::cuda {

namespace {

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = goes_by_lists(problem) ? declines_lists(problem, {KvFormat::kE4m3})
                                           : declines_tokens(problem, {KvFormat::kE4m3})) {
    return reason;
  }
  if (!problem.fp8_products()) {
    return message("products is ", to_string(problem.options.products),
                   " and q is not e4m3; products of fp8 are accepted");
  }
  // Dead tokens have a score of -inf, whose sign a negative scale would change.
  if (const float scale = problem.options.softmax_scale; !(scale > 0)) {
    return message("softmax_scale is ", scale, "; with products of fp8 positive ones are accepted");
  }
  if (problem.cache.v_dim != e4m3_latent::kLatentDim) return unknown_dimensions(problem);
  return std::nullopt;
}

std::optional<std::string> declines_turns(const DecodeProblem& problem, bool /*max_logits*/) {
  if (auto reason = declines_tokens(problem, {KvFormat::kE4m3})) return reason;
  return declines(problem);
}

}  // namespace

const DecodeKernel kE4m3Kernel = {
    .name = "mla_64_e4m3",
    .architecture = Architecture::kSm90a,
    .takes =
        "e4m3 latent caches with e4m3 products, queries bf16 and e4m3, dense and sparse, any heads, tokens "
        "and page size; extra caches and windows",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_e4m3::launch),
    .declines_turns = declines_turns,
};

}  // namespace flashlatent::cuda
