#include "cuda/mma16/choice.h"

#include "core/message.h"
#include "cuda/common/dense_choice.h"
#include "cuda/common/if_compiled.h"
#include "cuda/cuda_backend.h"

namespace flashlatent::mma16 {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading, int team) {
  const auto& cache = problem.cache;
  return {cache.dtype, cache.qk_dim, cache.v_dim, kTileRows, loading, 1, team};
}

}  // namespace flashlatent::mma16

namespace flashlatent::cuda {

namespace {

// Nanoseconds. Beside etap with 16 rows: up to 0.8 us ahead with 2 to 4 blocks a CTA, 0.4 behind at 8 to 16,
// 1 to 3 ahead with 60 to 128. Varied lengths take 0.1605 ms with a split that costs 1.5 us, 0.1584 with 6.5;
// per_call leaves a call of one split at 2.8 us beside its blocks. Blocks alone: 32 whole requests of 4,096
// to 16,384 tokens.
constexpr schedule::CostModel kCost = {
    .per_block = 2070, .per_split = 6500, .per_call = -3000, .per_merge = 5800, .per_block_alone = 1140};

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (problem.cache.format != KvFormat::kPlain)
    return message("the cache is fp8_656; a plain one is accepted");
  if (problem.rows_per_kv_head() > mma16::kTileRows) return too_many_rows(problem, mma16::kTileRows);
  const InstanceKey key = mma16::key_of(problem, loading_of(problem), 1);
  if (!is_listed({mma16::kKeys576x512, mma16::kKeys512x512, mma16::kKeys320x256}, key))
    return unknown_dimensions(problem);
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  return dense_geometry(problem, workers, {.tile_rows = mma16::kTileRows, .cost = kCost});
}

}  // namespace

const DecodeKernel kMma16Kernel = {
    .name = "mma16",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, up to 16 query rows a KV head; "
        "dense and sparse, any page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mma16::launch),
};

}  // namespace flashlatent::cuda
