// Random calls of index_topk() with all kinds of difficult values, for `check` and for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flashlatent/index_topk.h"
#include "runtime/index_run.h"

namespace flashlatent::runtime {

/// What scores look like.
enum class IndexScores {
  kNormal,
  kUnit,      ///< Every score is 1.
  kEqual,     ///< The scores of a query token are equal.
  kNegative,  ///< All weights are negative.
  kHuge,      ///< One token's score is 1e20 times the scores of the other tokens.
  kNan,       ///< Every third token's score is NaN.
  kRising,    ///< Scores rise with the position: each token is better than all before it.
  kSpread,    ///< Scales of keys (mxfp4_68: of each 32 elements) lie up to 2^30 apart.
};
const char* to_string(IndexScores scores);

struct IndexSpec {
  std::string name = {};
  IndexFormat format = IndexFormat::kFp8_132;
  bool fp4_query = false;
  std::vector<int> lengths = {100};
  int query_tokens = 1;
  std::vector<int> ragged_tokens = {};  ///< Query tokens of each request; empty: query_tokens for all.
  bool causal = true;
  bool lengths_per_token = false;  ///< What each query token sees is drawn, up to its request's length.
  int heads = 64;
  int topk = 64;
  int page_size = 64;
  int best_blocks = 0;
  int candidates = 0;  ///< Blocks drawn for each query token; some are -1 or out of range.
  int candidate_block = 8;
  int slot_page_size = 0;      ///< 0: results are positions.
  bool invalid_pages = false;  ///< Some live entries of the page table are -1 or out of range.
  bool strided = false;        ///< Pages, and query tokens, lie further apart than they need to.
  IndexScores scores = IndexScores::kNormal;
};

/// A call; its tensors own their memory.
struct RandomIndexCase {
  IndexTopkInputs inputs;
  IndexTopkOptions options;
  IndexWanted wanted;
  std::vector<std::shared_ptr<void>> storage;
};

/// Draws a call. Memory that it does not use (tails of last pages, other pages, entries behind lengths) is
/// poisoned.
RandomIndexCase make_index_case(const IndexSpec& spec, std::uint64_t seed);

}  // namespace flashlatent::runtime
