// The 16-row kernel by teams, for calls too small to fill the device: host side.
#include <algorithm>

#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/mma16/config.h"
#include "cuda/mma16/instances.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

// Nanoseconds, from calls of 1 to 18 blocks a CTA. A CTA's time is
//   kCall + more segments * kNextSegment + blocks * (what a block takes)
// and a block takes kBlockStreaming where all SMs read from memory, in proportion less where fewer do, but
// never less than kBlockAlone (10 teams instead of 13 took 18 % longer at 131,072 tokens); but kBlockHere if
// it need not be waited for: one of the first few, which are on their way before any is needed, or of several
// row tiles', which find it in L2.
constexpr int kCall = 4200;  // launch, until the first tile is there, exchange, output
constexpr int kFewBlocks = 4;
// All warps of all CTAs meet between two segments, and memory waits meanwhile.
constexpr int kNextSegment = 6000;
constexpr int kMerge = 3000;        // the combine step, where a request is several parts
constexpr int kSharedMerge = 2700;  // teams that share a request merge in the kernel
constexpr int kBlockHere = 1350;
constexpr int kBlockAlone = 1750;
constexpr int kBlockStreaming = 2250;
/// Teams that run at once: on an H200, whose GPCs have 16 or 18 SMs each but for those that are switched off,
/// 15 of 8 and 7 of 16. Other devices may run one more or less.
constexpr int kUnusedSms = 12;
constexpr int resident_teams(int team, int workers) {
  return std::min(std::max(workers - kUnusedSms, 0), mma16::kMostTeams * 8) / team;
}
/// On a slice of a device that may not hold one team it is no choice.
constexpr int kNoTeam = 1 << 30;
/// A team of 16 meets later than one of 8, and only half of its warps add up what it has.
constexpr int kLargeTeam = 700;

/// What a block takes a team, of which a CTA has at most `blocks`, of `items` requests and rounds.
int block_cost(const schedule::Geometry& g, std::int64_t blocks, std::int64_t items, int workers) {
  // Who has fewer than the most is done earlier: so many are busy all the time, or as good as.
  const std::int64_t busy = items * schedule::max_blocks(g) * g.lanes / std::max<std::int64_t>(blocks, 1);
  const int ctas = static_cast<int>(std::min<std::int64_t>({busy, g.parts * g.lanes * g.team, workers}));
  const int streaming = std::max(kBlockAlone, kBlockStreaming * ctas / std::max(workers, 1));
  return std::max((blocks > kFewBlocks && g.lanes == 1 ? streaming : kBlockHere) / g.team, 1);
}

/// The costs of a schedule of these parts.
schedule::CostModel cost_of(const schedule::Geometry& g, int workers) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  // A part of several items may begin inside one and end inside another.
  const std::int64_t segments =
      g.whole != schedule::kCutLine || items == 1 ? 1 : (items + g.parts - 1) / g.parts + 1;
  const int more = static_cast<int>(std::min<std::int64_t>(segments - 1, 1 << 16));
  const std::int64_t blocks = schedule::max_blocks(g) /
                              std::max<std::int64_t>(g.parts / std::max<std::int64_t>(items, 1), 1) / g.team;
  const int block = block_cost(g, blocks, items, workers);
  // To the plan a segment costs less than half a block: each team gets as many blocks then, and none of its
  // CTAs one more than the others.
  return {.per_block = block,
          .per_split = std::max(block / 4, 1),
          .per_call = kCall + more * kNextSegment + (g.team > 8 ? kLargeTeam : 0),
          .per_merge = g.whole == schedule::kShared ? kSharedMerge : kMerge};
}

/// Each request is the work of one team, or of several that merge in the kernel. A lone one is that of as
/// many as make the longest share of a CTA shortest, by the page table's reach; of others lengths decide.
schedule::Geometry shared_items(schedule::Geometry g, int workers) {
  g.whole = schedule::kShared;
  g.cost = cost_of(g, workers);
  schedule::Geometry fewer = g;
  for (int parts = g.parts - 1; parts > 0 && g.requests == 1; --parts) {
    fewer.parts = parts;
    fewer.cost = cost_of(fewer, workers);
    if (schedule::estimate(fewer) <= schedule::estimate(g)) g = fewer;
  }
  return g;
}

/// Teams as there is room for, or one for each request and group of row tiles if splits never pay.
template <int kTeam>
schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  const int teams = resident_teams(kTeam, workers);
  schedule::Geometry g = split_geometry(
      problem, teams * kTeam, {.tile_rows = mma16::kRows, .cost = {.per_call = kNoTeam}, .team = kTeam});
  if (teams == 0) return g;
  // Row tiles side by side, if there is a team for each: one after another they would take a segment each.
  const int tiles = g.lanes * g.rounds;
  if (tiles <= teams) {
    g.lanes = tiles;
    g.rounds = 1;
    g.parts = teams / tiles;
  }
  g.cost = cost_of(g, workers);
  std::optional<schedule::Geometry> whole = schedule::whole_items(g);
  if (!whole || g.rounds > 1) return g;
  whole->cost = cost_of(*whole, workers);
  // A lone request gains most from being shared.
  schedule::Geometry lone = g;
  lone.parts -= g.requests - 1;
  lone.requests = 1;
  if (schedule::estimate(*whole) <= schedule::estimate(shared_items(lone, workers))) return *whole;
  return shared_items(g, workers);
}

/// Partial results of teams that share a request, and their tickets, at most. Smaller batches than the
/// problem's need no more: callers ask at the largest.
std::size_t workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  const std::size_t partial = mma16::kRows * problem.cache.v_dim * sizeof(float) +  // as UnitPartial has them
                              mma16::kMostUnits * (mma16::kRows * 2 * sizeof(float) + sizeof(std::uint64_t));
  return std::max(decode_workspace_bytes(problem, g), mma16::kMostTeams * partial);
}

template <int kTeam>
const DenseInstance* find(const DecodeProblem& problem, Loading loading) {
  const auto& cache = problem.cache;
  return find_instance({mma16::kTeams576x512, mma16::kTeams512x512, mma16::kTeams320x256},
                       {cache.dtype, cache.qk_dim, cache.v_dim, mma16::kRows, loading, 1, kTeam});
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (problem.cache.format != KvFormat::kPlain) {
    return message("the cache is ", to_string(problem.cache.format), "; bf16 and fp16 are accepted");
  }
  if (problem.options.batch_invariant) {
    return "batch_invariant is true; false is accepted, since the batch decides how a request is shared out";
  }
  if (find<8>(problem, loading_of(problem)) == nullptr) return unknown_dimensions(problem);
  return std::nullopt;
}

template <int kTeam>
Status launch(const DecodeCall& call) {
  return launch_dense(call,
                      [](const DecodeCall& c, Loading loading) { return find<kTeam>(c.problem, loading); });
}

template <int kTeam>
constexpr DecodeKernel kernel(const char* name) {
  return {
      .name = name,
      .backend = Backend::kCuda,
      .takes =
          "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, any rows, for small batches; "
          "dense and sparse, any page size; not with batch_invariant",
      .declines = declines,
      .geometry = geometry<kTeam>,
      .workspace_bytes = workspace_bytes,
      .launch = launch<kTeam>};
}

}  // namespace

const DecodeKernel kMma16Team8Kernel = kernel<8>("mma16_team8");
const DecodeKernel kMma16Team16Kernel = kernel<16>("mma16_team16");

}  // namespace flashlatent::cuda
