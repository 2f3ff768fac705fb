// Operations on index keys in host memory: append, gather, and the merge of ranks' best.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/e2m1.h"
#include "core/edge_check.h"
#include "core/element.h"
#include "core/index_call.h"
#include "core/return_if_error.h"
#include "core/ue8m0.h"
#include "cpu/cache_arguments.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"
#include "cpu/token_rows.h"

namespace flashlatent::cpu {

namespace {

constexpr int kDim = index_keys::kDim, kGroup = index_keys::kGroup;

/// The largest magnitude of the finite elements, and whether there are non-finite ones.
struct Largest {
  float amax = 0;
  bool finite = true;
};
Largest largest_of(const float* x, int count) {
  Largest largest;
  for (int i = 0; i < count; ++i) {
    if (e4m3::is_finite(x[i])) {
      largest.amax = std::max(largest.amax, std::fabs(x[i]));
    } else {
      largest.finite = false;
    }
  }
  return largest;
}

void write_fp8(const float* x, std::uint8_t* data, std::uint8_t* scales) {
  const int exponent = e4m3::scale_exponent(largest_of(x, kDim).amax, e4m3::kLeastOfAmax);
  for (int i = 0; i < kDim; ++i) data[i] = index_keys::encode_fp8(x[i], exponent);
  const float scale = e4m3::power_of_two(exponent);
  std::memcpy(scales, &scale, sizeof(scale));
}

void write_mxfp4(const float* x, std::uint8_t* data, std::uint8_t* scales) {
  for (int group = 0; group < index_keys::kGroups; ++group) {
    const float* own = x + group * kGroup;
    const Largest largest = largest_of(own, kGroup);
    const int exponent = index_keys::mxfp4_exponent(largest.amax);
    const float inverse = e4m3::power_of_two(-exponent);
    scales[group] = largest.finite ? static_cast<std::uint8_t>(exponent + 127) : 0xFF;
    for (int i = 0; i < kGroup; i += 2) {
      const std::uint32_t low = e2m1::encode(e4m3::is_finite(own[i]) ? own[i] * inverse : 0);
      const std::uint32_t high = e2m1::encode(e4m3::is_finite(own[i + 1]) ? own[i + 1] * inverse : 0);
      data[(group * kGroup + i) / 2] = static_cast<std::uint8_t>(low | high << 4);
    }
  }
}

void read_key(IndexFormat format, const std::uint8_t* data, const std::uint8_t* scales, float* x) {
  float scale = 1;
  if (format == IndexFormat::kFp8_132) std::memcpy(&scale, scales, sizeof(scale));
  for (int i = 0; i < kDim; ++i) {
    x[i] = format == IndexFormat::kFp8_132
               ? scale * e4m3::decode(data[i])
               : ue8m0::scale_value(scales[i / kGroup]) * e2m1::decode(data[i / 2] >> (i % 2 * 4) & 0xFU);
  }
}

void store(const TensorView& out, std::int64_t row, const float* x) {
  const std::int64_t begin = row * out.strides[0];
  for (int i = 0; i < kDim; ++i) {
    if (out.dtype == Dtype::kF32) {
      static_cast<float*>(out.data)[begin + i] = x[i];
    } else {
      static_cast<std::uint16_t*>(out.data)[begin + i] = from_float(x[i], out.dtype);
    }
  }
}

/// The largest number x such that at least `wanted` numbers are >= x, found bit by bit; 0 if there are fewer
/// numbers.
template <class Count>
std::uint32_t kth_largest(int wanted, Count count_from) {
  std::uint32_t number = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const std::uint32_t candidate = number | 1U << bit;
    if (count_from(candidate) >= wanted) number = candidate;
  }
  return number;
}

void merge_row(const MergeCall& call, std::int64_t r, std::int64_t t) {
  auto count_if = [&](int first_rank, int last_rank, auto condition) {
    int count = 0;
    for (int rank = first_rank; rank < last_rank; ++rank) {
      const int scores = call.count_of(r, t, rank);
      for (int i = 0; i < scores; ++i) count += condition(call.key(r, t, rank, i));
    }
    return count;
  };
  const std::uint32_t last = kth_largest(call.topk, [&](std::uint32_t least) {
    return count_if(0, call.ranks, [&](std::uint32_t x) { return x >= least; });
  });
  auto is_last = [&](std::uint32_t x) { return x == last; };
  int ties = call.topk - count_if(0, call.ranks, [&](std::uint32_t x) { return x > last; });
  ties -= count_if(0, call.rank, is_last);
  std::int32_t* out = call.out.at(r, t);
  const std::int32_t* indices = call.indices.at(r, t);
  int written = 0;
  for (int i = 0; i < call.count_of(r, t, call.rank); ++i) {
    const std::uint32_t key = call.key(r, t, call.rank, i);
    if (key > last || (key == last && ties-- > 0)) out[written++] = indices[i];
  }
  std::fill(out + written, out + call.topk, -1);
  if (call.out_counts.data != nullptr) *call.out_counts.at(r, t) = written;
}

}  // namespace

Status append_index_keys(const ConstTensorView& keys, const ConstTensorView& slot_mapping,
                         const TensorView& index_cache, IndexFormat format, int page_size,
                         const Executor& executor, const TokenEdges& edges) {
  FLASHLATENT_RETURN_IF_ERROR(validate_slots(slot_mapping, index_cache.shape[0] * page_size));
  const std::int64_t n = slot_mapping.shape[0];
  const TokenRows rows(keys, {},
                       edges::steps_of(edges, kDim, kDim, edges::roundings_of(edges.rounding, keys.dtype)));
  FLASHLATENT_RETURN_IF_ERROR(rows.validate_positions(slot_mapping));
  const int threads = threads_of(executor);
  // One thread writes a slot and takes its keys in order, so the later of two keys for one slot stays.
  constexpr std::int64_t kNeighbours = 16;
  parallel_for(threads, threads, [&](std::int64_t thread) {
    TokenRow x;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t slot = integer(slot_mapping, i);
      if (slot < 0 || slot / kNeighbours % threads != thread || !rows.stores(i)) continue;
      rows.read(i, x);
      rows.round_scaled(x, kDim);
      auto* page = static_cast<std::uint8_t*>(index_cache.data) + slot / page_size * index_cache.strides[0];
      std::uint8_t* data = page + index_keys::data_offset(format, slot % page_size);
      std::uint8_t* scales = page + index_keys::scale_offset(format, page_size, slot % page_size);
      (format == IndexFormat::kFp8_132 ? write_fp8 : write_mxfp4)(x.data(), data, scales);
    }
  });
  return {};
}

Status quantize_index_queries(const ConstTensorView& q, const ConstTensorView& weights,
                              const Rotation& rotate, RotaryColumns columns, IndexFormat format,
                              const IndexQueries& out, const Executor& executor) {
  const edges::Rows from(q), codes{ConstTensorView(out.codes)}, scales{ConstTensorView(out.scales)};
  const edges::HeadNumbers given(weights), scaled{ConstTensorView(out.weights)};
  const edges::Rotary rotary = edges::rotary_of(rotate, /*back=*/false);
  const int first = columns == RotaryColumns::kLast ? kDim - rotary.columns : 0;
  FLASHLATENT_RETURN_IF_ERROR(expect_positions(rotate, kOwnRotation, q));
  const edges::IndexFactors factors(from.heads);
  const bool fp8 = format == IndexFormat::kFp8_132;
  parallel_for(from.count(), threads_of(executor), [&](std::int64_t row) {
    const edges::Place place(from, row);
    TokenRow x;
    for (int d = 0; d < kDim; ++d) x[d] = number(q.data, q.dtype, place.offset(from) + d);
    if (rotary.table != nullptr) {
      rotate_columns(x.data(), first, rotary, rotary.position(place.request, place.token));
      for (int d = first; d < first + rotary.columns; ++d)
        x[d] = to_float(from_float(x[d], q.dtype), q.dtype);
    }
    auto* data = static_cast<std::uint8_t*>(out.codes.data) + place.offset(codes);
    float scale = 1;
    if (fp8) {
      std::uint8_t bytes[sizeof(scale)];
      write_fp8(x.data(), data, bytes);
      std::memcpy(&scale, bytes, sizeof(scale));
    } else {
      write_mxfp4(x.data(), data, static_cast<std::uint8_t*>(out.scales.data) + place.offset(scales));
    }
    const float weight = number(weights.data, weights.dtype, given.offset(place));
    static_cast<float*>(out.weights.data)[scaled.offset(place)] =
        edges::scaled_weight(weight, scale, factors.dim, factors.heads);
  });
  return {};
}

Status gather_index_keys(const ConstTensorView& index_cache, const ConstTensorView& block_table,
                         const ConstTensorView& cu_seqlens, const TensorView& out, IndexFormat format,
                         int page_size, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate_rows(cu_seqlens, {}, out.shape[0]));
  const auto* table = static_cast<const std::int32_t*>(block_table.data);
  const auto* sums = static_cast<const std::int32_t*>(cu_seqlens.data);
  parallel_for(block_table.shape[0], threads_of(executor), [&](std::int64_t request) {
    const std::int64_t begin = sums[request * cu_seqlens.strides[0]];
    const std::int64_t end = sums[(request + 1) * cu_seqlens.strides[0]];
    for (std::int64_t token = 0; token < end - begin; ++token) {
      const std::int64_t column = token / page_size;
      const std::int64_t page =
          column < block_table.shape[1] ? table[request * block_table.strides[0] + column] : -1;
      float x[kDim] = {};
      if (page >= 0 && page < index_cache.shape[0]) {
        const auto* bytes =
            static_cast<const std::uint8_t*>(index_cache.data) + page * index_cache.strides[0];
        read_key(format, bytes + index_keys::data_offset(format, token % page_size),
                 bytes + index_keys::scale_offset(format, page_size, token % page_size), x);
      }
      store(out, begin + token, x);
    }
  });
  return {};
}

Status merge_topk(const MergeCall& call, const Executor& executor) {
  parallel_for(std::int64_t{call.batch} * call.tokens, threads_of(executor),
               [&](std::int64_t row) { merge_row(call, row / call.tokens, row % call.tokens); });
  return {};
}

}  // namespace flashlatent::cpu
