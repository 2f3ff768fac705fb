// What a random case should be, and the problem that follows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flashlatent/edges.h"
#include "flashlatent/problem.h"

namespace flashlatent::runtime {

/// The edges of a layer that a call has (DecodeInputs::q_norm and those behind it).
struct EdgeSpec {
  float norm = 0;       ///< Epsilon of queries' norm; 0: none.
  int q_columns = 0;    ///< Columns of queries that are rotated; 0: none.
  int out_columns = 0;  ///< The same of outputs.
  RotaryPairs pairs = RotaryPairs::kNeighbours;
  RotaryTable layout = RotaryTable::kHalves;
  bool wide_positions = false, bf16_table = false;
  int fp8_columns = 0;    ///< Columns of a scale, 128 or 32; 0: no FP8 output.
  int fp8_groups = 1;     ///< Groups of heads.
  bool keeps_out = true;  ///< Is `out` written beside an FP8 output?

  bool has_query() const { return norm != 0 || q_columns > 0; }
  bool has_output() const { return out_columns > 0 || fp8_columns > 0; }
  bool present() const { return has_query() || has_output(); }

  friend bool operator==(const EdgeSpec&, const EdgeSpec&) = default;
};

struct CaseSpec {
  std::string name = {};
  Dtype dtype = Dtype::kBF16;
  /// fp32 scales are powers of two or not. Scales of a byte are the writer's or up to four times as large.
  KvFormat format = KvFormat::kPlain;
  ScalePlace scale_place = ScalePlace::kToken;  ///< For formats that leave the place open.
  KvLayout layout = KvLayout::kLatent;
  /// kE4m3: number of scales of keys and of values: 0 (absent), 1 or kv_heads; latent: 0 or 1.
  int scales = 0;
  bool e4m3_query = false;  ///< Latent kE4m3: q is e4m3 ...
  int query_scales = 0;     ///< ... with 0 (absent), 1 or `heads` scales.
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
  /// With a world above 1 `lengths` are the tokens that the rank holds. The contexts' lengths are drawn among
  /// those that are possible.
  ContextShard shard = {};
  bool sink = false;  ///< An attention sink; some of its values are infinite.
  bool batch_invariant = false;
  bool invalid_pages = false;  ///< Some live entries of the page table are -1 or out of range.
  bool strided = false;        ///< q and kv_cache are slices of larger, poisoned tensors.
  /// The query comes in two parts (may_split_query()), with `strided` as engines leave them.
  bool split_query = false;
  float logit_scale = 1.0F;  ///< Standard deviation of the scores.
  /// Steps that are added to the scores of a request's tokens: the first step to the first `step_tokens`
  /// tokens, the second to the next `step_tokens`, and so on; after the last step the first follows again.
  /// Query row (request, token, head) number r gets the fraction 1 - r % 4 / 4 of a step. Queries have a
  /// common direction, and keys have more or less of that direction, so scores vary a little more than
  /// logit_scale (which is not 0) says. An e4m3 cache saturates.
  std::vector<float> score_steps = {};
  int step_tokens = 64;
  float soft_cap = 0;
  bool alibi = false;
  int window = 0;
  bool sparse = false;  ///< Query tokens attend to `topk` random tokens of their request.
  int topk = 0;
  std::vector<int> topk_lengths = {};  ///< One a request or query token; empty: no topk_length.
  PrefixSharing prefix_sharing = PrefixSharing::kOff;
  int sharers = 1;        ///< This many consecutive requests ...
  int shared_tokens = 0;  ///< ... begin with the same tokens, as far as these fill pages.
  /// The fraction of the indices that are -1 or out of range. All indices of every third query token are (in
  /// the extra cache, of every fourth).
  double skipped_indices = 0;
  /// Tokens of each request in the extra cache; empty: there is no extra cache.
  std::vector<int> extra_lengths = {};
  int extra_page_size = 64;
  std::optional<KvFormat> extra_format = {};  ///< Absent: the first cache's.
  bool extra_indexed = false;                 ///< By `extra_topk` indices; else by page table, all of them.
  int extra_topk = 0;                         ///< As topk, for the extra cache.
  std::vector<int> extra_topk_lengths = {};   ///< As topk_lengths.
  /// By page table: each query token sees fewer tokens than the next one.
  bool extra_by_token = false;
  EdgeSpec edges = {};
  bool other_lengths = false;  ///< RandomCase::other_lengths are drawn.
  /// For callers: calls are replays of a graph that has run with the other lengths before (CUDA).
  bool graph = false;
  /// For callers: by name the kernel of this number among those that take the problem, counted from 1, over
  /// and over; 0: the library picks.
  int kernel = 0;
  /// For callers: the case is a sparse prefill, and its requests are query tokens (prefill_run.h).
  bool prefill = false;

  friend bool operator==(const CaseSpec&, const CaseSpec&) = default;
};

/// How many pages hold `tokens`.
constexpr int pages_for(int tokens, int page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// The problem of a spec, for callers that validate it before they make its tensors.
DecodeProblem problem_of(const CaseSpec& spec);

}  // namespace flashlatent::runtime
