// What kernels take, in one table: a row a situation, with where its constants come from (h200.inc).
// Everything is found at compile time: to ask for a row that is not there, or to write one twice, is an error
// of compilation.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "plan/schedule.h"

namespace flashlatent::cost {

/// Whose costs these are. A kernel by teams has a row of its own.
enum class Kernel : std::uint8_t {
  kLatent,  ///< Every kernel for latent caches.
  kDirect,
  kDirectTeam8,
  kEtap,
  kMma16,
  kMma16Team4,
  kMma16Team8,
  kMma16Team16,
  kPaged,
  kPrefill,
  kQuartet,
  kSeesaw,
  kTrio,
};
inline constexpr const char* kKernelNames[] = {
    "latent",       "direct", "direct_team8", "etap",    "mma16",  "mma16_team4", "mma16_team8",
    "mma16_team16", "paged",  "prefill",      "quartet", "seesaw", "trio"};

/// When a kernel takes so long.
enum class Situation : std::uint8_t {
  kRows8,  ///< One row tile of at most 8 query rows; likewise 16, 32 and 64.
  kRows16,
  kRows32,
  kRows64,
  kRows64ByTokens,    ///< The same, where tokens come one by one and not in boxes.
  kTiles,             ///< Several row tiles side by side: each finds the other's blocks in L2.
  kFp8,               ///< An fp8_656 cache.
  kTeams,             ///< A segment's blocks are shared by a team of CTAs.
  kTeamsOfTiles,      ///< The same with several row tiles.
  kTeamsOfFewBlocks,  ///< The same where a CTA has at most four blocks.
  kShares,            ///< Each CTA has a share of one request (schedule::kEven, kByLength).
  kSharesOfTiles,     ///< The same with several row tiles.
  kByMemory,          ///< A block takes as long as its bytes; per_block is no constant.
  kSharedPrefix,      ///< Groups of requests attend to a prefix that they share.
  // Added to one of those above.
  kUnplanned,    ///< The call reads no plan and launches no combine step.
  kReadsPlan,    ///< Shares by length: the plan is read.
  kPartials32,   ///< Shares whose partial results are fp32, twice the bytes: fp16 caches.
  kLoneRequest,  ///< One request of two row tiles, cut on a line.
  kFewRequests,  ///< At most two requests of one row tile.
  kMoreTiles,    ///< Several row tiles.
  kFewRows,      ///< Shares of at most 16 query rows.
  kByTokens,     ///< Shares whose tokens come one by one.
};

/// Nanoseconds; 0: none, or in another row. The fields of schedule::CostModel and of TeamCosts.
struct Constants {
  std::int32_t per_block = 0, per_split = 0, per_call = 0, per_merge = 0, per_block_alone = 0;
  std::int32_t shared_merge = 0, lone_merge = 0, block_here = 0, block_alone = 0, block_streaming = 0;
  std::int32_t lone_request_merge = 0;
  std::int32_t per_member = 0;
};

/// The constants of a situation that are from one place.
struct Row {
  Kernel kernel;
  Situation situation;
  Constants constants;
  const char* from;  ///< The page or the results that say how they were measured.
};

namespace rows {
using enum Kernel;
using enum Situation;
inline constexpr Row kH200[] = {
#include "cost/h200.inc"
};
}  // namespace rows

/// Nanoseconds. A CTA's time is
///   call + blocks * (what a block takes)
/// and a block takes block_streaming where all SMs read from memory, in proportion less where fewer do, but
/// never less than block_alone; but block_here if it need not be waited for: one of the first few, which are
/// on their way before any is needed, or of several row tiles', which find it in L2.
struct TeamCosts {
  std::int32_t call;          ///< Launch, until the first block is there, exchange, output.
  std::int32_t shared_merge;  ///< Teams that share a request merge in the kernel.
  /// The same, of one row tile, where most requests have one team: what those with the longest share wait. Of
  /// several it is not counted less: it is seesaw that is beside them then, and estimated too high.
  std::int32_t lone_merge;
  std::int32_t block_here, block_alone, block_streaming;
  std::int32_t lone_request;  ///< What teams that share a lone request take beside that: they merge sooner.
};

/// All constants of a situation.
consteval Constants constants(Kernel kernel, Situation situation) {
  constexpr std::int32_t Constants::*kFields[] = {
      &Constants::per_block,       &Constants::per_split,          &Constants::per_call,
      &Constants::per_merge,       &Constants::per_block_alone,    &Constants::shared_merge,
      &Constants::lone_merge,      &Constants::block_here,         &Constants::block_alone,
      &Constants::block_streaming, &Constants::lone_request_merge, &Constants::per_member};
  bool known = false;
  Constants all;
  for (const Row& row : rows::kH200) {
    if (row.kernel != kernel || row.situation != situation) continue;
    known = true;
    for (auto field : kFields) {
      if (all.*field != 0 && row.constants.*field != 0) throw std::logic_error("a constant is there twice");
      all.*field += row.constants.*field;
    }
  }
  if (!known) throw std::logic_error("the table has no such situation of this kernel");
  return all;
}

/// What a kernel's segments and calls take, or what is added to that.
consteval schedule::CostModel of(Kernel kernel, Situation situation) {
  const Constants is = constants(kernel, situation);
  return {.per_block = is.per_block,
          .per_split = is.per_split,
          .per_call = is.per_call,
          .per_merge = is.per_merge,
          .per_block_alone = is.per_block_alone};
}

/// What a kernel by teams takes.
consteval TeamCosts of_teams(Kernel kernel, Situation situation = Situation::kTeams) {
  const Constants is = constants(kernel, situation);
  return {.call = is.per_call,
          .shared_merge = is.shared_merge,
          .lone_merge = is.lone_merge,
          .block_here = is.block_here,
          .block_alone = is.block_alone,
          .block_streaming = is.block_streaming,
          .lone_request = is.lone_request_merge};
}

}  // namespace flashlatent::cost
