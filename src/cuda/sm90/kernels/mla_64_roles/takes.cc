#include "cuda/sm90/kernels/mla_64_roles/takes.h"

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"
#include "cuda/host/tensors.h"

namespace flashlatent::mla_64_roles {

cuda::InstanceKey key_of(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  const bool boxes = !problem.sparse.enabled && cache.page_size % kPageTokens == 0;
  return {cache.dtype, cache.qk_dim, cache.v_dim, kTileRows,
          boxes ? cuda::Loading::kBoxes : cuda::Loading::kTokens};
}

}  // namespace flashlatent::mla_64_roles

namespace flashlatent::cuda {

namespace {

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  if (problem.options.batch_invariant) return "batch_invariant is true; false is accepted";
  // The scorer has no registers left for the span of a shared context that each query token sees.
  const int ranks = problem.options.shard.world;
  if (ranks > 1 && problem.options.causal && problem.query.tokens > 1) {
    return message(
        "shard is of ", ranks, " ranks, s_q is ", problem.query.tokens,
        " and causal is true; contexts that are whole, one query token or causal false are accepted");
  }
  if (!is_listed({mla_64_roles::kKeys}, mla_64_roles::key_of(problem)))
    return unknown_dimensions(problem, "576/512 is");
  return std::nullopt;
}

std::optional<std::string> declines_turns(const DecodeProblem& problem, bool /*max_logits*/) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  InstanceKey key = mla_64_roles::key_of(problem);
  key.turns = true;
  return is_listed({mla_64_roles::kTurnsKeys}, key)
             ? std::nullopt
             : std::optional(unknown_dimensions(problem, "576/512 and 512/512 are"));
}

/// Why a call needs the substitute, although this kernel takes its problem.
enum class Obstacle { kNone, kNoPages, kHeads, kQuery, kOut };

/// TMA boxes need pages, and KV heads that begin at whole chunks. Query rows are loaded by boxes, and outputs
/// are written by boxes or 16 bytes at a time.
Obstacle obstacle_of(const DecodeProblem& problem, const DecodeInputs& inputs, const DecodeOutputs& outputs) {
  const ConstTensorView& cache = inputs.kv_cache;
  if (mla_64_roles::key_of(problem).loading == Loading::kBoxes) {
    if (cache.shape[0] == 0) return Obstacle::kNoPages;
    if (!heads_in_chunks(cache)) return Obstacle::kHeads;
  }
  if (!rows_in_boxes(problem, inputs)) return Obstacle::kQuery;
  return is_aligned(outputs.out, 16) ? Obstacle::kNone : Obstacle::kOut;
}

std::string reason_of(Obstacle obstacle, const DecodeProblem& problem, const DecodeInputs& inputs,
                      const DecodeOutputs& outputs) {
  switch (obstacle) {
    case Obstacle::kNone:
      break;
    case Obstacle::kNoPages:
      return "kv_cache has 0 pages; at least one is accepted";
    case Obstacle::kHeads:
      return message("kv_cache is ", to_string(inputs.kv_cache),
                     "; KV heads whose stride is a multiple of 128 bytes are accepted");
    case Obstacle::kQuery:
      return message("q is ", to_string(inputs.q),
                     inputs.q_rope.present() ? message(", q_rope ", to_string(inputs.q_rope)) : "",
                     " with h_kv ", problem.cache.heads,
                     "; one query token, one KV head and query tokens that follow one another without a gap, "
                     "or one KV head and a number of heads that divides 64 or is a multiple of it are "
                     "accepted");
    case Obstacle::kOut:
      return check_alignment("out", outputs.out, 16).message();
  }
  return "";
}

/// mla_64_pingpong, which cuts requests into the same shares.
const DecodeKernel* substitute(const DecodeProblem& problem, const DecodeInputs& inputs,
                               const DecodeOutputs& outputs, std::string* reason) {
  const Obstacle obstacle = obstacle_of(problem, inputs, outputs);
  if (obstacle == Obstacle::kNone) return nullptr;
  if (reason != nullptr) *reason = reason_of(obstacle, problem, inputs, outputs);
  return &kMla64PingpongKernel;
}

}  // namespace

const DecodeKernel kMla64RolesKernel = {
    .name = "mla_64_roles",
    .architecture = Architecture::kSm90a,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, dense and sparse, any heads, tokens and page size; no "
        "batch_invariant",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_64_roles::launch),
    .substitute = substitute,
    .declines_turns = declines_turns,
    .leaves = true,
};

}  // namespace flashlatent::cuda
