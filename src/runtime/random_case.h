// Random decode problems with everything that may go wrong in them: for `check` and for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashlatent/decode.h"

namespace flashlatent::runtime {

struct CaseSpec {
  std::string name = {};
  Dtype dtype = Dtype::kBF16;
  KvFormat format = KvFormat::kPlain;  ///< kFp8_656: scales are powers of two or others; kFp8_584: of the
                                       ///< writer's exponent or a larger one.
  KvLayout layout = KvLayout::kLatent;
  int scales = 0;           ///< kE4m3: of keys and of values, 0 (absent), 1 or kv_heads each; latent: 0 or 1.
  bool e4m3_query = false;  ///< kE4m3 latent: q is e4m3, with
  int query_scales = 0;     ///< 0 (absent), 1 or `heads` scales.
  Products products = Products::kAuto;
  int query_tokens = 1;
  int heads = 16;
  int kv_heads = 1;
  int qk_dim = 576;
  int v_dim = 512;
  int page_size = 64;
  std::vector<int> lengths = {100};
  std::vector<int> ragged_tokens = {};  ///< Query tokens of each request; empty: query_tokens for all.
  bool causal = false;
  /// With a world above 1 `lengths` are the tokens that the rank holds, of contexts that are as long as may
  /// be drawn.
  ContextShard shard = {};
  bool sink = false;  ///< Some of them infinite.
  bool batch_invariant = false;
  bool invalid_pages = false;  ///< Some live page table entries are -1 or out of range.
  bool strided = false;        ///< q and kv_cache are slices of larger, poisoned tensors.
  float logit_scale = 1.0F;    ///< Standard deviation of the scores.
  /// Added to the scores of a request's tokens: the first to those of the first `step_tokens`, the second to
  /// those of as many that follow, and so on, after the last the first again. Query row (request, token,
  /// head) number r gets 1 - r % 4 / 4 of it: queries have a direction in common, and keys more or less of
  /// it, so that scores vary a little more than logit_scale says (which is not 0). An e4m3 cache saturates.
  std::vector<float> score_steps = {};
  int step_tokens = 64;
  float soft_cap = 0;
  bool alibi = false;
  int window = 0;
  bool sparse = false;  ///< Query tokens attend to `topk` random ones of their request's tokens.
  int topk = 0;
  std::vector<int> topk_lengths = {};  ///< One a request; empty: no topk_length.
  PrefixSharing prefix_sharing = PrefixSharing::kOff;
  int sharers = 1;             ///< So many requests, one after another, have the same
  int shared_tokens = 0;       ///< first tokens, as far as these fill pages.
  double skipped_indices = 0;  ///< The part of the indices that is -1 or out of range; of each third query
                               ///< token then all are (of the extra cache, of each fourth).
  /// Of the extra cache, tokens of each request; empty: there is none.
  std::vector<int> extra_lengths = {};
  int extra_page_size = 64;
  bool extra_indexed = false;                ///< By `extra_topk` indices; else by page table, all of them.
  int extra_topk = 0;                        ///< As topk, of the extra cache's tokens.
  std::vector<int> extra_topk_lengths = {};  ///< As topk_lengths.
  bool extra_by_token = false;               ///< By page table: each query token sees fewer than the next.
  bool prefill =
      false;  ///< For callers: sparse prefill, whose query tokens these requests are (prefill_run.h).
};

/// A problem and its tensors on the CPU. Pages are permuted; the table has columns to spare, with garbage in
/// every entry past a request's pages; unused pages, the tails of last pages and what is between pages hold
/// NaN and Inf, which FP8 tokens have in scales, too, and fp8_656 in the RoPE part if the problem has none.
/// Indices past topk_length name such tokens, or none.
struct RandomCase {
  DecodeProblem problem;
  DecodeInputs inputs;
  std::vector<std::vector<std::uint8_t>> storage;
};

/// The problem that a spec poses, for callers who want to validate it before they make its tensors.
DecodeProblem problem_of(const CaseSpec& spec);

/// The spec's problem is valid.
RandomCase make_case(const CaseSpec& spec, std::uint64_t seed);

}  // namespace flashlatent::runtime
