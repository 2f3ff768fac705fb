// Operations on latent caches: finds rows by their strides, converts them (rows.h), on threads.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/element.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/scaled_e4m3.h"
#include "cpu/cache_arguments.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"
#include "cpu/rows.h"
#include "cpu/token_rows.h"

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

/// The token of a cache.
template <class Token, class Byte, class View>
Token token_of(const LatentFormat& format, const View& cache, std::int64_t page, std::int64_t offset,
               std::int64_t head) {
  if (!format.is_record()) return {at<Byte>(cache, page, offset, head), nullptr};
  Byte* begin = at<Byte>(cache, page, 0);
  return {begin + format.data_at(offset, cache.strides[1]),
          begin + format.scales_at(cache.shape[1], offset, cache.strides[1])};
}
ConstTokenBytes token_at(const LatentFormat& format, const ConstTensorView& cache, std::int64_t page,
                         std::int64_t offset, std::int64_t head = 0) {
  return token_of<ConstTokenBytes, const std::uint8_t>(format, cache, page, offset, head);
}
TokenBytes written_token_at(const LatentFormat& format, const TensorView& cache, std::int64_t page,
                            std::int64_t offset, std::int64_t head = 0) {
  return token_of<TokenBytes, std::uint8_t>(format, cache, page, offset, head);
}

/// The token of a gathered row, which is a page of one token.
TokenBytes row_at(const LatentFormat& format, const TensorView& rows, std::int64_t row, std::int64_t head) {
  auto* begin = at<std::uint8_t>(rows, row, head);
  return {begin, begin + format.scales_at(1, 0, 0)};
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

/// One side of a move of tokens.
struct Side {
  const LatentFormat& format;
  Dtype dtype;
  float scale = 1;         // of an e4m3 cache
  int least_exponent = 0;  // of what is written
};

/// Moves tokens from one cache to another with as many elements, `count` each.
class Mover {
 public:
  Mover(const Side& from, const Side& to, std::int64_t count)
      : from_(from), to_(to), count_(static_cast<int>(count)) {}

  void operator()(ConstTokenBytes from, TokenBytes to) {
    if (from_.format.format == to_.format.format && from_.dtype == to_.dtype) {
      copy(from, to);
    } else if (!from_.format.plain() && !to_.format.plain()) {
      read(from);
      write(to);
    } else if (!from_.format.plain()) {
      dequantise(from, to);
    } else {
      write_elements(halves(from.data), from_.dtype, to);
    }
  }

  /// Writes a token of fp32.
  void write_numbers(const float* row, TokenBytes to) const {
    const LatentFormat& format = to_.format;
    if (format.is_record()) {
      quantise_token(format, to_.least_exponent, row, to);
    } else if (format.plain()) {
      for (int i = 0; i < count_; ++i) halves(to.data)[i] = from_float(row[i], to_.dtype);
    } else {
      quantise_e4m3(row, count_, to_.scale, to.data);
    }
  }

  /// Writes a token of 16-bit elements.
  void write_elements(const std::uint16_t* row, Dtype dtype, TokenBytes to) const {
    const LatentFormat& format = to_.format;
    if (format.is_record()) {
      quantise_token(format, to_.least_exponent, row, row + format.scaled_dim(), dtype, to);
    } else if (format.plain()) {
      convert_row(row, dtype, count_, halves(to.data), to_.dtype);
    } else {
      quantise_e4m3(row, dtype, count_, to_.scale, to.data);
    }
  }

 private:
  void copy(ConstTokenBytes from, TokenBytes to) const {
    const LatentFormat& format = from_.format;
    if (from_.scale != to_.scale) return rescale_codes(from.data, count_, {from_.scale, to_.scale}, to.data);
    const int data = std::min(format.data_bytes, to_.format.data_bytes);
    std::memcpy(to.data, from.data,
                format.is_record() ? data : count_ * static_cast<std::int64_t>(size_of(from_.dtype)));
    if (format.apart() || to_.format.apart()) std::memcpy(to.scales, from.scales, format.scale_bytes);
  }
  void dequantise(ConstTokenBytes from, TokenBytes to) const {
    if (from_.format.is_record())
      return dequantise_token(from_.format, from, true, to_.dtype, halves(to.data));
    dequantise_e4m3(from.data, count_, from_.scale, to_.dtype, halves(to.data));
  }
  void read(ConstTokenBytes from) {
    if (from_.format.is_record()) return dequantise_token(from_.format, from, row_.data());
    dequantise_e4m3(from.data, count_, from_.scale, row_.data());
  }
  void write(TokenBytes to) const {
    if (to_.format.is_record()) return quantise_token(to_.format, to_.least_exponent, row_.data(), to);
    quantise_e4m3(row_.data(), count_, to_.scale, to.data);
  }

  const Side from_, to_;
  const int count_;
  std::array<float, e4m3_latent::kDim> row_;  // elements between two formats of bytes, which have no more
};

/// How many of a token's elements are quantised: the first ones.
std::int64_t scaled_elements(const LatentFormat& format, std::int64_t elements) {
  return format.plain() ? 0 : elements - format.rope_dim;
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
                     const Executor& executor, const ConstTensorView& kv_scale, const CacheFormat& said,
                     const TokenEdges& edges) {
  const std::int64_t page_size = kv_cache.shape[1];
  FLASHLATENT_RETURN_IF_ERROR(validate_slots(slot_mapping, kv_cache.shape[0] * page_size));
  const std::int64_t tokens = slot_mapping.shape[0];
  const std::int64_t d_latent = latent.shape[1], d_rope = rope.present() ? rope.shape[1] : 0;
  const LatentFormat& format = format_of(said);
  const Side to{format, kv_cache.dtype, scale_of(kv_scale), least_exponent(format, said.floor)};
  const bool in_fp32 = edges::in_fp32(edges, latent.dtype);
  const edges::TokenSteps steps = edges::steps_of(edges, d_latent + d_rope, d_latent,
                                                  edges::roundings_of(edges.rounding, latent.dtype, format));
  const TokenRows rows(latent, rope, steps);
  FLASHLATENT_RETURN_IF_ERROR(rows.validate_positions(slot_mapping));
  const int threads = threads_of(executor);
  // One thread writes a slot and takes its tokens in order, so the later of two tokens for one slot stays.
  constexpr std::int64_t kNeighbours = 16;
  parallel_for(threads, threads, [&](std::int64_t thread) {
    std::vector<std::uint16_t> row(d_latent + d_rope);
    TokenRow numbers;
    const Mover move({kPlainFormat, latent.dtype}, to, d_latent + d_rope);
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t slot = integer(slot_mapping, i);
      if (slot < 0 || slot / kNeighbours % threads != thread || !rows.stores(i)) continue;
      const TokenBytes place = written_token_at(format, kv_cache, slot / page_size, slot % page_size);
      if (in_fp32) {
        rows.read(i, numbers);
        rows.round_scaled(numbers, scaled_elements(format, rows.columns()));
        move.write_numbers(numbers.data(), place);
        continue;
      }
      const std::uint16_t* elements = halves(at<const std::uint8_t>(latent, i, 0));
      if (d_rope > 0) {
        std::copy_n(elements, d_latent, row.begin());
        std::copy_n(halves(at<const std::uint8_t>(rope, i, 0)), d_rope, row.begin() + d_latent);
        elements = row.data();
      }
      move.write_elements(elements, latent.dtype, place);
    }
  });
  return {};
}

Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor,
                     const ConstTensorView& from_scale, const ConstTensorView& to_scale,
                     const CacheFormat& from_said, const CacheFormat& to_said) {
  const std::int64_t page_size = from.shape[1], heads = from.shape[2], tokens = from.shape[0] * page_size;
  const LatentFormat &format = format_of(from_said), &to_format = format_of(to_said);
  const Side source{format, from.dtype, scale_of(from_scale)};
  const Side target{to_format, to.dtype, scale_of(to_scale), least_exponent(to_format, to_said.floor)};
  const std::int64_t count = format.elements_of(from.shape[3]);
  parallel_for(tokens, threads_of(executor), [&](std::int64_t slot) {
    const std::int64_t page = slot / page_size, offset = slot % page_size;
    Mover move(source, target, count);
    for (std::int64_t head = 0; head < heads; ++head) {
      move(token_at(format, from, page, offset, head), written_token_at(to_format, to, page, offset, head));
    }
  });
  return {};
}

Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor, const ConstTensorView& kv_scale,
                    const CacheFormat& said) {
  const std::int64_t rows = out.shape[0], heads = out.shape[1], page_size = kv_cache.shape[1];
  FLASHLATENT_RETURN_IF_ERROR(validate_rows(cu_seqlens, first_token, rows));
  const auto* begins = static_cast<const std::int32_t*>(cu_seqlens.data);
  const auto* ends = begins + cu_seqlens.shape[0];
  const LatentFormat& format = format_of(said);
  const LatentFormat& to_format = out.dtype == Dtype::kU8 ? format : kPlainFormat;
  const Side source{format, kv_cache.dtype, scale_of(kv_scale)};
  const Side target{to_format, out.dtype, out.dtype == Dtype::kU8 ? scale_of(kv_scale) : 1.0F};
  const std::int64_t count = format.elements_of(kv_cache.shape[3]);
  parallel_for(rows, threads_of(executor), [&](std::int64_t row) {
    const std::int64_t request = std::upper_bound(begins, ends, row) - begins - 1;
    const std::int64_t first = first_token.present() ? integer(first_token, request) : 0;
    const std::int64_t token = first + row - begins[request];
    const std::int64_t column = token / page_size;
    const std::int64_t page =
        column < block_table.shape[1] ? integer(block_table, request * block_table.strides[0] + column) : -1;
    Mover move(source, target, count);
    for (std::int64_t head = 0; head < heads; ++head) {
      const TokenBytes to = row_at(to_format, out, row, head);
      if (page < 0 || page >= kv_cache.shape[0]) {
        std::memset(to.data, 0, out.shape[2] * size_of(out.dtype));
      } else {
        move(token_at(format, kv_cache, page, token % page_size, head), to);
      }
    }
  });
  return {};
}

Status copy_pages(const ConstTensorView& from, const TensorView& to, const ConstTensorView& pairs,
                  const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_pairs(pairs, from, to));
  // A page is rows of the last dimension, in up to three others.
  const int last = from.rank - 1;
  std::int64_t rows = 1;
  for (int i = 1; i < last; ++i) rows *= from.shape[i];
  const std::int64_t bytes = from.shape[last] * static_cast<std::int64_t>(size_of(from.dtype));
  parallel_for(pairs.shape[0] * rows, threads_of(executor), [&](std::int64_t item) {
    const std::int64_t pair = item / rows * pairs.strides[0];
    auto place = [&](const auto& view, std::int64_t page) {
      std::int64_t offset = page * view.strides[0], rest = item % rows;
      for (int i = last - 1; i > 0; --i) {
        offset += rest % view.shape[i] * view.strides[i];
        rest /= view.shape[i];
      }
      return static_cast<std::uint8_t*>(const_cast<void*>(static_cast<const void*>(view.data))) +
             offset * static_cast<std::int64_t>(size_of(view.dtype));
    };
    std::memcpy(place(to, integer(pairs, pair + 1)), place(from, integer(pairs, pair)), bytes);
  });
  return {};
}

}  // namespace flashlatent::cpu
