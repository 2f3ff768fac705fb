// Up to 32 query rows a KV head; by teams any number, in tiles of 16, for calls too small to fill the device.
#include <algorithm>

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"
#include "cuda/host/team_call.h"
#include "cuda/sm90/kernels/fp8/takes.h"

namespace flashlatent::fp8 {

static_assert(fp8_656::kDim == e4m3_latent::kDim && fp8_656::kLatentDim == e4m3_latent::kLatentDim);

std::optional<std::string> declines_cache(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (auto reason = cuda::declines_tokens(problem, {}, cuda::kOneListFormats)) return reason;
  if (cache.qk_dim != fp8_656::kDim || cache.v_dim != fp8_656::kLatentDim) {
    return cuda::unknown_dimensions(problem, "576/512 is");
  }
  return std::nullopt;
}

std::optional<std::string> declines_fp8_584(const DecodeProblem& problem) {
  if (auto reason = cuda::declines_lists(problem, {}, cuda::kRopeRecordFormats)) return reason;
  if (!problem.sparse.enabled) {
    return "tokens of the fp8_584 cache come by page table; indices are accepted";
  }
  return std::nullopt;
}

std::optional<std::string> declines_records(const DecodeProblem& problem) {
  if (auto reason = cuda::declines_lists(problem, {}, cuda::kByteScaleFormats)) return reason;
  if (!problem.sparse.enabled) {
    return message("tokens of the ", to_string(problem.cache.format),
                   " cache come by page table; indices are accepted");
  }
  return std::nullopt;
}

std::optional<std::string> declines_max_logits(const DecodeProblem& problem, bool max_logits) {
  if (!max_logits || !cuda::goes_by_lists(problem)) return std::nullopt;
  return message("max_logits are wanted; of the ", to_string(problem.cache.format),
                 " cache this kernel takes calls without");
}

cuda::InstanceKey key_of(const DecodeProblem& problem, const schedule::Geometry& g, bool has_pages) {
  const bool alone = schedule::combines_shares(g.partition) || g.partition == schedule::Partition::kTurns ||
                     (g.partition == schedule::Partition::kWhole && cuda::has_rows_alike(problem));
  if (is_fp8_584(problem)) return fp8_584_key(g.tile_rows, alone && g.tile_rows < kRows64);
  if (is_of_records(problem)) return records_key(g.tile_rows, alone);
  if (g.partition == schedule::Partition::kTurns) {
    return cuda::in_turn(is_e4m3(problem) ? e4m3_key(g.tile_rows, cuda::Loading::kTokens) : key(g.tile_rows));
  }
  if (!is_e4m3(problem)) return key(g.tile_rows, g.team);
  const bool boxes = has_pages && !problem.sparse.enabled && problem.cache.page_size % kPageTokens == 0;
  return e4m3_key(g.tile_rows, boxes ? cuda::Loading::kBoxes : cuda::Loading::kTokens, g.team);
}

}  // namespace flashlatent::fp8

namespace flashlatent::cuda {

namespace {

std::optional<std::string> declines_rows(const DecodeProblem& problem, int most) {
  if (rows_of_item(problem) <= most) return std::nullopt;
  return too_many_rows(problem, most);
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (fp8::is_of_records(problem)) return fp8::declines_records(problem);
  auto reason = fp8::is_fp8_584(problem) ? fp8::declines_fp8_584(problem) : fp8::declines_cache(problem);
  return reason ? reason : declines_rows(problem, fp8::kMostFewRows);
}

std::optional<std::string> declines_turns(const DecodeProblem& problem, bool max_logits) {
  std::optional<std::string> reason = fp8::declines_max_logits(problem, max_logits);
  return reason ? reason : declines(problem);
}

std::optional<std::string> teams_decline(const DecodeProblem& problem) {
  std::optional<std::string> reason = fp8::declines_cache(problem);
  if (!reason && problem.options.batch_invariant) reason = not_invariant();
  return reason;
}

}  // namespace

const DecodeKernel kFp8Rows32Kernel = {
    .name = "fp8_32",
    .architecture = Architecture::kSm90a,
    .takes =
        "fp8_656 caches, and e4m3 latents of 576 with products in bf16 or fp8, dense and sparse; fp8_584, "
        "with an extra cache or without, sparse; up to 32 query rows a KV head, any page size; mxfp8_528 and "
        "nvfp4_288 likewise, any number of query rows",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(fp8::launch),
    .declines_turns = declines_turns,
    .fuses = fp8::fuses,
};

const DecodeKernel kFp8Rows16Team8Kernel = {
    .name = "fp8_16_team8",
    .architecture = Architecture::kSm90a,
    .takes =
        "fp8_656 caches, and e4m3 latents of 576, any number of query rows, for small batches; dense and "
        "sparse, any page size; not with batch_invariant",
    .declines = teams_decline,
    .workspace_bytes = team_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(fp8::launch),
};

}  // namespace flashlatent::cuda
