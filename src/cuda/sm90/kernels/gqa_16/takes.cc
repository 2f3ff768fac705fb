#include "cuda/sm90/kernels/gqa_16/takes.h"

#include <algorithm>
#include <optional>

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/prefix_units.h"
#include "cuda/sm90/walk/merge_room.h"
#include "plan/plan_memory.h"

namespace flashlatent::gqa_16 {

namespace {

constexpr int kDims[] = {64, 128, 256};  // of instances; smaller heads leave part of one unused

CachedType cached_type(const DecodeProblem& problem) {
  if (problem.cache.format == KvFormat::kE4m3) return CachedType::kE4m3;
  return problem.cache.dtype == Dtype::kBF16 ? CachedType::kBF16 : CachedType::kF16;
}

// Requests with more parts than this are merged by a separate launch, with many CTAs in place of one.
constexpr int kMostMergingParts = 72;

}  // namespace

int element_bytes(const DecodeProblem& problem) {
  return problem.cache.format == KvFormat::kE4m3 ? 1 : 2;
}

const InstanceKey* key_of(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  const auto* dim =
      std::find_if(std::begin(kDims), std::end(kDims), [&](int d) { return d >= cache.qk_dim; });
  if (dim == std::end(kDims)) return nullptr;
  // A tile of 8 columns takes less time than one of 16. More rows are several tiles, which read the same
  // tokens through the cache.
  const int columns = std::min(problem.rows_per_kv_head() <= 8 ? 8 : 16, most_columns(*dim));
  const InstanceKey key{cached_type(problem), *dim, columns, cache.layout == KvLayout::kPacked};
  for (const auto* list : {&kBf16Keys, &kFp16Keys, &kE4m3Keys}) {
    const auto* found = std::find(list->begin(), list->end(), key);
    if (found != list->end()) return found;
  }
  return nullptr;
}

int tokens_a_cta(const InstanceKey& key) {
  return warps_of(key.dim) * step_tokens_of(key.cached == CachedType::kE4m3);
}

int tiles_a_cta(const DecodeProblem& problem, const schedule::Geometry& g) {
  return tokens_a_cta(*key_of(problem)) / g.block_tokens;
}

bool merges_splits(const schedule::Geometry& g) {
  return schedule::max_merges(g) > 0 && g.fixed_split == 0 && g.parts <= kMostMergingParts;
}

std::size_t partial_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  return prefix::align(static_cast<std::int64_t>(cuda::decode_workspace_bytes(problem, g)));
}
std::size_t workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  const bool invariant = problem.options.batch_invariant;
  std::size_t ctas = merges_splits(g) ? std::size_t{1} * g.parts * g.lanes : 0;
  // a smaller batch may be split where this one is not
  if (!invariant) ctas = std::max<std::size_t>(ctas, cuda::kMostSms);
  return partial_bytes(problem, g) + ctas * warps_of(key_of(problem)->dim) * sizeof(sm90::Ticket);
}

}  // namespace flashlatent::gqa_16

namespace flashlatent::cuda {

namespace {

std::optional<std::string> declines(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (cache.layout == KvLayout::kLatent) return "the cache is latent; separate keys and values are accepted";
  if (cache.qk_dim != cache.v_dim) {
    return message("qk_dim is ", cache.qk_dim, " and v_dim ", cache.v_dim, "; equal ones are accepted");
  }
  const int unit = 16 / gqa_16::element_bytes(problem);
  if (cache.qk_dim % unit != 0 || gqa_16::key_of(problem) == nullptr) {
    return message("d is ", cache.qk_dim, "; multiples of ", unit, " up to 256 are accepted");
  }
  if (cache.layout == KvLayout::kPacked && cache.page_size % unit != 0) {
    return message("page_size is ", cache.page_size, "; of packed values multiples of ", unit,
                   " are accepted");
  }
  return std::nullopt;
}

}  // namespace

const DecodeKernel kGqa16Kernel = {
    .name = "gqa_16",
    .architecture = Architecture::kSm90a,
    .takes =
        "separate keys and values, also in vLLM's packed order: bf16, fp16 and e4m3, d up to 256, any heads, "
        "tokens and page size",
    .declines = declines,
    .workspace_bytes = gqa_16::workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(gqa_16::launch),
    .declines_prefixes = declines_prefix_units,
};

}  // namespace flashlatent::cuda
