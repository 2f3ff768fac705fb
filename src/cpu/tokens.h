// Finds the cached tokens of a block: by page table or by indices, in one cache or in two.
#pragma once

#include "core/formats/formats.h"
#include "cpu/block_math.h"
#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// The live tokens of a block, in order.
struct Tokens {
  int count = 0;
  const LatentFormat* format = &kPlainFormat;
  const std::uint8_t* rows[kBlockTokens];    ///< The begin of each token's cached row, or key.
  const std::uint8_t* values[kBlockTokens];  ///< The begin of each token's value, if values are apart.
  /// The begin of each token's scales, if its format has them.
  const std::uint8_t* scales[kBlockTokens];
  /// The token's place among the request's tokens, or the query token's indices.
  int positions[kBlockTokens];
};

/// Finds the tokens of one list, by a page table or by indices, in a cache of any format.
class TokenSource {
 public:
  /// The source for the first cache; the next one for the extra cache.
  static TokenSource first(const DecodeProblem& problem, const DecodeInputs& inputs);
  static TokenSource extra(const DecodeProblem& problem, const DecodeInputs& inputs);

  /// A request's tokens [begin, end) for one KV head, at most a block; indexed: the query token's indices
  /// [begin, end). Pages and indices that the cache does not have are left out.
  Tokens block(int request, int query_token, int kv_head, int begin, int end) const;

 private:
  /// Where tokens start in one cache; strides in bytes.
  struct Places {
    Places(const ConstTensorView& cache, KvLayout layout, const LatentFormat& format);
    const std::uint8_t* at(std::int64_t page, std::int64_t offset, int kv_head) const {
      return data + page * page_bytes + offset * token_bytes + kv_head * head_bytes;
    }

    const std::uint8_t* data;
    std::int64_t page_bytes, token_bytes, head_bytes;
  };

  TokenSource(KvLayout layout, const LatentFormat& format, const ConstTensorView& keys,
              const ConstTensorView& values, int page_size, bool indexed, const ConstTensorView& entries);

  /// Adds the token at an offset of a page.
  void add(std::int64_t page, std::int64_t offset, int kv_head, int position, Tokens& tokens) const;
  Tokens paged(int request, int kv_head, int begin, int end) const;
  Tokens indexed(int request, int query_token, int kv_head, int begin, int end) const;

  ConstTensorView entries_;  // the page table, or indices
  bool indexed_, latent_;
  const LatentFormat* format_;
  int page_size_;
  std::int64_t pages_;
  Places rows_, values_;
};

}  // namespace flashlatent::cpu
