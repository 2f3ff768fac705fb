// A call of index_topk() as its backends take it: sizes, strides and pointers, already validated.
#pragma once

#include <cstdint>

#include "core/index_keys.h"
#include "flashlatent/index_topk.h"

namespace flashlatent {

/// A tensor over query tokens: the element of query token `token` of `request`. Ragged tensors have a request
/// stride of 0, and `token` counts through all requests.
template <class T>
struct OverTokens {
  T* data = nullptr;
  std::int64_t request = 0, token = 0, inner = 0;

  FLASHLATENT_HOST_DEVICE T* at(std::int64_t r, std::int64_t t) const {
    return data + r * request + t * token;
  }
};

struct IndexCall {
  IndexFormat format = IndexFormat::kFp8_132;
  bool fp4_query = false;
  bool ragged = false;
  bool causal = false;
  bool lengths_per_token = false;
  int batch = 0;
  int tokens = 0;  ///< Query tokens of each request; if ragged, of all requests.
  int heads = 0;
  int topk = 0;
  int page_size = 1;
  std::int64_t pages = 0, page_stride = 0;
  int max_pages = 0;
  int candidates = 0;  ///< Blocks that each query token names; 0: all tokens are looked at.
  int candidate_block = 1;
  int best_blocks = 0;
  int slot_page_size = 0, slot_columns = 0;
  int span = 0;  ///< Places of a query token: the page table's reach, or candidates * candidate_block.

  OverTokens<const std::uint8_t> q, q_scale;
  OverTokens<const float> weights;
  const std::uint8_t* index_cache = nullptr;
  const std::int32_t* block_table = nullptr;
  std::int64_t table_stride = 0;
  OverTokens<const std::int32_t> lengths;  ///< Per request: token stride 0.
  const std::int32_t* cu_seqlens_q = nullptr;
  std::int64_t cu_stride = 1;
  OverTokens<const std::int32_t> blocks;  ///< The candidates.
  const std::int32_t* slot_table = nullptr;
  std::int64_t slot_stride = 0;

  OverTokens<std::int32_t> indices, counts, best;
  OverTokens<float> scores, all_scores;

  /// All query tokens.
  std::int64_t rows() const { return ragged ? tokens : std::int64_t{batch} * tokens; }

  FLASHLATENT_HOST_DEVICE std::int64_t reach() const { return std::int64_t{max_pages} * page_size; }

  /// What query token `token` of the `request`'s `count` sees, of which it is number `own`.
  FLASHLATENT_HOST_DEVICE int visible(std::int64_t request, std::int64_t token, int own, int count) const {
    const std::int64_t length = *lengths.at(request, token);
    // Visibility::end(), by way of which ptxas makes other code of kernels.
    const std::int64_t seen = causal ? length - count + own + 1 : length;
    const std::int64_t most = reach();
    return static_cast<int>(seen < 0 ? 0 : seen > most ? most : seen);
  }

  /// If a query token sees `places` tokens: are all of them chosen, and does nobody ask for scores? Then none
  /// are made.
  FLASHLATENT_HOST_DEVICE bool needs_no_scores(int places) const {
    return places <= topk && candidates == 0 && best_blocks == 0 && scores.data == nullptr &&
           all_scores.data == nullptr;
  }

  /// The position at a place of a query token; -1: none.
  FLASHLATENT_HOST_DEVICE std::int64_t position(const std::int32_t* named, int place) const {
    if (candidates == 0) return place;
    const std::int64_t block = named[place / candidate_block];
    return block < 0 ? -1 : block * candidate_block + place % candidate_block;
  }

  /// The page of a position of a request; -1: it does not exist.
  FLASHLATENT_HOST_DEVICE std::int64_t page_of(std::int64_t request, std::int64_t position) const {
    const std::int64_t page = block_table[request * table_stride + position / page_size];
    return page >= 0 && page < pages ? page : -1;
  }

  /// A position as a result.
  FLASHLATENT_HOST_DEVICE std::int32_t result(std::int64_t request, int position) const {
    if (slot_table == nullptr) return position;
    const int column = position / slot_page_size;
    if (column >= slot_columns) return -1;
    const std::int64_t entry = slot_table[request * slot_stride + column];
    const std::int64_t slot = entry * slot_page_size + position % slot_page_size;
    return entry < 0 || slot > 0x7FFFFFFF ? -1 : static_cast<std::int32_t>(slot);
  }
};

/// The request of query token `row`, which counts over all requests, and the query token's number within the
/// request.
struct IndexRow {
  int request = 0;
  int own = 0;    ///< Its number among the request's query tokens.
  int count = 0;  ///< The request's query tokens.
  int token = 0;  ///< What OverTokens::at() takes.
};

/// Ragged: `request` by binary search in cu_seqlens_q. Rows behind the last request's have count 0 and see
/// nothing.
FLASHLATENT_HOST_DEVICE IndexRow row_of(const IndexCall& call, int row) {
  if (!call.ragged) return {row / call.tokens, row % call.tokens, call.tokens, row % call.tokens};
  int low = 0, high = call.batch;  // the first request that ends behind the row
  while (low < high) {
    const int middle = (low + high) / 2;
    if (call.cu_seqlens_q[(middle + 1) * call.cu_stride] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == call.batch) return {0, 0, 0, row};
  const int begin = call.cu_seqlens_q[low * call.cu_stride];
  return {low, row - begin, call.cu_seqlens_q[(low + 1) * call.cu_stride] - begin, row};
}

/// A score as a number above 0, in the order of scores: NaN counts as -inf, and -0 as 0. Tokens that do not
/// exist have kNoToken.
inline constexpr std::uint32_t kNoToken = 0;
FLASHLATENT_HOST_DEVICE std::uint32_t sortable(float score) {
  const std::uint32_t bits = e4m3::bits_of(score + 0.0F);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return 0x007FFFFFU;
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}
/// The score of such a number; -inf of kNoToken.
FLASHLATENT_HOST_DEVICE float score_of(std::uint32_t sortable) {
  if (sortable <= 0x007FFFFFU) return e4m3::float_of(0xFF800000U);
  return e4m3::float_of(sortable & 0x80000000U ? sortable & 0x7FFFFFFFU : ~sortable);
}

/// A call of merge_topk(). `scores` and `counts` are over (batch, s_q) of rank 0; ranks lie rank_stride
/// apart.
struct MergeCall {
  int ranks = 0, rank = 0, batch = 0, tokens = 0, topk = 0;
  OverTokens<const float> scores;
  OverTokens<const std::int32_t> counts, indices;
  std::int64_t score_rank_stride = 0, count_rank_stride = 0;
  OverTokens<std::int32_t> out, out_counts;

  /// How many scores a rank has of a query token.
  FLASHLATENT_HOST_DEVICE int count_of(std::int64_t r, std::int64_t t, int of_rank) const {
    const std::int32_t count = counts.at(r, t)[of_rank * count_rank_stride];
    return count < 0 ? 0 : count > topk ? topk : count;
  }
  FLASHLATENT_HOST_DEVICE std::uint32_t key(std::int64_t r, std::int64_t t, int of_rank, int i) const {
    return sortable((scores.at(r, t) + of_rank * score_rank_stride)[i]);
  }
};

}  // namespace flashlatent
