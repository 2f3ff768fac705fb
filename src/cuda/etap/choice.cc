#include "cuda/etap/choice.h"

#include "cost/table.h"
#include "cuda/common/dense_choice.h"
#include "cuda/common/if_compiled.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::etap {

namespace {
int tile_rows_of(const DecodeProblem& problem) {
  const bool low = problem.cache.format == KvFormat::kPlain && !cuda::goes_by_lists(problem) &&
                   problem.rows_per_kv_head() <= kLowTileRows;
  return low ? kLowTileRows : kTileRows;
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
constexpr schedule::CostModel kCostFp8_584 = cost::of(Kernel::kEtap, Situation::kFp8_584);

/// By two lists. From fp8_656 with RoPE no other kernel does, so that any number of rows is taken.
std::optional<std::string> declines_listed(const DecodeProblem& problem) {
  if (auto reason = declines_lists(problem, {KvFormat::kFp8_584, KvFormat::kFp8_656})) return reason;
  const InstanceKey key = etap::key_of(problem, loading_of(problem));
  if (!is_listed({etap::kFp8_584Keys, etap::kListedKeys}, key))
    return unknown_dimensions(problem, "576/512 is");
  if (key.loading == Loading::kFp8_584 && rows_of_item(problem) > kMostRows) {
    return too_many_rows(problem, kMostRows);
  }
  return std::nullopt;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (goes_by_lists(problem)) return declines_listed(problem);
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain, KvFormat::kFp8_656})) return reason;
  if (problem.rows_per_kv_head() > kMostRows) return too_many_rows(problem, kMostRows);
  const InstanceKey key = etap::key_of(problem, loading_of(problem));
  if (!is_listed({etap::kKeys, etap::kLowKeys, etap::kFp8Keys}, key))
    return unknown_dimensions(problem, "576/512 is");
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  const int tile_rows = etap::key_of(problem, loading_of(problem)).tile_rows;
  const auto cost = [&] {
    if (problem.cache.format == KvFormat::kFp8_584) return kCostFp8_584;
    if (problem.cache.format == KvFormat::kFp8_656) return kCostFp8;
    return tile_rows == etap::kLowTileRows ? kCost8 : kCost;
  };
  return dense_geometry(problem, workers, {.tile_rows = tile_rows, .cost = cost()});
}

}  // namespace

const DecodeKernel kEtapKernel = {
    .name = "etap",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, fp8_656 or fp8_584, up to 16 query rows a KV head; "
        "dense "
        "and sparse, any page size; extra caches and windows with fp8_584 and, of any heads, fp8_656",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(etap::launch),
};

}  // namespace flashlatent::cuda
