// Which format a latent cache is of: its dtype, and of bytes its last dimension, tell.
#pragma once

#include "core/e4m3_latent.h"
#include "core/fp8_584.h"
#include "core/fp8_656.h"
#include "flashlatent/problem.h"

namespace flashlatent {

/// kPlain, kFp8_656, kFp8_584 or kE4m3; of bytes with any other last dimension kFp8_656, which refuses it.
inline KvFormat latent_format(const ConstTensorView& view) {
  if (view.dtype != Dtype::kU8) return KvFormat::kPlain;
  const std::int64_t last = view.rank > 0 ? view.shape[view.rank - 1] : 0;
  if (last == fp8_584::kTokenBytes) return KvFormat::kFp8_584;
  return last == e4m3_latent::kDim || last == e4m3_latent::kLatentDim ? KvFormat::kE4m3 : KvFormat::kFp8_656;
}

/// Elements of a token of a format; kPlain: `last`, the last dimension.
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

/// Those of its RoPE part, where the format fixes that; else `otherwise`.
inline std::int64_t rope_of(KvFormat format, std::int64_t otherwise) {
  static_assert(fp8_656::kRopeDim == fp8_584::kRopeDim);
  return format == KvFormat::kFp8_656 || format == KvFormat::kFp8_584 ? fp8_656::kRopeDim : otherwise;
}

/// The last dimension of a cache of a format whose tokens have so many elements.
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
