#include "cuda/sm90/kernels/mla_16_transposed/takes.h"

#include "core/formats/formats.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/latent_problem.h"

namespace flashlatent::mla_16_transposed {

namespace {
int tile_rows_of(const DecodeProblem& problem) {
  const bool low = problem.cache.format == KvFormat::kPlain && !cuda::goes_by_lists(problem);
  return low ? kLowTileRows : kTileRows;
}
}  // namespace

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading) {
  const auto& cache = problem.cache;
  return {cuda::cached_dtype(cache), cache.qk_dim, cache.v_dim, tile_rows_of(problem), loading};
}

bool has_one_item(const DecodeProblem& problem, const schedule::Geometry& g) {
  if (schedule::combines_shares(g.partition)) return true;
  return g.partition == schedule::Partition::kWhole && cuda::has_rows_alike(problem) &&
         cuda::is_listed({kShareKeys}, key_of(problem, cuda::loading_of(problem)));
}

}  // namespace flashlatent::mla_16_transposed

namespace flashlatent::cuda {

namespace {

/// The most rows of an item by lists.
constexpr int kMostRows = mla_16_transposed::kTileRows;

/// By two lists. No other kernel takes these from fp8_656 and e4m3 with RoPE, so any number of rows is taken.
std::optional<std::string> declines_listed(const DecodeProblem& problem) {
  if (auto reason = declines_lists(problem, {}, kByteFormats)) return reason;
  if (auto reason = declines_e4m3_products(problem)) return reason;
  const InstanceKey key = mla_16_transposed::key_of(problem, loading_of(problem));
  if (!is_listed({mla_16_transposed::kRopeRecordKeys, mla_16_transposed::kRecordsKeys,
                  mla_16_transposed::kListedKeys, mla_16_transposed::kE4m3Keys},
                 key))
    return unknown_dimensions(problem, "576/512 is");
  if (key.qk_dim == key.v_dim && rows_of_item(problem) > kMostRows) {
    return too_many_rows(problem, kMostRows);
  }
  return std::nullopt;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (goes_by_lists(problem)) return declines_listed(problem);
  if (auto reason = declines_tokens(problem, {KvFormat::kPlain}, kOneListFormats)) return reason;
  if (auto reason = declines_e4m3_products(problem)) return reason;
  const InstanceKey key = mla_16_transposed::key_of(problem, loading_of(problem));
  if (!is_listed({mla_16_transposed::kLowKeys, mla_16_transposed::kFp8Keys, mla_16_transposed::kE4m3Keys},
                 key))
    return unknown_dimensions(problem, "576/512 is");
  if (problem.rows_per_kv_head() > key.tile_rows) return too_many_rows(problem, key.tile_rows);
  return std::nullopt;
}

std::optional<std::string> declines_turns(const DecodeProblem& problem, bool /*max_logits*/) {
  if (!goes_by_lists(problem))
    return "there is one cache, whose row is not all value; two caches, or one whose row is, are accepted";
  if (auto reason = declines_listed(problem)) return reason;
  InstanceKey key = mla_16_transposed::key_of(problem, loading_of(problem));
  key.turns = true;
  if (is_listed({mla_16_transposed::kTurnsKeys, mla_16_transposed::kTurnsE4m3Keys,
                 mla_16_transposed::kTurnsRecordsKeys},
                key))
    return std::nullopt;
  return unknown_dimensions(problem, "576/512 is");
}

}  // namespace

const DecodeKernel kMla16TransposedKernel = {
    .name = "mla_16_transposed",
    .architecture = Architecture::kSm90a,
    .takes =
        "bf16 and fp16 caches of qk_dim/v_dim 576/512, up to 8 query rows a KV head; all others, up to "
        "16; dense and sparse, any page size; extra caches and windows with rows of 512, and with fp8_656 "
        "and "
        "e4m3 of 576 of any heads",
    .declines = declines,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(mla_16_transposed::launch),
    .declines_turns = declines_turns,
    .leaves = true,
};

}  // namespace flashlatent::cuda
