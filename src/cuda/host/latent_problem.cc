#include "cuda/host/latent_problem.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/formats/e4m3_latent.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "cuda/sm90/walk/merge_room.h"
#include "plan/plan_memory.h"

namespace flashlatent::cuda {

namespace {

constexpr int kBlockTokens = 64;
constexpr int kLeastBoxTokens = 16;
constexpr std::int64_t kMostTokenItems = 1 << 30;

}  // namespace

int box_tokens_of(const DecodeProblem& problem) {
  return std::gcd(problem.cache.page_size, kBlockTokens);
}

bool has_rows_alike(const DecodeProblem& problem) {
  // Walks find which query tokens ragged requests have (walk/segments.cuh).
  return (has_token_items(problem) || problem.query.tokens == 1) && !problem.query.ragged;
}

bool has_token_items(const DecodeProblem& problem) {
  return problem.token_items() || (problem.cache.layout == KvLayout::kLatent && problem.options.window != 0);
}

bool goes_by_lists(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (cache.layout != KvLayout::kLatent) return false;
  const LatentFormat& format = format_of(cache);
  return cache.extra.enabled || problem.options.window != 0 || (format.is_record() && format.all_value) ||
         (cache.format == KvFormat::kE4m3 && cache.qk_dim == e4m3_latent::kLatentDim &&
          !problem.fp8_products()) ||
         (format.is_record() && cache.qk_dim == format.dim_without_rope);
}

int rows_of_item(const DecodeProblem& problem) {
  const int heads = problem.query.heads / problem.cache.heads;
  return has_token_items(problem) ? heads : problem.query.tokens * heads;
}

Loading loading_of(const DecodeProblem& problem) {
  const KvFormat format = problem.cache.format;
  const bool lists = goes_by_lists(problem);
  if (is_in(kRecordFormats, format)) return Loading::kRecords;
  if (is_in(kRopeRecordFormats, format)) return Loading::kRopeRecords;
  if (format != KvFormat::kPlain) return lists ? Loading::kListedFp8 : Loading::kFp8;
  if (lists) return Loading::kListedTokens;
  const bool boxes = !problem.sparse.enabled && box_tokens_of(problem) >= kLeastBoxTokens;
  return boxes ? Loading::kBoxes : Loading::kTokens;
}

bool is_listed(std::initializer_list<std::span<const InstanceKey>> lists, const InstanceKey& key) {
  return std::any_of(lists.begin(), lists.end(), [&](std::span<const InstanceKey> list) {
    return std::find(list.begin(), list.end(), key) != list.end();
  });
}

std::optional<std::string> declines_lists(const DecodeProblem& problem,
                                          std::initializer_list<KvFormat> listed,
                                          std::span<const KvFormat> more) {
  std::vector<KvFormat> formats(listed);
  formats.insert(formats.end(), more.begin(), more.end());
  const auto& cache = problem.cache;
  if (cache.layout != KvLayout::kLatent) {
    return message("the cache is ", to_string(cache.layout), "; a latent one is accepted");
  }
  if (!is_in(formats, cache.format)) {
    std::string accepted;
    for (KvFormat format : formats) {
      accepted += accepted.empty() ? "" : " and ";
      accepted += format == KvFormat::kPlain ? "bf16 and fp16" : to_string(format);
    }
    const bool plain = cache.format == KvFormat::kPlain;
    const bool one = formats.size() == 1 && formats.front() != KvFormat::kPlain;
    return message("the cache is of ", plain ? to_string(cache.dtype) : to_string(cache.format), "; ",
                   accepted, one ? " is" : " are", " accepted");
  }
  const std::int64_t items = std::int64_t{problem.query.batch} * problem.query.tokens;
  if (has_token_items(problem) && items > kMostTokenItems) {
    return message("batch * s_q is ", items, "; with a window over a latent cache at most ", kMostTokenItems,
                   " is accepted");
  }
  return std::nullopt;
}

std::optional<std::string> declines_tokens(const DecodeProblem& problem,
                                           std::initializer_list<KvFormat> formats,
                                           std::span<const KvFormat> more) {
  if (auto reason = declines_lists(problem, formats, more)) return reason;
  if (problem.cache.extra.enabled) return "there is an extra cache; one cache is accepted";
  if (problem.options.window != 0) {
    return message("window is ", problem.options.window, "; of a latent cache 0 is accepted");
  }
  return std::nullopt;
}

std::optional<std::string> declines_e4m3_products(const DecodeProblem& problem) {
  if (problem.fp8_products()) {
    return message(
        problem.options.products == Products::kAuto ? "q is e4m3 and products is " : "products is ",
        to_string(problem.options.products), "; bf16 queries and products are accepted");
  }
  if (problem.query.e4m3) return "q is e4m3; bf16 queries are accepted";
  return std::nullopt;
}

Dtype cached_dtype(const DecodeProblem::Cache& cache) {
  return cache.format == KvFormat::kE4m3 ? Dtype::kU8 : cache.dtype;
}

std::string too_many_rows(const DecodeProblem& problem, int most) {
  return message(has_token_items(problem) ? "h_q / h_kv is " : "s_q * h_q / h_kv is ", rows_of_item(problem),
                 "; at most ", most, " query rows a KV head are accepted");
}

std::string unknown_dimensions(const DecodeProblem& problem, const char* accepted) {
  const LatentFormat& format = format_of(problem.cache);
  std::string of_format;
  if (accepted == nullptr) {
    if (!format.plain()) of_format = message("of an ", format.name, " cache ");
    accepted = format.plain()       ? "576/512, 512/512 and 320/256 are"
               : format.is_record() ? "576/512 is"
                                    : "576/512 and 512/512 are";
  }
  return message("qk_dim/v_dim is ", problem.cache.qk_dim, "/", problem.cache.v_dim, "; ", of_format,
                 accepted, " accepted");
}

bool merges_in_kernel(const DecodeProblem& problem, const schedule::Geometry& g) {
  const int least_tenths = problem.cache.format == KvFormat::kPlain ? 3 : 5;
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (schedule::combines_shares(g.partition)) return false;
  return schedule::max_merges(g) > 0 && 10 * items >= std::int64_t{least_tenths} * g.parts && g.lanes <= 2 &&
         g.fixed_split == 0 && g.parts * g.lanes <= sm90::kMostMergingCtas;
}

}  // namespace flashlatent::cuda
