#include "cuda/etap/choice.h"

#include "cost/table.h"
#include "cuda/common/dense_choice.h"
#include "cuda/common/if_compiled.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::etap {

namespace {
int tile_rows_of(const DecodeProblem& problem) {
  return problem.cache.format == KvFormat::kPlain ? kLowTileRows : kTileRows;
}
}  // namespace

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, tile_rows_of(problem), loading};
}

}  // namespace flashlatent::etap

namespace flashlatent::cuda {

namespace {

using cost::Kernel;
using cost::Situation;
constexpr cost::Costs kCost8 = cost::of(Kernel::kEtap, Situation::kRows8);
constexpr cost::Costs kCostFp8 = cost::of(Kernel::kEtap, Situation::kFp8);

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain, KvFormat::kFp8_656})) return reason;
  const InstanceKey key = etap::key_of(problem, loading_of(problem));
  if (!is_listed({etap::kLowKeys, etap::kFp8Keys}, key)) return unknown_dimensions(problem, "576/512 is");
  if (problem.rows_per_kv_head() > key.tile_rows) return too_many_rows(problem, key.tile_rows);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  const bool fp8 = problem.cache.format == KvFormat::kFp8_656;
  return dense_geometry(
      problem, workers,
      {.tile_rows = fp8 ? etap::kTileRows : etap::kLowTileRows, .cost = fp8 ? kCostFp8 : kCost8});
}

}  // namespace

const DecodeKernel kEtapKernel = {
    .name = "mla_16_transposed",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, up to 8 query rows a KV head, or fp8_656, up to 16; "
        "dense and sparse, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(etap::launch),
};

}  // namespace flashlatent::cuda
