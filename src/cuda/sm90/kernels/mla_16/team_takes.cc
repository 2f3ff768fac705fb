// mla_16 by teams, for calls too small to fill the device.
#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"
#include "cuda/host/team_call.h"
#include "cuda/sm90/kernels/mla_16/takes.h"

namespace flashlatent::cuda {

namespace {

template <int kTeam>
std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain})) return reason;
  if (problem.options.batch_invariant) return not_invariant();
  if (!is_listed({mla_16::kTeamKeys}, mla_16::key_of(problem, loading_of(problem), kTeam))) {
    return kTeam > 8 ? unknown_dimensions(problem, "576/512 is") : unknown_dimensions(problem);
  }
  return std::nullopt;
}

template <int kTeam>
constexpr DecodeKernel kernel(const char* name) {
  return {
      .name = name,
      .architecture = Architecture::kSm90a,
      .takes = kTeam > 8
                   ? "bf16 and fp16 caches of qk_dim/v_dim 576/512, any rows, for small batches; dense and "
                     "sparse, any page size; not with batch_invariant"
                   : "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, any rows, for small "
                     "batches; dense and sparse, any page size; not with batch_invariant",
      .declines = declines<kTeam>,
      .workspace_bytes = team_workspace_bytes,
      .launch = FLASHLATENT_IF_COMPILED(mla_16::launch),
      .leaves = true};
}

}  // namespace

const DecodeKernel kMla16Team4Kernel = kernel<4>("mla_16_team4");
const DecodeKernel kMla16Team8Kernel = kernel<8>("mla_16_team8");
const DecodeKernel kMla16Team16Kernel = kernel<16>("mla_16_team16");

}  // namespace flashlatent::cuda
