// What kernels take, in one table: a line a constant, each with where it comes from (h200.inc). Everything is
// found at compile time: to ask for a row that is not there, or to write one twice, is an error of
// compilation.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent::cost {

/// Whose costs these are. A kernel by teams has a row of its own.
enum class Kernel : std::uint8_t {
  kLatent,  ///< Every kernel for latent caches.
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
  kPlan,  ///< What makes plans, and what cuts are worth to a call.
  kPrefill,
  kFp8Rows64,
  kMla64Pingpong,
  kMla64Roles,
};
inline constexpr const char* kKernelNames[] = {
    "latent",       "fp8_32",       "fp8_16_team8",    "mla_64_e4m3", "mla_16_transposed", "mla_16",
    "mla_16_team4", "mla_16_team8", "mla_16_team16",   "gqa_16",      "gqa_128_split",     "plan",
    "gqa_128",      "fp8_64",       "mla_64_pingpong", "mla_64_roles"};

/// When a kernel takes so long.
enum class Situation : std::uint8_t {
  kRows8,  ///< One row tile of at most 8 query rows; likewise 16, 32 and 64.
  kRows16,
  kRows32,
  kRows64,
  kRows64ByTokens,       ///< The same, where tokens come one by one and not in boxes.
  kTiles,                ///< Several row tiles side by side: each finds the other's blocks in L2.
  kFp8,                  ///< An fp8_656 cache.
  kFp8_584,              ///< An fp8_584 cache, or two caches in one softmax.
  kFp8_584Tiles,         ///< The same with several row tiles.
  kListedShares,         ///< By two lists: each CTA has a share of one item, of one row tile.
  kListedSharesOfTiles,  ///< The same with several row tiles.
  kTeams,                ///< A segment's blocks are shared by a team of CTAs.
  kTeamsOfTiles,         ///< The same with several row tiles.
  kTeamsOfFewBlocks,     ///< The same where a CTA has at most four blocks.
  kShares,               ///< Each CTA has a share of one request (schedule::kEven, kByLength).
  kSharesOfTiles,        ///< The same with several row tiles.
  kSharesOfFewRows,      ///< The same with one of at most 16 query rows.
  kByMemory,             ///< A block takes as long as its bytes; per_block is no constant.
  kSharedPrefix,         ///< Groups of requests attend to a prefix that they share.
  kTurns,                ///< Sparse prefill: whole query tokens in turn, of one row tile.
  kTurnsOfTiles,         ///< The same of several row tiles side by side.
  kTurnsFp8,             ///< The same from an fp8_656 cache.
  kFp8_584Turns,         ///< The same from an fp8_584 cache, or two caches in one softmax, of one row tile.
  kFp8_584TurnsOfTiles,  ///< The same of several row tiles.
  // Added to one of those above.
  kUnplanned,    ///< The call reads no plan and launches no combine step.
  kReadsPlan,    ///< Shares by length: the plan is read.
  kPartials32,   ///< Shares whose partial results are fp32, twice the bytes: fp16 caches.
  kLoneRequest,  ///< One request of two row tiles, cut on a line.
  kFewRequests,  ///< At most two requests of one row tile.
  kMoreTiles,    ///< Several row tiles.
  kFewRows,      ///< Shares of at most 16 query rows.
  kQueryTokens,  ///< Several query tokens a request.
  kByTokens,     ///< Shares whose tokens come one by one.
  // Of a block of 64 tokens, by the dimension of a head.
  kDim64,
  kDim128,
  kDim256,
  // Of plans.
  kPacking,  ///< Requests are packed into parts.
};
inline constexpr const char* kSituationNames[] = {"rows8",
                                                  "rows16",
                                                  "rows32",
                                                  "rows64",
                                                  "rows64_by_tokens",
                                                  "tiles",
                                                  "fp8",
                                                  "fp8_584",
                                                  "fp8_584_tiles",
                                                  "listed_shares",
                                                  "listed_shares_of_tiles",
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

/// What takes so long. The fields of schedule::CostModel and of TeamCosts.
enum class Field : std::uint8_t {
  kPerBlock,
  kPerSplit,
  kPerCall,
  kPerMerge,
  kPerBlockAlone,
  kPerBlockMemory,    ///< Of a block, what its bytes take at a multiprocessor's share of the bandwidth.
  kPerBlockProducts,  ///< Of a block, what its matrix products take.
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

/// One constant.
struct Row {
  Kernel kernel;
  Situation situation;
  Field field;
  std::int32_t nanoseconds;
  const char* from;  ///< The page or the results that say how it was measured.
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

/// `nanoseconds` times a factor of another device.
inline std::int32_t scaled(std::int32_t nanoseconds, float factor) {
  return factor == 1 ? nanoseconds : static_cast<std::int32_t>(static_cast<float>(nanoseconds) * factor);
}

/// What a segment or a merge takes where a block takes `block` in place of an H200's: longer as the block
/// does. Plans are cut by what these are worth in blocks; cuts that are right on an H200 are so on an H100,
/// too (docs/log/cuts_h100.md).
std::int32_t as_blocks(std::int32_t nanoseconds, std::int32_t block, std::int32_t block_of_h200);

/// What segments and calls take. A block takes as long as what binds it: memory, products, or what else there
/// is to do (per_block), which takes clocks, as all the rest does.
struct Costs {
  schedule::CostModel beside = {};  ///< per_block: beside memory and products.
  std::int32_t block_memory = 0;
  std::int32_t block_products = 0;

  schedule::CostModel on(const schedule::Workers& workers) const;
};

/// Nanoseconds. A CTA's time is
///   call + blocks * (what a block takes)
/// and a block takes block_streaming where all SMs read from memory, in proportion less where fewer do, but
/// never less than block_alone; but block_here if it need not be waited for: one of the first few, which are
/// on their way before any is needed, or of several row tiles', which find it in L2.
struct TeamCosts {
  std::int32_t call;          ///< Launch, until the first block is there, exchange, output.
  std::int32_t shared_merge;  ///< Teams that share a request merge in the kernel.
  /// The same, of one row tile, where most requests have one team: what those with the longest share wait. Of
  /// several it is not counted less: it is mla_64_pingpong that is beside them then, and estimated too high.
  std::int32_t lone_merge;
  std::int32_t block_here, block_alone, block_streaming;
  /// Of block_streaming, what its bytes take: where that is not all, the rest takes clocks. 0: all.
  std::int32_t block_memory;
  std::int32_t lone_request;  ///< What teams that share a lone request take beside that: they merge sooner.

  /// All but block_streaming is bound by the clock. But where it is all bytes and memory is slower fewer CTAs
  /// feel one another, too: on an H100 (memory 1.51) 64 take 2,000 to 2,070 ns a block, 1,850 on an H200, and
  /// the fourth root of memory's factor is 1.11 (docs/log/cuts_h100.md).
  TeamCosts on(const schedule::Workers& workers) const;
};
std::string to_string(const schedule::CostModel& costs);
std::string to_string(const TeamCosts& costs);

/// A field of a situation: 0 if only others of it are in the table.
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

/// What a kernel's segments and calls take, or what is added to that.
consteval Costs of(Kernel kernel, Situation situation) {
  return {.beside = {.per_block = nanoseconds(kernel, situation, Field::kPerBlock),
                     .per_split = nanoseconds(kernel, situation, Field::kPerSplit),
                     .per_call = nanoseconds(kernel, situation, Field::kPerCall),
                     .per_merge = nanoseconds(kernel, situation, Field::kPerMerge),
                     .per_block_alone = nanoseconds(kernel, situation, Field::kPerBlockAlone)},
          .block_memory = nanoseconds(kernel, situation, Field::kPerBlockMemory),
          .block_products = nanoseconds(kernel, situation, Field::kPerBlockProducts)};
}

/// What a kernel by teams takes.
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
