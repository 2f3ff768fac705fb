// Which cached tokens a block has and where they lie: by page table, or sparse by indices.
#pragma once

#include "cpu/block_math.h"
#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// The live tokens of a block, in order.
struct Tokens {
  int count = 0;
  const std::uint8_t* rows[kBlockTokens];    ///< Where each token's cached row, or key, starts.
  const std::uint8_t* values[kBlockTokens];  ///< The same of values, if they are apart.
  int positions[kBlockTokens];  ///< Its place among the request's tokens, or the query token's indices.
};

class TokenSource {
 public:
  TokenSource(const DecodeProblem& problem, const DecodeInputs& inputs);

  /// A request's tokens [begin, end), at most a block, for one KV head; sparse: those of the query token's
  /// indices. Pages and indices that the cache does not have are left out.
  Tokens block(int request, int query_token, int kv_head, int begin, int end) const;

 private:
  /// Where tokens start in one cache; strides in bytes.
  struct Places {
    Places(const ConstTensorView& cache, KvLayout layout);
    const std::uint8_t* at(std::int64_t page, std::int64_t offset, int kv_head) const {
      return data + page * page_bytes + offset * token_bytes + kv_head * head_bytes;
    }

    const std::uint8_t* data;
    std::int64_t page_bytes, token_bytes, head_bytes;
  };

  Tokens paged(int request, int kv_head, int begin, int end) const;
  Tokens indexed(int request, int query_token, int kv_head, int begin, int end) const;

  const DecodeInputs& inputs_;
  const bool sparse_, latent_;
  const int page_size_;
  const std::int64_t pages_;
  const Places rows_, values_;
};

}  // namespace flashlatent::cpu
