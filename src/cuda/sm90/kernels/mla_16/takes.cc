#include "cuda/sm90/kernels/mla_16/takes.h"

#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"

namespace flashlatent::mla_16 {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading, int team) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, kTileRows, loading, 1, team};
}

}  // namespace flashlatent::mla_16

namespace flashlatent::cuda {

namespace {

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  if (problem.rows_per_kv_head() > mla_16::kTileRows) return too_many_rows(problem, mla_16::kTileRows);
  const InstanceKey key = mla_16::key_of(problem, loading_of(problem), 1);
  if (!is_listed({mla_16::kKeys}, key)) return unknown_dimensions(problem);
  return std::nullopt;
}

std::optional<std::string> declines_turns(const DecodeProblem& problem, bool /*max_logits*/) {
  if (auto reason = declines(problem)) return reason;
  InstanceKey key = mla_16::key_of(problem, loading_of(problem), 1);
  key.turns = true;
  return is_listed({mla_16::kTurnsKeys}, key)
             ? std::nullopt
             : std::optional(unknown_dimensions(problem, "576/512 and 512/512 are"));
}

}  // namespace

const DecodeKernel kMla16Kernel = {
    .name = "mla_16",
    .architecture = Architecture::kSm90a,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, up to 16 query rows a KV head; "
        "dense and sparse, any page size",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_16::launch),
    .declines_turns = declines_turns,
    .leaves = true,
};

}  // namespace flashlatent::cuda
