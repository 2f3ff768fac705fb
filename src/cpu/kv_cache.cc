// Operations on latent caches: finds rows by their strides, converts them (rows.h), on threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/latent_format.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/scaled_e4m3.h"
#include "cpu/cache_arguments.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"
#include "cpu/rows.h"

namespace flashlatent::cpu {

namespace {

/// The byte of an element, found by the tensor's strides.
template <class Byte, class View>
Byte* at(const View& view, std::int64_t i, std::int64_t j, std::int64_t k = 0) {
  const std::int64_t offset = i * view.strides[0] + j * view.strides[1] + k * view.strides[2];
  return static_cast<Byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

const std::uint16_t* halves(const std::uint8_t* bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes);
}
std::uint16_t* halves(std::uint8_t* bytes) {
  return reinterpret_cast<std::uint16_t*>(bytes);
}

/// The bytes of a token. Only fp8_584 has its scales apart.
template <class Byte>
struct Token {
  Byte* data;
  Byte* scales;
};

/// The token of a cache.
template <class Byte, class View>
Token<Byte> token_at(const View& cache, std::int64_t page, std::int64_t offset, std::int64_t head = 0) {
  if (latent_format(cache) != KvFormat::kFp8_584) return {at<Byte>(cache, page, offset, head), nullptr};
  Byte* begin = at<Byte>(cache, page, 0);
  return {begin + fp8_584::data_offset(offset), begin + fp8_584::scale_offset(cache.shape[1], offset)};
}

/// The token of a gathered row: an fp8_584 row is a page of one token.
Token<std::uint8_t> row_at(const TensorView& rows, std::int64_t row, std::int64_t head) {
  auto* begin = at<std::uint8_t>(rows, row, head);
  return {begin, begin + fp8_584::scale_offset(1, 0)};
}

/// The scale of an e4m3 cache; 1 where absent.
float scale_of(const ConstTensorView& scale) {
  return scale.present() ? *static_cast<const float*>(scale.data) : 1.0F;
}
/// The scales of two caches.
struct Scales {
  float from = 1, to = 1;
};

/// Converts e4m3 codes from one scale to another.
void rescale_codes(const std::uint8_t* from, std::int64_t count, const Scales& scales, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = fp8_656::encode_scaled(fp8_656::decode_scaled(from[i], scales.from), scales.to);
  }
}

/// Copies one token between equal formats, or from or to a plain one. `last`: elements of a plain token.
void copy_token(const Token<const std::uint8_t>& from, KvFormat format, Dtype from_dtype, std::int64_t last,
                const Token<std::uint8_t>& to, KvFormat to_format, Dtype to_dtype, const Scales& scales) {
  if (format == to_format && from_dtype == to_dtype) {
    if (scales.from != scales.to) return rescale_codes(from.data, last, scales, to.data);
    const bool apart = format == KvFormat::kFp8_584;
    std::memcpy(to.data, from.data, apart ? fp8_584::kDataBytes : last * size_of(from_dtype));
    if (apart) std::memcpy(to.scales, from.scales, fp8_584::kScaleBytes);
    return;
  }
  switch (format) {
    case KvFormat::kFp8_656:
      return dequantise_656(from.data, true, to_dtype, halves(to.data));
    case KvFormat::kFp8_584:
      return dequantise_584(from.data, from.scales, to_dtype, halves(to.data));
    case KvFormat::kE4m3:
      return dequantise_e4m3(from.data, static_cast<int>(last), scales.from, to_dtype, halves(to.data));
    case KvFormat::kPlain:
      break;
  }
  switch (to_format) {
    case KvFormat::kFp8_656:
      return quantise_656(halves(from.data), halves(from.data) + fp8_656::kLatentDim, from_dtype, to.data);
    case KvFormat::kFp8_584:
      return quantise_584(halves(from.data), halves(from.data) + fp8_584::kNopeDim, from_dtype, to.data,
                          to.scales);
    case KvFormat::kE4m3:
      return quantise_e4m3(halves(from.data), from_dtype, static_cast<int>(last), scales.to, to.data);
    case KvFormat::kPlain:
      break;
  }
  convert_row(halves(from.data), from_dtype, static_cast<int>(last), halves(to.data), to_dtype);
}

/// Do all pages exist, and is none written twice, or both read and written?
Status validate_pairs(const ConstTensorView& pairs, const ConstTensorView& from, const ConstTensorView& to) {
  std::vector<std::int64_t> sources, destinations;
  for (std::int64_t i = 0; i < pairs.shape[0]; ++i) {
    const std::int64_t offset = i * pairs.strides[0];
    for (int side = 0; side < 2; ++side) {
      const std::int64_t page = integer(pairs, offset + side);
      const std::int64_t pages = (side == 0 ? from : to).shape[0];
      if (page >= 0 && page < pages) continue;
      return invalid_argument("pairs[", i, "][", side, "] is ", page, "; ", side == 0 ? "from" : "to",
                              " has ", pages, " pages");
    }
    sources.push_back(integer(pairs, offset));
    destinations.push_back(integer(pairs, offset + 1));
  }
  std::sort(destinations.begin(), destinations.end());
  const auto twice = std::adjacent_find(destinations.begin(), destinations.end());
  if (twice != destinations.end()) {
    return invalid_argument("pairs has page ", *twice, " as a destination twice; once is accepted");
  }
  for (std::int64_t source : sources) {
    if (!same_pages(from, to) || !std::binary_search(destinations.begin(), destinations.end(), source))
      continue;
    return invalid_argument("pairs has page ", source,
                            " both as a source and a destination of one cache; one of them is accepted");
  }
  return {};
}

}  // namespace

Status append_latent(const ConstTensorView& latent, const ConstTensorView& rope,
                     const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                     const Executor& executor, const ConstTensorView& kv_scale) {
  const std::int64_t page_size = kv_cache.shape[1];
  FLASHLATENT_RETURN_IF_ERROR(validate_slots(slot_mapping, kv_cache.shape[0] * page_size));
  const std::int64_t tokens = slot_mapping.shape[0];
  const int d_latent = static_cast<int>(latent.shape[1]);
  const int d_rope = rope.present() ? static_cast<int>(rope.shape[1]) : 0;
  const KvFormat format = latent_format(kv_cache);
  const float scale = scale_of(kv_scale);
  const int threads = threads_of(executor);
  // One thread writes a slot and takes its tokens in order, so the later of two tokens for one slot stays.
  constexpr std::int64_t kNeighbours = 16;
  parallel_for(threads, threads, [&](std::int64_t thread) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t slot = integer(slot_mapping, i);
      if (slot < 0 || slot / kNeighbours % threads != thread) continue;
      const Token<std::uint8_t> to = token_at<std::uint8_t>(kv_cache, slot / page_size, slot % page_size);
      const std::uint16_t* nope = halves(at<const std::uint8_t>(latent, i, 0));
      const std::uint16_t* rotated = d_rope > 0 ? halves(at<const std::uint8_t>(rope, i, 0)) : nullptr;
      switch (format) {
        case KvFormat::kFp8_656:
          quantise_656(nope, rotated, latent.dtype, to.data);
          break;
        case KvFormat::kFp8_584:
          quantise_584(nope, rotated, latent.dtype, to.data, to.scales);
          break;
        case KvFormat::kE4m3:
          quantise_e4m3(nope, latent.dtype, d_latent, scale, to.data);
          if (d_rope > 0) quantise_e4m3(rotated, latent.dtype, d_rope, scale, to.data + d_latent);
          break;
        case KvFormat::kPlain:
          convert_row(nope, latent.dtype, d_latent, halves(to.data), kv_cache.dtype);
          if (d_rope > 0) {
            convert_row(rotated, latent.dtype, d_rope, halves(to.data) + d_latent, kv_cache.dtype);
          }
          break;
      }
    }
  });
  return {};
}

Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor,
                     const ConstTensorView& from_scale, const ConstTensorView& to_scale) {
  const std::int64_t page_size = from.shape[1], heads = from.shape[2], tokens = from.shape[0] * page_size;
  const KvFormat format = latent_format(from), to_format = latent_format(to);
  const Scales scales{scale_of(from_scale), scale_of(to_scale)};
  parallel_for(tokens, threads_of(executor), [&](std::int64_t slot) {
    const std::int64_t page = slot / page_size, offset = slot % page_size;
    for (std::int64_t head = 0; head < heads; ++head) {
      copy_token(token_at<const std::uint8_t>(from, page, offset, head), format, from.dtype, from.shape[3],
                 token_at<std::uint8_t>(to, page, offset, head), to_format, to.dtype, scales);
    }
  });
  return {};
}

Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor, const ConstTensorView& kv_scale) {
  const std::int64_t rows = out.shape[0], heads = out.shape[1], page_size = kv_cache.shape[1];
  FLASHLATENT_RETURN_IF_ERROR(validate_rows(cu_seqlens, first_token, rows));
  const auto* begins = static_cast<const std::int32_t*>(cu_seqlens.data);
  const auto* ends = begins + cu_seqlens.shape[0];
  const KvFormat format = latent_format(kv_cache), to_format = latent_format(out);
  const Scales scales{scale_of(kv_scale), scale_of(kv_scale)};
  parallel_for(rows, threads_of(executor), [&](std::int64_t row) {
    const std::int64_t request = std::upper_bound(begins, ends, row) - begins - 1;
    const std::int64_t first = first_token.present() ? integer(first_token, request) : 0;
    const std::int64_t token = first + row - begins[request];
    const std::int64_t column = token / page_size;
    const std::int64_t page =
        column < block_table.shape[1] ? integer(block_table, request * block_table.strides[0] + column) : -1;
    for (std::int64_t head = 0; head < heads; ++head) {
      const Token<std::uint8_t> to = row_at(out, row, head);
      if (page < 0 || page >= kv_cache.shape[0]) {
        std::memset(to.data, 0, out.shape[2] * size_of(out.dtype));
      } else {
        copy_token(token_at<const std::uint8_t>(kv_cache, page, token % page_size, head), format,
                   kv_cache.dtype, kv_cache.shape[3], to, to_format, out.dtype, scales);
      }
    }
  });
  return {};
}

Status copy_pages(const ConstTensorView& from, const TensorView& to, const ConstTensorView& pairs,
                  const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_pairs(pairs, from, to));
  // A page has up to three dimensions before its rows; the last of them is often 1.
  const int last = from.rank - 1;
  const std::int64_t a = from.shape[1], b = from.shape[2], c = from.rank == 5 ? from.shape[3] : 1;
  parallel_for(pairs.shape[0] * a, threads_of(executor), [&](std::int64_t i) {
    const std::int64_t pair = i / a * pairs.strides[0];
    for (std::int64_t row = 0; row < b * c; ++row) {
      auto place = [&](const auto& view, std::int64_t page) {
        return at<const std::uint8_t>(view, page, i % a, row / c) +
               (from.rank == 5 ? row % c * view.strides[3] : 0) *
                   static_cast<std::int64_t>(size_of(view.dtype));
      };
      std::memcpy(const_cast<std::uint8_t*>(place(to, integer(pairs, pair + 1))),
                  place(from, integer(pairs, pair)), from.shape[last] * size_of(from.dtype));
    }
  });
  return {};
}

}  // namespace flashlatent::cpu
