// Items that attend to two lists of tokens in one softmax: those of the cache, then those of the extra cache.
// Then an item is a query token; a ragged request has as many items as the request with the most query tokens
// (ragged_token()).
//
// To a plan the item is as long as its lists together, in blocks: a block has tokens of one list, so each
// list begins with a block of its own. Block b of an item whose lists have n0 and n1 tokens is
//
//   b < ceil(n0 / block_tokens)    tokens [b, b + 1) * block_tokens of list 0, those below n0
//   else, b - ceil(n0 / ...) = c   tokens [c, c + 1) * block_tokens of list 1, those below n1
//
// where token 0 of a list is the first that the item sees: with a window, TokenSpan::begin of its page table.
// length_of() is the end of these blocks: n0 rounded up to whole blocks, plus n1.
#pragma once

#include "core/visible.h"
#include "plan/schedule.h"

namespace flashlatent {
// Kernels include this file: flashlatent/decode.h takes 0.7 s to read.
struct DecodeProblem;
struct PlanLengths;
}  // namespace flashlatent

namespace flashlatent::schedule {

/// The lengths of one list, as the call gives them.
struct ListLengths {
  const std::int32_t* lengths = nullptr;  ///< Null: all lengths are TokenList::reach.
  std::int64_t request_stride = 0;
  std::int64_t token_stride = 0;  ///< 0: the query tokens of a request share one length.
  /// HeldTokens::spans, used in place of lengths; null: contexts are whole.
  const TokenSpan* spans = nullptr;
  std::int32_t spans_stride = 0;  ///< Spans from one request to the next.
};

/// Lengths where Geometry::lists is 2; other geometries have a pointer to one list's lengths.
struct UnionLengths {
  ListLengths list[2];
};

/// The query token that item number `index` of a ragged request stands for; negative: none. A request has
/// `most` items and `count` query tokens, and its last items stand for them. So the number of query tokens
/// after an item's, which decides what it sees, follows from shapes alone: plans and walks need no
/// cu_seqlens_q.
FLASHLATENT_HOST_DEVICE std::int32_t ragged_token(std::int32_t most, std::int32_t count, std::int32_t index) {
  return index - (most - count);
}

/// The tokens or indices of list `which` that an item sees. Items are query tokens, length_sharers a request.
FLASHLATENT_HOST_DEVICE TokenSpan span_of(const Geometry& g, const UnionLengths& lengths, std::int32_t which,
                                          std::int32_t item) {
  const TokenList& list = g.list[which];
  const ListLengths& given = lengths.list[which];
  const std::int32_t request = g.length_sharers == 1 ? item : item / g.length_sharers;
  const std::int32_t token = item - request * g.length_sharers;
  // Visibility::later() and ::seen(), written out: by way of them ptxas makes other code of kernels by lists.
  const std::int32_t later = list.causal ? g.length_sharers - 1 - token : 0;
  if (given.spans != nullptr) {
    const TokenSpan held = given.spans[request * given.spans_stride + later];
    const std::int32_t end = held.end < list.reach ? held.end : list.reach;
    return {held.begin < end ? held.begin : end, end};
  }
  const std::int32_t length =
      given.lengths == nullptr ? list.reach
                               : given.lengths[request * given.request_stride + token * given.token_stride];
  std::int32_t end = length < 0 ? 0 : length < list.reach ? length : list.reach;
  end = end > later ? end - later : 0;
  return {list.window > 0 && end > list.window ? end - list.window : 0, end};
}

FLASHLATENT_HOST_DEVICE std::int32_t list_blocks(const Geometry& g, std::int32_t tokens) {
  return tokens / g.block_tokens + (tokens % g.block_tokens != 0);
}

/// The length of an item whose lists have `first` and `extra` tokens.
FLASHLATENT_HOST_DEVICE std::int32_t union_length(const Geometry& g, std::int32_t first, std::int32_t extra) {
  return extra == 0 ? first : list_blocks(g, first) * g.block_tokens + extra;
}

/// The length of an item of two lists.
FLASHLATENT_HOST_DEVICE std::int32_t length_of(const Geometry& g, const UnionLengths& lengths,
                                               std::int32_t item) {
  return union_length(g, span_of(g, lengths, 0, item).count(), span_of(g, lengths, 1, item).count());
}

/// A block of the union: tokens [begin, begin + block_tokens) of a list, counted from the span's begin.
struct ListBlock {
  std::int32_t list;
  std::int32_t begin;
};

/// Block number `block` of an item whose first list has `first` tokens.
FLASHLATENT_HOST_DEVICE ListBlock list_block(const Geometry& g, std::int32_t first, std::int32_t block) {
  const std::int32_t blocks = list_blocks(g, first);
  return block < blocks ? ListBlock{0, block * g.block_tokens}
                        : ListBlock{1, (block - blocks) * g.block_tokens};
}

/// Sets requests, length_sharers, lists, list and max_tokens of `g` for a problem whose items are query
/// tokens of a latent cache. block_tokens must be set.
void set_lists(Geometry& g, const DecodeProblem& problem);

struct HeldTokens;

/// `g` for a call with these lengths: if a list of indices has a length for each query token, items do not
/// share lengths.
Geometry with_lengths(Geometry g, const PlanLengths& lengths);

/// The lengths of a call, from those that plan() and decode() get. `held`: if ranks share contexts, the
/// rank's tokens are used instead.
UnionLengths union_lengths(const PlanLengths& lengths);
UnionLengths union_lengths(const PlanLengths& lengths, const HeldTokens& held);

}  // namespace flashlatent::schedule
