// The format of a latent cache, from its dtype and last dimension.
#pragma once

#include "core/e4m3_latent.h"
#include "core/fp8_584.h"
#include "core/fp8_656.h"
#include "flashlatent/problem.h"

namespace flashlatent {

/// kPlain, kFp8_656, kFp8_584 or kE4m3. A uint8 cache with any other last dimension counts as kFp8_656, whose
/// checks refuse it.
inline KvFormat latent_format(const ConstTensorView& view) {
  if (view.dtype != Dtype::kU8) return KvFormat::kPlain;
  const std::int64_t last = view.rank > 0 ? view.shape[view.rank - 1] : 0;
  if (last == fp8_584::kTokenBytes) return KvFormat::kFp8_584;
  return last == e4m3_latent::kDim || last == e4m3_latent::kLatentDim ? KvFormat::kE4m3 : KvFormat::kFp8_656;
}

/// Elements of a token. `last`: the last dimension, which kPlain has as many elements as.
inline std::int64_t elements_of(KvFormat format, std::int64_t last) {
  switch (format) {
    case KvFormat::kFp8_656:
      return fp8_656::kDim;
    case KvFormat::kFp8_584:
      return fp8_584::kDim;
    case KvFormat::kPlain:
    case KvFormat::kE4m3:
      break;
  }
  return last;
}

/// Elements of the RoPE part, where the format fixes their number; else `otherwise`.
inline std::int64_t rope_of(KvFormat format, std::int64_t otherwise) {
  static_assert(fp8_656::kRopeDim == fp8_584::kRopeDim);
  return format == KvFormat::kFp8_656 || format == KvFormat::kFp8_584 ? fp8_656::kRopeDim : otherwise;
}

/// The last dimension of a cache whose tokens have `elements` elements.
inline std::int64_t last_extent(KvFormat format, std::int64_t elements) {
  switch (format) {
    case KvFormat::kFp8_656:
      return fp8_656::kTokenBytes;
    case KvFormat::kFp8_584:
      return fp8_584::kTokenBytes;
    case KvFormat::kPlain:
    case KvFormat::kE4m3:
      break;
  }
  return elements;
}

}  // namespace flashlatent
