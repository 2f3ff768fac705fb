// Reading a plan: the schedule as host data, to print, to draw and to test.
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

/// Blocks of one request, one after another, and one group of row tiles, done by one part.
struct PlanSegment {
  int request = 0;      ///< Sparse: the query token, request * s_q + token.
  int round = 0;        ///< Which group of row tiles, where there are more tiles than workers.
  int block_begin = 0;  ///< Blocks [block_begin, block_end) of the request's tokens.
  int block_end = 0;
  int partial = -1;  ///< Where its partial result goes; -1: it is the whole request and writes `out` itself.
};

/// One worker's share. A worker is `lanes` SMs (or CPU threads, or teams of `team` SMs each) that take the
/// row tiles of a segment.
struct PlanPart {
  std::vector<PlanSegment> segments;
  std::int64_t cost = 0;  ///< segments * cost_per_split + blocks * cost_per_block
};

/// Requests that attend to a prefix of their pages together.
struct PlanGroup {
  std::vector<int> requests;
  int tokens = 0;  ///< Of the prefix.
  int tiles = 0;   ///< Of query rows, of one KV head.
  int splits = 0;  ///< Parts that the prefix is cut into.
};

struct PlanDescription {
  std::string kernel;
  /// How requests become parts: "line", "whole", "team shares", "even shares", "shares by length" or "fixed
  /// splits" (docs/glossary.md).
  std::string partition;
  int lanes = 1;          ///< Row tiles that a part's workers do side by side.
  int rounds = 1;         ///< Groups of `lanes` row tiles.
  int team = 1;           ///< SMs that share the blocks of a segment.
  int block_tokens = 64;  ///< Tokens a block.
  /// In the kernel's own unit (CUDA: ns of an H200). If requests stay whole and are fewer than parts: the
  /// cost of a block while so few parts read memory.
  std::int64_t cost_per_block = 0;
  std::int64_t cost_per_split = 0;
  std::int64_t total_cost = 0;  ///< All segments' cost if nothing were split for balance.
  std::vector<PlanPart> parts;
  int merges = 0;                 ///< Requests (times rounds) that the combine step merges.
  int partials = 0;               ///< Partial results.
  std::vector<PlanGroup> groups;  ///< With groups, parts and segments cover each request's tokens after its
                                  ///< prefix.

  std::int64_t largest() const;  ///< The largest part's cost.
  double ideal() const;          ///< total_cost over the number of parts.
  double imbalance() const;      ///< largest / ideal.
};

/// Decodes `plan`, a host copy of what plan() wrote for this problem, executor and these lengths (as for
/// plan(), on the host). On CUDA sparse calls without topk_length whose requests stay whole do not read their
/// plan: they split no request, whatever it says. Errors: kInvalidArgument (a plan of another problem), those
/// of plan_bytes().
Result<PlanDescription> describe_plan(const DecodeProblem& problem, const PlanLengths& lengths, Memory plan,
                                      const Executor& executor);

/// A table, one line a part: load, splits, requests.
std::string to_string(const PlanDescription& plan);

/// A picture: a line a part, a box a segment, coloured by request, splits outlined.
std::string to_svg(const PlanDescription& plan);

}  // namespace flashlatent
