#include "cuda/etap/choice.h"

#include "cost/table.h"
#include "cuda/common/dense_choice.h"
#include "cuda/common/if_compiled.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::etap {

namespace {
int tile_rows_of(const DecodeProblem& problem) {
  return problem.cache.format == KvFormat::kPlain && problem.rows_per_kv_head() <= kLowTileRows ? kLowTileRows
                                                                                                : kTileRows;
}
}  // namespace

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, tile_rows_of(problem), loading};
}

}  // namespace flashlatent::etap

namespace flashlatent::cuda {

namespace {

/// Above them the 64-row kernel is faster: tiles of 32 took 0.170 ms where it takes 0.155.
constexpr int kMostRows = etap::kTileRows;

using cost::Kernel;
using cost::Situation;
constexpr schedule::CostModel kCost = cost::of(Kernel::kEtap, Situation::kRows16);
constexpr schedule::CostModel kCost8 = cost::of(Kernel::kEtap, Situation::kRows8);
constexpr schedule::CostModel kCostFp8 = cost::of(Kernel::kEtap, Situation::kFp8);

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain, KvFormat::kFp8_656})) return reason;
  if (problem.rows_per_kv_head() > kMostRows) return too_many_rows(problem, kMostRows);
  const InstanceKey key = etap::key_of(problem, loading_of(problem));
  if (!is_listed({etap::kKeys, etap::kLowKeys, etap::kFp8Keys}, key))
    return unknown_dimensions(problem, "576/512 is");
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  const int tile_rows = etap::key_of(problem, loading_of(problem)).tile_rows;
  const bool fp8 = problem.cache.format == KvFormat::kFp8_656;
  return dense_geometry(problem, workers,
                        {.tile_rows = tile_rows,
                         .cost = fp8                               ? kCostFp8
                                 : tile_rows == etap::kLowTileRows ? kCost8
                                                                   : kCost});
}

}  // namespace

const DecodeKernel kEtapKernel = {
    .name = "etap",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, or fp8_656, up to 16 query rows a KV head; dense and "
        "sparse, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(etap::launch),
};

}  // namespace flashlatent::cuda
