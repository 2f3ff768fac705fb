// The keys and values of a block as rows of bf16 or fp16: in the cache, or converted into scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/block_math.h"
#include "cpu/tokens.h"
#include "flashlatent/decode.h"

namespace flashlatent::cpu {

class KvRows {
 public:
  KvRows(const DecodeProblem& problem, const DecodeInputs& inputs)
      : cache_(problem.cache), key_cache_(inputs.key_cache), value_cache_(inputs.value_cache) {}

  /// Bytes of scratch memory for a block, a multiple of 64; 0 where rows are read in the cache.
  static std::size_t scratch_bytes(const DecodeProblem::Cache& cache);

  /// Sets the rows of `block`, and prefetches those of `next` if it can. e4m3 elements are converted exactly,
  /// without their scale.
  void fetch(const Tokens& tokens, const Tokens& next, std::uint8_t* scratch, Block& block,
             Block& ahead) const;

 private:
  void dequantise(const Tokens& tokens, const Tokens& next, std::uint8_t* scratch, Block& block) const;
  void convert(const Tokens& tokens, const Tokens& next, std::uint8_t* scratch, Block& block) const;

  template <class Element>
  void gather(const Tokens& tokens, std::uint8_t* keys, std::uint8_t* values) const;

  const DecodeProblem::Cache& cache_;
  const ConstTensorView& key_cache_;
  const ConstTensorView& value_cache_;
};

}  // namespace flashlatent::cpu
