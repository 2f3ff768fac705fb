#include "cuda/sm90/kernels/gqa_16/choice.h"

#include <algorithm>
#include <optional>

#include "core/message.h"
#include "cost/model.h"
#include "cost/times.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/host/if_compiled.h"
#include "cuda/host/prefix_units.h"
#include "cuda/sm90/walk/merge_room.h"
#include "kernel/prefix_sharing.h"
#include "plan/host_plan.h"

namespace flashlatent::gqa_16 {

namespace {

constexpr int kDims[] = {64, 128, 256};  // of instances; smaller heads leave part of one unused

CachedType cached_type(const DecodeProblem& problem) {
  if (problem.cache.format == KvFormat::kE4m3) return CachedType::kE4m3;
  return problem.cache.dtype == Dtype::kBF16 ? CachedType::kBF16 : CachedType::kF16;
}

/// Tokens that a CTA's warps take at once.
int tokens_a_cta(const InstanceKey& key) {
  return warps_of(key.dim) * step_tokens_of(key.cached == CachedType::kE4m3);
}

// Requests with more parts than this are merged by a launch of its own, in which many CTAs do what one would.
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

constexpr int kFixedSplitTokens = 2048;  // batch_invariant
constexpr int kMostRowsOfTimes = 128;    // rows of a KV head; prompts have more
// Requests are few if each has this many parts or more: their merges run at the same time, and each part is
// one or two segments.
constexpr int kPartsOfFew = 4;
constexpr cost::Costs kByMemory = cost::of(cost::Kernel::kGqa16, cost::Situation::kByMemory);
constexpr cost::Costs kRows16 = cost::of(cost::Kernel::kGqa16, cost::Situation::kRows16);
constexpr cost::Costs kShares = cost::of(cost::Kernel::kGqa16, cost::Situation::kShares);
constexpr cost::Costs kQueryTokens = cost::of(cost::Kernel::kGqa16, cost::Situation::kQueryTokens);
constexpr cost::Costs kFewRequests = cost::of(cost::Kernel::kGqa16, cost::Situation::kFewRequests);

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

/// For several query tokens. Long requests take 3 to 6 % less than by gqa_128_split, short ones up to twice
/// as long. An estimate only knows how far the page table reaches, so a block counts for an eighth more.
void add_query_tokens(schedule::CostModel& costs, const schedule::Workers& workers) {
  costs.per_block += costs.per_block / 8;
  cost::add(costs, kQueryTokens.on(workers));
}

/// The schedule with `tiles` row tiles a CTA; empty if they are neither whole KV heads nor parts of one.
std::optional<schedule::Geometry> geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                           int tiles) {
  const gqa_16::InstanceKey& key = *gqa_16::key_of(problem);
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = key.columns;
  g.block_tokens = gqa_16::tokens_a_cta(key) / tiles;
  g.max_tokens = tokens_in_window(problem, g.block_tokens);
  if (problem.options.batch_invariant) schedule::fix_splits(g, kFixedSplitTokens / g.block_tokens);
  const double bytes = 2.0 * g.block_tokens * tiles * problem.cache.qk_dim * gqa_16::element_bytes(problem);
  const int row_tiles = (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
  g.cost = cost::by_memory(kByMemory, bytes, workers, row_tiles);
  if (problem.query.tokens > 1) {
    add_query_tokens(g.cost, workers);
  } else if (g.tile_rows > 8) {
    cost::add(g.cost, kRows16.on(workers));
  }
  schedule::set_workers(g, row_tiles * problem.cache.heads, workers * tiles);
  if (kPartsOfFew * std::int64_t{g.requests} * g.rounds <= g.parts)
    g.cost.per_merge = kFewRequests.on(workers).per_merge;
  const bool fits = g.lanes % tiles == 0 && (row_tiles % tiles == 0 || tiles % row_tiles == 0);
  return fits ? std::optional(g) : std::nullopt;
}

// Teams: a cluster of 8 fits into any GPC. Other devices may hold a few less at once.
constexpr int kMostTeam = 8;
constexpr int kUnusedSms = 12;

/// A team for each request and tile, if there are few of them: without a combine step, and the plan is not
/// read. Empty where requests as long as the page table are faster on all multiprocessors, together or one
/// alone.
std::optional<schedule::Geometry> team_geometry(const DecodeProblem& problem,
                                                const schedule::Workers& workers) {
  const schedule::Geometry split = *geometry(problem, workers, 1);
  const std::int64_t items = std::int64_t{split.requests} * split.rounds;
  for (int team = kMostTeam; team > 1; team /= 2) {
    if (items < 1 || split.rounds > 1 || items * split.lanes * team > workers - kUnusedSms) continue;
    if (!workers.room.fits(team)) continue;
    const std::int64_t blocks = schedule::max_blocks(split);
    const std::int64_t by_team = (blocks + team - 1) / team * split.cost.per_block;
    const std::int64_t by_parts =
        blocks * split.cost.per_block / split.parts + kByMemory.on(workers).per_merge;
    if (by_team > by_parts) return std::nullopt;
    auto whole = schedule::whole_items(split);
    if (!whole) return std::nullopt;
    whole->team = team;
    whole->cost = cost::by_team(split.cost, team);
    if (schedule::estimate(*whole) > schedule::estimate(split)) return std::nullopt;
    return whole;
  }
  return std::nullopt;
}

// With 4 tiles, calls of equal lengths take 1 % longer and calls of varied lengths 2 % less; with 8, a tile a
// warp, all take longer.
constexpr int kMostTiles = 2;
// After a shared prefix own tokens are few, and with more tiles a CTA has fewer segments (64 requests of 512
// own tokens with the prefix: 0.070 ms, with 2 tiles 0.075).
constexpr int kMostTilesSharing = 4;

/// As many tiles a CTA, up to `most`, as leave every part a request, or a round of one: memory is faster with
/// more tiles, splits are not.
schedule::Geometry geometry_of_tiles(const DecodeProblem& problem, const schedule::Workers& workers,
                                     int most) {
  for (int tiles = std::min(most, gqa_16::warps_of(gqa_16::key_of(problem)->dim)); tiles > 1; tiles /= 2) {
    const auto g = geometry(problem, workers, tiles);
    if (g && 10 * std::int64_t{g->requests} * g->rounds >= 9LL * g->parts) return *g;
  }
  return *geometry(problem, workers, 1);
}

/// The schedule with shared prefixes: no teams. The costs of groups beside own tokens are known for an H200
/// only, so plans are cut by an H200's costs on every GPU (docs/log/plans.md).
schedule::Geometry sharing_geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  return geometry_of_tiles(problem, workers.count, kMostTilesSharing);
}

/// The geometry with a lower per_call where some parts have one whole item more than others. An estimate
/// assumes that all parts share the bandwidth to the end, but such a last item finds memory nearly idle.
schedule::Geometry with_late_items(schedule::Geometry g, const schedule::Workers& workers) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  if (items == 0 || g.partition != schedule::Partition::kLine) return g;
  const std::int64_t each = (items + g.parts - 1) / g.parts, blocks = schedule::max_blocks(g);
  const std::int64_t late = cost::block_alone(g.cost.per_block, workers);
  const std::int64_t saved = (each * g.parts - items) * blocks * (g.cost.per_block - late) / g.parts;
  const std::int64_t whole = g.cost.per_call + each * schedule::item_cost(g, blocks) - saved;
  const std::int64_t gained = schedule::estimate(g) - whole;
  if (gained > 0) g.cost.per_call -= static_cast<std::int32_t>(gained);
  return g;
}

/// With batch_invariant one tile a CTA.
schedule::Geometry geometry(const DecodeProblem& problem, const schedule::Workers& workers) {
  if (problem.options.batch_invariant) return *geometry(problem, workers, 1);
  if (prefix_shape_of(kGqa16Kernel, problem, workers).requests > 0) return sharing_geometry(problem, workers);
  if (const auto team = team_geometry(problem, workers)) return *team;
  const schedule::Geometry g = with_late_items(geometry_of_tiles(problem, workers, kMostTiles), workers);
  return schedule::with_shares_merged_in(g, kShares.on(workers).per_merge);
}

int row_tiles_of(const DecodeProblem& problem, const schedule::Geometry& g) {
  return (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
}

/// What a block of the row tiles that a CTA does takes of the memory's time, or longer: several row tiles of
/// a KV head read most of it once. In one CTA they take three quarters as long as apart, at most.
double block_time(double bytes, int row_tiles, int tiles, const schedule::Workers& workers) {
  if (row_tiles == 1) return bytes / (cost::kRates.in_calls / 10.0) * workers.memory;
  const double of_share = bytes / (cost::kRates.share / 10.0);
  if (tiles == 1) {
    return of_share * cost::kTilesApart * (workers.memory + (row_tiles - 1) * workers.clock) / row_tiles;
  }
  return of_share *
         std::max<double>(workers.memory / std::min(row_tiles, tiles), cost::kTilesTogether * workers.clock);
}

schedule::CallTimes times(const DecodeProblem& problem, const schedule::Geometry& g,
                          const schedule::Workers& workers) {
  using enum cost::Situation;
  constexpr cost::Kernel kKernel = cost::Kernel::kGqa16;
  if (problem.rows_per_kv_head() > kMostRowsOfTimes) return cost::as_cut(g);
  const gqa_16::InstanceKey& key = *gqa_16::key_of(problem);
  const bool many_rows = problem.rows_per_kv_head() > 8;
  const auto costs = [&] {
    if (problem.query.tokens > 1) {
      if (key.dim > 128 && problem.rows_per_kv_head() > 4) return cost::of(kKernel, kTimesQueryTokensDim256);
      return many_rows ? cost::of(kKernel, kTimesQueryTokens16) : cost::of(kKernel, kTimesQueryTokens8);
    }
    return many_rows ? cost::of(kKernel, kTimesRows16) : cost::of(kKernel, kTimesRows8);
  };
  const int tiles = gqa_16::tokens_a_cta(key) / g.block_tokens;
  const double bytes = 2.0 * g.block_tokens * tiles * problem.cache.qk_dim * gqa_16::element_bytes(problem);
  cost::ItemTimes times = cost::ItemTimes::of(costs(), workers);
  const double segment = times.whole_call + times.segment;
  const std::int32_t least =
      (key.dim <= 64 ? cost::of(kKernel, kDim64) : cost::of(kKernel, kDim128)).on(workers).per_block_alone;
  times.block_alone = times.block_near =
      std::max<double>(bytes / (cost::kRates.most / 10.0) * workers.clock, least);
  if (g.team > 1) {
    const int blocks = (schedule::max_blocks(g) + g.team - 1) / g.team;
    const double call = segment + cost::of(kKernel, kTeams).on(workers).per_call;
    return cost::with({}, call + blocks * times.block_alone);
  }
  constexpr std::int32_t kLoneShare = cost::constants(kKernel, kTimes).lone_share;
  times.lone_share = segment + cost::scaled(kLoneShare, workers.clock);
  times.merge = cost::of(kKernel, kTimes).on(workers).per_merge;
  times.block = block_time(bytes, row_tiles_of(problem, g), tiles, workers);
  return cost::of_line(g, times, cost::Items::kFaster, g.parts);
}

prefix::Shape prefix_shape(const DecodeProblem& problem, const schedule::Workers& workers) {
  const schedule::Geometry g = sharing_geometry(problem, workers);
  prefix::Shape shape = prefix_units_shape(problem, workers.count);
  shape.own_block_cost = cost::block_alone(g.cost.per_block, workers.count);
  shape.own_split_cost = g.cost.per_split;
  shape.lanes_a_worker = gqa_16::tiles_a_cta(problem, g);
  return shape;
}

}  // namespace

const DecodeKernel kGqa16Kernel = {
    .name = "gqa_16",
    .backend = Backend::kCuda,
    .takes =
        "separate keys and values, also in vLLM's packed order: bf16, fp16 and e4m3, d up to 256, any heads, "
        "tokens and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = gqa_16::workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(gqa_16::launch),
    .declines_prefixes = declines_prefix_units,
    .prefix_shape = prefix_shape,
    .times = times,
};

}  // namespace flashlatent::cuda
