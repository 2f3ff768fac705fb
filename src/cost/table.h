// The constants of all kernels in one table (h200.inc): a row a constant, each with its source. Rows are
// looked up at compile time: asking for a situation without rows, or writing a row twice, does not compile.
#pragma once

#include <cstdint>
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
  kE4m3,
  kMla16Transposed,
  kMla16,
  kMla16Team4,
  kMla16Team8,
  kMla16Team16,
  kPaged,
  kPaged128,
  kPlan,  ///< The planner: its own time, and what its cuts are worth to a call.
  kPrefill,
  kFp8Rows64,
  kMla64Pingpong,
  kMla64Roles,
  kMla64Team,
};
inline constexpr const char* kKernelNames[] = {
    "latent",       "fp8_32",       "fp8_16_team8",    "mla_64_e4m3",  "mla_16_transposed", "mla_16",
    "mla_16_team4", "mla_16_team8", "mla_16_team16",   "gqa_16",       "gqa_128_split",     "plan",
    "gqa_128",      "fp8_64",       "mla_64_pingpong", "mla_64_roles", "mla_64_team"};

/// The kind of call that a row is about.
enum class Situation : std::uint8_t {
  kRows8,  ///< One row tile of at most 8 query rows; likewise 16, 32 and 64.
  kRows16,
  kRows32,
  kRows64,
  kRows64ByTokens,  ///< As kRows64, with tokens copied one by one and not in boxes.
  kTiles,           ///< Several row tiles side by side; all but one find a block in L2.
  kFp8,             ///< An fp8_656 cache.
  kE4m3Rows8,       ///< As kRows8 from an e4m3 latent cache, by a kernel of other caches, too.
  kE4m3Rows16,
  kE4m3Rows32,
  kE4m3Rows64,
  kFp8_584Rows8,  ///< As kRows8 from an fp8_584 cache, by a kernel of other caches, too.
  kFp8_584Rows16,
  kFp8_584Rows32,
  kE4m3Teams,            ///< kTeams from an e4m3 latent cache.
  kFp8_584,              ///< An fp8_584 cache, or two caches in one softmax.
  kFp8_584Tiles,         ///< As kFp8_584, with several row tiles.
  kListedShares,         ///< Two lists of tokens; each CTA has a share of one item of one row tile.
  kListedSharesOfTiles,  ///< The same with several row tiles.
  kListedSharesRows8,    ///< kListedShares by tiles of at most 8 query rows; likewise 16 and 32.
  kListedSharesRows16,
  kListedSharesRows32,
  kTeams,                ///< A team of CTAs shares a segment's blocks.
  kTeamsOfTiles,         ///< The same with several row tiles.
  kTeamsOfFewBlocks,     ///< The same where a CTA has at most four blocks.
  kShares,               ///< Each CTA has a share of one request (kEvenShares, kSharesByLength).
  kSharesOfTiles,        ///< The same with several row tiles.
  kSharesOfFewRows,      ///< The same with one row tile of at most 16 query rows.
  kByMemory,             ///< A block takes as long as its bytes, so per_block is no constant.
  kSharedPrefix,         ///< Groups of requests attend to a common prefix.
  kTurns,                ///< Sparse prefill: a CTA takes whole query tokens in turn, one row tile each.
  kTurnsOfTiles,         ///< The same, several row tiles side by side.
  kTurnsFp8,             ///< The same from an fp8_656 cache.
  kFp8_584Turns,         ///< The same from an fp8_584 cache, or from two caches in one softmax; one row tile.
  kFp8_584TurnsOfTiles,  ///< The same, several row tiles.
  // These rows are added to the rows of a situation above.
  kUnplanned,    ///< The call reads no plan and launches no combine step.
  kReadsPlan,    ///< Shares by length, whose kernel reads the plan.
  kPartials32,   ///< Shares whose partial results are fp32 and not fp16: calls in fp16.
  kLoneRequest,  ///< One request of two row tiles, cut on a line.
  kFewRequests,  ///< At most two requests of one row tile.
  kMoreTiles,    ///< Several row tiles.
  kFewRows,      ///< Shares of at most 16 query rows.
  kQueryTokens,  ///< Several query tokens a request.
  kByTokens,     ///< Shares whose tokens are copied one by one.
  // The least time of a block of 64 tokens, by the dimension of a head.
  kDim64,
  kDim128,
  kDim256,
  // The planner's.
  kPacking,  ///< Packing requests into parts.
};
inline constexpr const char* kSituationNames[] = {"rows8",
                                                  "rows16",
                                                  "rows32",
                                                  "rows64",
                                                  "rows64_by_tokens",
                                                  "tiles",
                                                  "fp8",
                                                  "e4m3_rows8",
                                                  "e4m3_rows16",
                                                  "e4m3_rows32",
                                                  "e4m3_rows64",
                                                  "fp8_584_rows8",
                                                  "fp8_584_rows16",
                                                  "fp8_584_rows32",
                                                  "e4m3_teams",
                                                  "fp8_584",
                                                  "fp8_584_tiles",
                                                  "listed_shares",
                                                  "listed_shares_of_tiles",
                                                  "listed_shares_rows8",
                                                  "listed_shares_rows16",
                                                  "listed_shares_rows32",
                                                  "teams",
                                                  "teams_of_tiles",
                                                  "teams_of_few_blocks",
                                                  "shares",
                                                  "shares_of_tiles",
                                                  "shares_of_few_rows",
                                                  "by_memory",
                                                  "shared_prefix",
                                                  "turns",
                                                  "turns_of_tiles",
                                                  "turns_fp8",
                                                  "turns_fp8_584",
                                                  "turns_fp8_584_tiles",
                                                  "unplanned",
                                                  "reads_plan",
                                                  "partials32",
                                                  "lone_request",
                                                  "few_requests",
                                                  "more_tiles",
                                                  "few_rows",
                                                  "query_tokens",
                                                  "by_tokens",
                                                  "dim64",
                                                  "dim128",
                                                  "dim256",
                                                  "packing"};

/// What a row measures: the fields of schedule::CostModel and of TeamCosts.
enum class Field : std::uint8_t {
  kPerBlock,
  kPerSplit,
  kPerCall,
  kPerMerge,
  kPerBlockAlone,
  kPerBlockMemory,    ///< A block's bytes at a multiprocessor's share of the bandwidth.
  kPerBlockProducts,  ///< A block's matrix products.
  kSharedMerge,
  kLoneMerge,
  kBlockHere,
  kBlockAlone,
  kBlockStreaming,
  kLoneRequestMerge,
  kPerMember,
};
inline constexpr const char* kFieldNames[] = {
    "per_block",        "per_split",          "per_call",           "per_merge",  "per_block_alone",
    "per_block_memory", "per_block_products", "shared_merge",       "lone_merge", "block_here",
    "block_alone",      "block_streaming",    "lone_request_merge", "per_member"};

/// One constant of the table.
struct Row {
  Kernel kernel;
  Situation situation;
  Field field;
  std::int32_t nanoseconds;
  const char* from;  ///< Source: a results file, or the page that gives the measurements (h200.inc).
};
std::string to_string(const Row& row);

namespace rows {
using enum Kernel;
using enum Situation;
using enum Field;
inline constexpr Row kH200[] = {
#include "cost/h200.inc"
};
}  // namespace rows

/// `nanoseconds` times the factor of another device.
inline std::int32_t scaled(std::int32_t nanoseconds, float factor) {
  return factor == 1 ? nanoseconds : static_cast<std::int32_t>(static_cast<float>(nanoseconds) * factor);
}

/// Time of a segment or a merge on a device where a block takes `block` ns, and `block_of_h200` on an H200:
/// it grows as the block does. Plans are cut by how many blocks a segment is worth, and cuts that are right
/// on an H200 are right on an H100 (docs/log/cuts_h100.md).
std::int32_t as_blocks(std::int32_t nanoseconds, std::int32_t block, std::int32_t block_of_h200);

/// Costs of segments and calls. A block takes the longest of its memory time, its products' time and
/// everything else it does (per_block). All costs but memory and products follow the clock.
struct Costs {
  schedule::CostModel beside = {};  ///< per_block: without memory and products.
  std::int32_t block_memory = 0;
  std::int32_t block_products = 0;

  schedule::CostModel on(const schedule::Workers& workers) const;
};

/// Costs of a kernel by teams, in nanoseconds. The time of a CTA is
///   call + blocks * (time of a block)
/// A block takes block_streaming where all SMs read memory, and in proportion less where fewer do, but at
/// least block_alone. It takes block_here where nobody waits for its bytes: the first few blocks, which are
/// loaded ahead, and blocks of several row tiles, which all but one find in L2.
struct TeamCosts {
  std::int32_t call;          ///< Launch, wait for the first block, exchange, output.
  std::int32_t shared_merge;  ///< The merge of teams that share a request, in the kernel.
  /// The same where most requests have one team, and one row tile: the wait of the request with the longest
  /// share. With several row tiles shared_merge is used, since the rival there is mla_64_pingpong, whose
  /// estimate is too high.
  std::int32_t lone_merge;
  std::int32_t block_here, block_alone, block_streaming;
  /// The part of block_streaming that is bytes, where the rest follows the clock; 0: all of it is bytes.
  std::int32_t block_memory;
  /// What teams that share a lone request take in addition; negative, since they merge sooner.
  std::int32_t lone_request;

  /// These costs on another device. All but block_streaming follow the clock. Where block_streaming is all
  /// bytes and memory is slower, block_alone grows, too, by the fourth root of memory's factor: on an H100
  /// (factor 1.51, root 1.11) 64 CTAs take 2,000 to 2,070 ns a block, on an H200 1,850
  /// (docs/log/cuts_h100.md).
  TeamCosts on(const schedule::Workers& workers) const;
};
std::string to_string(const schedule::CostModel& costs);
std::string to_string(const TeamCosts& costs);

/// One constant; 0 if the situation has rows, but none for this field.
consteval std::int32_t nanoseconds(Kernel kernel, Situation situation, Field field) {
  bool known = false;
  int found = 0;
  std::int32_t value = 0;
  for (const Row& row : rows::kH200) {
    if (row.kernel != kernel || row.situation != situation) continue;
    known = true;
    if (row.field != field) continue;
    ++found;
    value = row.nanoseconds;
  }
  if (!known) throw std::logic_error("the table has no such situation of this kernel");
  if (found > 1) throw std::logic_error("the table has this constant twice");
  return value;
}

/// The costs of segments and calls in a situation.
consteval Costs of(Kernel kernel, Situation situation) {
  return {.beside = {.per_block = nanoseconds(kernel, situation, Field::kPerBlock),
                     .per_split = nanoseconds(kernel, situation, Field::kPerSplit),
                     .per_call = nanoseconds(kernel, situation, Field::kPerCall),
                     .per_merge = nanoseconds(kernel, situation, Field::kPerMerge),
                     .per_block_alone = nanoseconds(kernel, situation, Field::kPerBlockAlone)},
          .block_memory = nanoseconds(kernel, situation, Field::kPerBlockMemory),
          .block_products = nanoseconds(kernel, situation, Field::kPerBlockProducts)};
}

/// The costs of a kernel by teams.
consteval TeamCosts of_teams(Kernel kernel, Situation situation = Situation::kTeams) {
  return {.call = nanoseconds(kernel, situation, Field::kPerCall),
          .shared_merge = nanoseconds(kernel, situation, Field::kSharedMerge),
          .lone_merge = nanoseconds(kernel, situation, Field::kLoneMerge),
          .block_here = nanoseconds(kernel, situation, Field::kBlockHere),
          .block_alone = nanoseconds(kernel, situation, Field::kBlockAlone),
          .block_streaming = nanoseconds(kernel, situation, Field::kBlockStreaming),
          .block_memory = nanoseconds(kernel, situation, Field::kPerBlockMemory),
          .lone_request = nanoseconds(kernel, situation, Field::kLoneRequestMerge)};
}

}  // namespace flashlatent::cost
