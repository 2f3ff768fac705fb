// A plan as host data: to print, to draw and to test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashlatent/backend.h"
#include "flashlatent/decode.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// A run of blocks of one request, in one round and one part.
struct PlanSegment {
  /// Where each query token has its own tokens (sparse, an extra cache): request * s_q + token.
  int request = 0;
  int round = 0;        ///< Which `lanes` row tiles, where there are more tiles than workers.
  int block_begin = 0;  ///< The request's blocks [block_begin, block_end).
  int block_end = 0;
  /// The place of its partial result; -1: it is the whole request and writes `out` itself.
  int partial = -1;
};

/// One part. Its workers are `lanes` SMs, CPU threads, or teams of `team` SMs each; each computes one row
/// tile of a segment.
struct PlanPart {
  std::vector<PlanSegment> segments;
  std::int64_t cost = 0;  ///< segments * cost_per_split + blocks * cost_per_block
};

/// Requests that attend to a prefix of their pages together.
struct PlanGroup {
  std::vector<int> requests;
  int tokens = 0;  ///< Tokens of the prefix.
  int tiles = 0;   ///< Row tiles of one KV head.
  int splits = 0;  ///< Runs of blocks that the prefix is cut into.
};

struct PlanDescription {
  std::string kernel;
  /// How requests become parts: "line", "whole", "team shares", "even shares", "shares by length", "fixed
  /// splits" or "turns" (docs/architecture.md).
  std::string partition;
  int lanes = 1;          ///< Row tiles that a part's workers compute side by side.
  int rounds = 1;         ///< Groups of `lanes` row tiles.
  int team = 1;           ///< SMs that share the blocks of a segment.
  int block_tokens = 64;  ///< Tokens a block.
  /// In the kernel's own unit (CUDA: ns of an H200). If requests stay whole and are fewer than parts, the
  /// cost of a block while only as many parts as requests read memory.
  std::int64_t cost_per_block = 0;
  std::int64_t cost_per_split = 0;
  std::int64_t total_cost = 0;  ///< Cost of all segments if nothing were split for balance.
  std::vector<PlanPart> parts;
  int merges = 0;    ///< Split items, whose partial results the combine step merges.
  int partials = 0;  ///< Partial results.
  /// If there are groups, parts and segments cover the tokens of each request after its prefix.
  std::vector<PlanGroup> groups;

  std::int64_t largest() const;  ///< Cost of the most expensive part.
  double ideal() const;          ///< total_cost / number of parts.
  double imbalance() const;      ///< largest() / ideal().
};

/// Decodes `plan`, a host copy of what plan() wrote for this problem, executor and these lengths (on the
/// host). On CUDA, kernels of sparse calls without topk_length whose requests stay whole do not read their
/// plan: they split no request, whatever the plan says. Errors: kInvalidArgument (a plan of another problem),
/// those of plan_bytes().
Result<PlanDescription> describe_plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan,
                                      const Executor& executor);

/// A table with one line a part: segments, blocks, blocks in splits, cost, load.
std::string to_string(const PlanDescription& plan);

/// A picture: one line a part, one box a segment, coloured by request; splits are outlined.
std::string to_svg(const PlanDescription& plan);

}  // namespace flashlatent
