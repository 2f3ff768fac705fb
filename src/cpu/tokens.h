// Which cached tokens a block has and where they lie: by page table, or sparse by indices.
#pragma once

#include "cpu/block_math.h"
#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// The live tokens of a block, in order.
struct Tokens {
  int count = 0;
  const std::uint8_t* rows[kBlockTokens];  ///< Where each token's cached row starts.
  int positions[kBlockTokens];  ///< Its place among the request's tokens, or the query token's indices.
};

class TokenSource {
 public:
  TokenSource(const DecodeProblem& problem, const DecodeInputs& inputs);

  /// Block number `index` of a request of `length` tokens, for one KV head; sparse: of the query token's
  /// first `length` indices. Pages and indices that the cache does not have are left out.
  Tokens block(int request, int query_token, int kv_head, int length, int index) const;

 private:
  Tokens paged(int request, std::int64_t head, int begin, int end) const;
  Tokens indexed(int request, int query_token, std::int64_t head, int begin, int end) const;

  const DecodeInputs& inputs_;
  const bool sparse_;
  const int page_size_;
  const std::uint8_t* cache_;
  std::int64_t page_bytes_, token_bytes_, head_bytes_;  // strides
};

}  // namespace flashlatent::cpu
