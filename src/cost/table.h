// The constants of all kernels in one table (h200.inc): a row a situation and source. Asking for a situation
// without rows, or writing a constant twice, does not compile. A table of the same places may be loaded for
// another GPU (table_file.h); schedule::Workers says which table applies.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent::cost {

/// The kernel that a row is about. Each team size is a kernel of its own.
enum class Kernel : std::uint8_t {
  kLatent,  ///< Added to every kernel for latent caches.
  kFp8Rows32,
  kFp8Rows16Team8,
  kMla64E4m3,
  kMla16Transposed,
  kMla16,
  kMla16Team4,
  kMla16Team8,
  kMla16Team16,
  kGqa16,
  kGqa128Split,
  kPlan,  ///< The planner: its own time, and what its cuts are worth to a call.
  kGqa128,
  kFp8Rows64,
  kMla64Pingpong,
  kMla64Roles,
  kMla64Team,
};
inline constexpr const char* kKernelNames[] = {
    "latent",       "fp8_32",       "fp8_16_team8",    "mla_64_e4m3",  "mla_16_transposed", "mla_16",
    "mla_16_team4", "mla_16_team8", "mla_16_team16",   "gqa_16",       "gqa_128_split",     "plan",
    "gqa_128",      "fp8_64",       "mla_64_pingpong", "mla_64_roles", "mla_64_team"};

/// What a call reads, where a kernel's costs depend on it. The words are those of cuda::Loading.
enum class Source : std::uint8_t {
  kOwn,          ///< Each cache that has no other source in the kernel's rows.
  kTokens,       ///< A plain cache, with tokens copied one by one and not in boxes.
  kFp8,          ///< An fp8_656 cache, or an e4m3 one without rows of its own.
  kE4m3,         ///< An e4m3 cache.
  kRopeRecords,  ///< An fp8_584 cache, or two caches that are not kRecords in one softmax.
  kRecords,      ///< mxfp8_528, nvfp4_288 or fp8_528, or two of them in one softmax.
};

/// How a call is cut, or what else the constants are for.
enum class Cut : std::uint8_t {
  kLine,              ///< A line; also what holds for every cut.
  kShares,            ///< Each CTA has a share of one request, or of one item of kRecords.
  kListedShares,      ///< Two lists of tokens, not kRecords: each CTA has a share of one item.
  kTeams,             ///< A team of CTAs shares a segment's blocks.
  kTeamsOfFewBlocks,  ///< The same where a CTA has at most four blocks.
  kTurns,             ///< Sparse prefill by Partition::kTurns.
  kByMemory,          ///< A block takes as long as its bytes, so per_block is no constant.
  kSharedPrefix,      ///< Groups of requests attend to a common prefix.
  // The constants of these cuts are added to those of a situation above.
  kUnplanned,    ///< The call reads no plan and launches no combine step.
  kReadsPlan,    ///< Shares by length, whose kernel reads the plan.
  kPartials32,   ///< Shares whose partial results are fp32 and not fp16: calls in fp16.
  kLoneRequest,  ///< One request of two row tiles, cut on a line.
  kFewRequests,  ///< At most two requests of one row tile.
  kMoreTiles,    ///< Several row tiles.
  kFewRows,      ///< Shares of at most 16 query rows.
  kQueryTokens,  ///< Several query tokens a request.
  /// An edge of the layer that the kernel leaves out, a launch of its own; per_member: for 1,024 query rows.
  kEdgeLaunch,
  // What calls take, for picks (cost/times.h). Plans are cut by the rows above.
  kTimes,
  kTimesQueryTokens,  ///< Keys and values with several query tokens; kDim256: and with more than 4 rows.
  kTeamQueryTokens,   ///< Added for several query tokens of calls by teams.
  kPacking,           ///< The planner's: packing requests into parts.
};

/// Query rows of a tile, or the dimension of a head.
enum class Tile : std::uint8_t {
  kAny,    ///< As the kernel has them; one row tile, if other rows are about kTiles.
  kRows8,  ///< One row tile of at most 8 query rows; likewise 16, 32 and 64.
  kRows16,
  kRows32,
  kRows64,
  kTiles,  ///< Several row tiles side by side; all but one find a block in L2.
  // The least time of a block of 64 tokens of this dimension. Of gqa_128: as kRows64.
  kDim64,
  kDim128,
  kDim256,
};

inline constexpr const char* kSourceNames[] = {"", "by_tokens", "fp8", "e4m3", "fp8_584", "records"};
inline constexpr const char* kCutNames[] = {"",
                                            "shares",
                                            "listed_shares",
                                            "teams",
                                            "teams_of_few_blocks",
                                            "turns",
                                            "by_memory",
                                            "shared_prefix",
                                            "unplanned",
                                            "reads_plan",
                                            "partials32",
                                            "lone_request",
                                            "few_requests",
                                            "more_tiles",
                                            "few_rows",
                                            "query_tokens",
                                            "edge_launch",
                                            "times",
                                            "times_query_tokens",
                                            "team_query_tokens",
                                            "packing"};
inline constexpr const char* kTileNames[] = {"",      "rows8", "rows16", "rows32", "rows64",
                                             "tiles", "dim64", "dim128", "dim256"};
static_assert(std::size(kSourceNames) == static_cast<std::size_t>(Source::kRecords) + 1 &&
              std::size(kCutNames) == static_cast<std::size_t>(Cut::kPacking) + 1 &&
              std::size(kTileNames) == static_cast<std::size_t>(Tile::kDim256) + 1);

/// The kind of call that a row is about.
struct Situation {
  Source source = Source::kOwn;
  Cut cut = Cut::kLine;
  Tile tile = Tile::kAny;

  // Implicit, so that rows read `kRows16` and `{kRecords, kShares, kRows8}`.
  // NOLINTBEGIN(google-explicit-constructor)
  constexpr Situation() = default;
  constexpr Situation(Source s, Cut c = Cut::kLine, Tile t = Tile::kAny) : source(s), cut(c), tile(t) {}
  constexpr Situation(Source s, Tile t) : source(s), tile(t) {}
  constexpr Situation(Cut c, Tile t = Tile::kAny) : cut(c), tile(t) {}
  constexpr Situation(Tile t) : tile(t) {}
  // NOLINTEND(google-explicit-constructor)

  friend constexpr bool operator==(const Situation&, const Situation&) = default;
};

/// What rows measure, in nanoseconds: the fields of schedule::CostModel and of TeamCosts.
struct Constants {
  std::int32_t per_block = 0;
  std::int32_t per_split = 0;
  std::int32_t per_call = 0;
  std::int32_t per_merge = 0;
  std::int32_t per_block_alone = 0;
  std::int32_t per_block_memory = 0;    ///< A block's bytes at a multiprocessor's share of the bandwidth.
  std::int32_t per_block_products = 0;  ///< A block's matrix products.
  std::int32_t shared_merge = 0;
  std::int32_t lone_merge = 0;
  std::int32_t block_here = 0;
  std::int32_t block_alone = 0;
  std::int32_t block_streaming = 0;
  std::int32_t lone_request_merge = 0;
  std::int32_t per_member = 0;
  std::int32_t lone_share = 0;  ///< A call in which each part has one share of one item, beside its blocks.
};

/// A row of the table. A situation has a row for each source, and a constant in one of them.
struct Row {
  Kernel kernel;
  Situation situation;
  Constants constants;
  const char* from;  ///< Source: a results file, or the page that gives the measurements (h200.inc).
};

namespace rows {
using enum Kernel;
using enum Source;
using enum Cut;
using enum Tile;
inline constexpr Row kH200[] = {
#include "cost/h200.inc"
};
}  // namespace rows

/// The places of a table: the distinct kernels and situations of kH200, in its order.
struct Place {
  Kernel kernel;
  Situation situation;

  friend bool operator==(const Place&, const Place&) = default;
};
namespace rows {
/// The number of places in the rows before `end`.
constexpr std::size_t places_before(std::size_t end) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < end; ++i) {
    bool is_new = true;
    for (std::size_t j = 0; j < i; ++j) {
      is_new = is_new && (kH200[j].kernel != kH200[i].kernel || kH200[j].situation != kH200[i].situation);
    }
    count += is_new ? 1 : 0;
  }
  return count;
}
}  // namespace rows
inline constexpr auto kPlaces = [] {
  std::array<Place, rows::places_before(std::size(rows::kH200))> places = {};
  std::size_t count = 0;
  for (const Row& row : rows::kH200) {
    const Place place = {row.kernel, row.situation};
    bool is_new = true;
    for (std::size_t i = 0; i < count; ++i) is_new = is_new && places[i] != place;
    if (is_new) places[count++] = place;
  }
  return places;
}();
constexpr int place_of(Kernel kernel, Situation situation) {
  for (std::size_t i = 0; i < kPlaces.size(); ++i) {
    if (kPlaces[i] == Place{kernel, situation}) return static_cast<int>(i);
  }
  return -1;
}

/// The constants of a GPU, measured on it.
struct Table {
  std::string gpu;  ///< How the driver's name begins, without "NVIDIA ".
  std::array<Constants, kPlaces.size()> constants = {};
};

/// `nanoseconds` times the factor of another device.
inline std::int32_t scaled(std::int32_t nanoseconds, float factor) {
  return factor == 1 ? nanoseconds : static_cast<std::int32_t>(static_cast<float>(nanoseconds) * factor);
}

/// Time of a segment or a merge on a device where a block takes `block` ns, and `block_of_h200` on an H200:
/// it grows as the block does. Plans are cut by the number of blocks that a segment is worth, and cuts that
/// are right on an H200 are right on an H100 (docs/log/plans.md).
std::int32_t as_blocks(std::int32_t nanoseconds, std::int32_t block, std::int32_t block_of_h200);

/// Costs of segments and calls. A block takes the longest of its memory time, its products' time and
/// everything else it does (per_block). All costs but memory and products follow the clock.
struct Costs {
  schedule::CostModel beside = {};  ///< per_block: without memory and products.
  std::int32_t block_memory = 0;
  std::int32_t block_products = 0;
  std::int32_t lone_share = 0;
  std::int32_t per_member = 0;
  int place = -1;  ///< In kPlaces, where another table may have others.

  /// The costs of the workers' own table if they have one, else these.
  Costs in(const schedule::Workers& workers) const;
  std::int32_t lone_share_on(const schedule::Workers& workers) const;
  /// per_split as time, which on() makes worth as many blocks on every device.
  std::int32_t segment_on(const schedule::Workers& workers) const;
  std::int32_t per_member_on(const schedule::Workers& workers) const;

  schedule::CostModel on(const schedule::Workers& workers) const;
};

/// Costs of a kernel by teams, in nanoseconds. The time of a CTA is
///   call + blocks * (time of a block)
/// A block takes block_streaming if all SMs read memory, and proportionally less if fewer do, but at least
/// block_alone. It takes block_here if its bytes are not waited for: the first few blocks are loaded ahead,
/// and of several row tiles all but one find a block in L2.
struct TeamCosts {
  std::int32_t call;          ///< Launch, wait for the first block, exchange, output.
  std::int32_t shared_merge;  ///< The merge of teams that share a request, in the kernel.
  /// The merge if most requests have one team and one row tile: the wait of the request with the longest
  /// share. With several row tiles shared_merge is used, since the rival is then mla_64_pingpong, whose
  /// estimate is too high.
  std::int32_t lone_merge;
  std::int32_t block_here, block_alone, block_streaming;
  /// The time of block_streaming that is bytes, if the rest follows the clock; 0: all of it is bytes.
  std::int32_t block_memory;
  /// What teams that share a lone request take in addition; negative, since they merge sooner.
  std::int32_t lone_request;
  int place = -1;  ///< In kPlaces, where another table may have others.

  /// These costs on another device. All but block_streaming follow the clock. If block_streaming is all bytes
  /// and memory is slower, block_alone grows, too, by the fourth root of memory's factor: on an H100 (factor
  /// 1.51, root 1.11) 64 CTAs take 2,000 to 2,070 ns a block, on an H200 1,850 (docs/log/plans.md).
  TeamCosts on(const schedule::Workers& workers) const;
};
std::string to_string(const schedule::CostModel& costs);
std::string to_string(const TeamCosts& costs);

/// A situation's constants, of all its rows.
consteval Constants constants(Kernel kernel, Situation situation) {
  using Numbers = std::array<std::int32_t, sizeof(Constants) / sizeof(std::int32_t)>;
  bool known = false;
  Numbers all = {};
  for (const Row& row : rows::kH200) {
    if (row.kernel != kernel || row.situation != situation) continue;
    known = true;
    const auto numbers = std::bit_cast<Numbers>(row.constants);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] != 0 && numbers[i] != 0) throw std::logic_error("the table has this constant twice");
      all[i] += numbers[i];
    }
  }
  if (!known) throw std::logic_error("the table has no such situation of this kernel");
  return std::bit_cast<Constants>(all);
}

constexpr Costs costs_of(const Constants& c, int place) {
  return {.beside = {.per_block = c.per_block,
                     .per_split = c.per_split,
                     .per_call = c.per_call,
                     .per_merge = c.per_merge,
                     .per_block_alone = c.per_block_alone},
          .block_memory = c.per_block_memory,
          .block_products = c.per_block_products,
          .lone_share = c.lone_share,
          .per_member = c.per_member,
          .place = place};
}
constexpr TeamCosts team_costs_of(const Constants& c, int place) {
  return {.call = c.per_call,
          .shared_merge = c.shared_merge,
          .lone_merge = c.lone_merge,
          .block_here = c.block_here,
          .block_alone = c.block_alone,
          .block_streaming = c.block_streaming,
          .block_memory = c.per_block_memory,
          .lone_request = c.lone_request_merge,
          .place = place};
}

/// The costs of segments and calls in a situation.
consteval Costs of(Kernel kernel, Situation situation) {
  return costs_of(constants(kernel, situation), place_of(kernel, situation));
}

/// The costs of a kernel by teams.
consteval TeamCosts of_teams(Kernel kernel, Situation situation = Cut::kTeams) {
  return team_costs_of(constants(kernel, situation), place_of(kernel, situation));
}

}  // namespace flashlatent::cost
