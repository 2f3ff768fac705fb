#include "cuda/host/dense_choice.h"

#include <algorithm>
#include <numeric>

#include "core/formats/e4m3_latent.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "cost/model.h"
#include "cuda/sm90/walk/merge_room.h"
#include "plan/even_shares.h"
#include "plan/host_plan.h"
#include "plan/token_lists.h"

namespace flashlatent::cuda {

namespace {

constexpr int kBlockTokens = 64;
constexpr int kLeastBoxTokens = 16;
constexpr std::int64_t kMostTokenItems = 1 << 30;
constexpr int kFixedSplitBlocks = 32;  // batch_invariant: 2,048 tokens a split

/// Sets the items of a problem that goes by lists. Where a request's query tokens differ by no more than the
/// causal mask they share row tiles: an item is then a request, and its second list is empty.
void set_lists(const DecodeProblem& problem, schedule::Geometry& g) {
  if (has_token_items(problem)) {
    schedule::set_lists(g, problem);
  } else {
    g.lists = 2;
    g.list[0] = {.reach = g.max_tokens};
  }
}

}  // namespace

int box_tokens_of(const DecodeProblem& problem) {
  return std::gcd(problem.cache.page_size, kBlockTokens);
}

schedule::Geometry split_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = shape.tile_rows;
  g.block_tokens = kBlockTokens;
  g.max_tokens = reach_of(problem);
  if (goes_by_lists(problem)) {
    set_lists(problem, g);
  } else if (problem.sparse.enabled) {
    g.length_sharers = problem.query.tokens;
    g.requests *= g.length_sharers;
  }
  if (problem.options.batch_invariant) schedule::fix_splits(g, kFixedSplitBlocks);
  g.cost = shape.cost.on(workers);
  // The table's per_block_alone is of plain caches. From an fp8_656 cache a block waits for conversion, not
  // for memory.
  if (problem.cache.format != KvFormat::kPlain) g.cost.per_block_alone = 0;
  const int row_tiles = (rows_of_item(problem) + shape.tile_rows - 1) / shape.tile_rows;
  g.team = shape.team;
  schedule::set_workers(g, row_tiles * problem.cache.heads, workers / g.team);
  return g;
}

constexpr cost::Costs kUnplanned = cost::of(cost::Kernel::kLatent, cost::Situation::kUnplanned);

schedule::Geometry dense_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape) {
  const schedule::Geometry g = split_geometry(problem, workers, shape);
  const std::optional<schedule::Geometry> whole = schedule::whole_items(g);
  return whole && schedule::never_gains_from_splits(g, *whole, cost::saved(kUnplanned.on(workers))) ? *whole
                                                                                                    : g;
}

namespace {

/// Up to this many blocks a share, requests of unequal lengths get even shares; with more, lengths decide the
/// number of shares.
constexpr int kFewBlocksAShare = 2;
/// Requests with several row tiles are cut on a line if a share would have more blocks than this.
constexpr int kManyBlocksOfTiles = 8;

/// Do requests have mostly equal lengths? They do where indices name the tokens.
bool is_alike(const DecodeProblem& problem) {
  const ExtraCache& extra = problem.cache.extra;
  return problem.sparse.enabled && (!extra.enabled || extra.indexed);
}

/// `g` in shares of one item each. `g` must not be cut on the line yet.
std::optional<schedule::Geometry> listed_shares(const DecodeProblem& problem,
                                                const schedule::Workers& workers, schedule::Geometry g) {
  const std::optional<schedule::Geometry> even = schedule::even_items(g);
  if (!even) return std::nullopt;
  const auto has_up_to = [&](int blocks) {
    return schedule::max_blocks(g) <= blocks * schedule::even_shares(*even);
  };
  if (is_alike(problem) || g.requests == 1 || has_up_to(kFewBlocksAShare)) return even;
  if (rows_of_item(problem) > g.tile_rows && !has_up_to(kManyBlocksOfTiles)) return std::nullopt;
  cost::add(g.cost, cost::of(cost::Kernel::kLatent, cost::Situation::kReadsPlan).on(workers));
  return schedule::items_by_length(g);
}

}  // namespace

schedule::Geometry listed_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                   const DenseShape& of_shares, const schedule::Geometry& otherwise) {
  if (otherwise.partition != schedule::Partition::kLine || !has_rows_alike(problem)) return otherwise;
  const std::optional<schedule::Geometry> shares =
      listed_shares(problem, workers, split_geometry(problem, workers, of_shares));
  return shares && schedule::estimate(*shares) < schedule::estimate(otherwise) ? *shares : otherwise;
}

bool has_rows_alike(const DecodeProblem& problem) {
  // Which query tokens ragged requests have is for walks to find (walk/segments.cuh).
  return (has_token_items(problem) || problem.query.tokens == 1) && !problem.query.ragged;
}

schedule::Geometry in_turn_if_faster(const DecodeProblem& problem, const schedule::Geometry& line) {
  if (line.partition != schedule::Partition::kLine || line.requests < 1 || !is_alike(problem)) return line;
  const schedule::Geometry in_turn = schedule::turns(line);
  return schedule::estimate(in_turn) <= schedule::estimate(line) ? in_turn : line;
}

schedule::Geometry whole_if_faster(const DecodeProblem& problem, const schedule::Geometry& line) {
  if (line.partition != schedule::Partition::kLine || !is_alike(problem)) return line;
  const std::optional<schedule::Geometry> whole = schedule::whole_items(line);
  return whole && schedule::estimate(*whole) <= schedule::estimate(line) ? *whole : line;
}

schedule::Geometry turns_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape) {
  return schedule::turns(split_geometry(problem, workers, shape));
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
         (cache.format == KvFormat::kFp8_656 && cache.qk_dim == fp8_656::kLatentDim);
}

int rows_of_item(const DecodeProblem& problem) {
  const int heads = problem.query.heads / problem.cache.heads;
  return has_token_items(problem) ? heads : problem.query.tokens * heads;
}

Loading loading_of(const DecodeProblem& problem) {
  switch (problem.cache.format) {
    case KvFormat::kFp8_584:
      return Loading::kFp8_584;
    case KvFormat::kMxfp8_528:
    case KvFormat::kNvfp4_288:
    case KvFormat::kFp8_528:
      return Loading::kRecords;
    case KvFormat::kFp8_656:
    case KvFormat::kE4m3:
      return goes_by_lists(problem) ? Loading::kListedFp8 : Loading::kFp8;
    case KvFormat::kPlain:
      break;
  }
  if (goes_by_lists(problem)) return Loading::kListedTokens;
  const bool boxes = !problem.sparse.enabled && box_tokens_of(problem) >= kLeastBoxTokens;
  return boxes ? Loading::kBoxes : Loading::kTokens;
}

bool is_listed(std::initializer_list<std::span<const InstanceKey>> lists, const InstanceKey& key) {
  return std::any_of(lists.begin(), lists.end(), [&](std::span<const InstanceKey> list) {
    return std::find(list.begin(), list.end(), key) != list.end();
  });
}

std::optional<std::string> declines_lists(const DecodeProblem& problem,
                                          std::initializer_list<KvFormat> formats) {
  const auto& cache = problem.cache;
  if (cache.layout != KvLayout::kLatent) {
    return message("the cache is ", to_string(cache.layout), "; a latent one is accepted");
  }
  if (std::find(formats.begin(), formats.end(), cache.format) == formats.end()) {
    std::string accepted;
    for (KvFormat format : formats) {
      accepted += accepted.empty() ? "" : " and ";
      accepted += format == KvFormat::kPlain ? "bf16 and fp16" : to_string(format);
    }
    const bool plain = cache.format == KvFormat::kPlain;
    const bool one = formats.size() == 1 && *formats.begin() != KvFormat::kPlain;
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
                                           std::initializer_list<KvFormat> formats) {
  if (auto reason = declines_lists(problem, formats)) return reason;
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
  const KvFormat format = problem.cache.format;
  if (accepted == nullptr) {
    accepted = format == KvFormat::kFp8_656 ? "of an fp8_656 cache 576/512 is"
               : format == KvFormat::kE4m3  ? "of an e4m3 cache 576/512 and 512/512 are"
                                            : "576/512, 512/512 and 320/256 are";
  }
  return message("qk_dim/v_dim is ", problem.cache.qk_dim, "/", problem.cache.v_dim, "; ", accepted,
                 " accepted");
}

bool merges_in_kernel(const schedule::Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  return schedule::max_merges(g) > 0 && 2 * items >= g.parts && g.lanes <= 2 && g.fixed_split == 0 &&
         g.parts * g.lanes <= sm90::kMostMergingCtas;
}

}  // namespace flashlatent::cuda
