// Operations on separate keys and values. An element is found by its token, KV head and place in the row,
// whatever the layout. Consecutive tokens of a page are copied together: a cache line of packed values has
// one element of each of many tokens.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "core/element.h"
#include "core/message.h"
#include "core/scaled_e4m3.h"
#include "cpu/cache_arguments.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"

namespace flashlatent::cpu {

namespace {

/// The most tokens that are copied together: as many e4m3 elements as a cache line has.
constexpr std::int64_t kMostTokens = 64;

/// The first of some consecutive tokens of a page.
struct Place {
  std::int64_t page, token;
};

/// Keys or values, of a cache or as contiguous rows (which count as one page).
class Rows {
 public:
  /// (n, h_kv, d)
  explicit Rows(const ConstTensorView& rows)
      : Rows(rows, {}, rows.shape[2], rows.shape[2], {0, rows.strides[0], rows.strides[1], 0}) {}

  static Rows of_keys(const ConstTensorView& keys, const ConstTensorView& scale) {
    const auto& s = keys.strides;
    if (keys.rank == 4) return {keys, scale, keys.shape[3], keys.shape[3], {s[0], s[1], s[2], 0}};
    return {keys, scale, keys.shape[2] * keys.shape[4], keys.shape[4], {s[0], s[3], s[1], s[2]}};
  }
  /// `packed` is an argument because only the keys' rank shows it.
  static Rows of_values(const ConstTensorView& values, const ConstTensorView& scale, bool packed) {
    const auto& s = values.strides;
    if (!packed) return {values, scale, values.shape[3], values.shape[3], {s[0], s[1], s[2], 0}};
    return {values, scale, values.shape[2], 1, {s[0], s[3], s[1], s[2]}};
  }

  /// Copies `count` tokens; through fp32 where dtypes or scales differ.
  void copy(const Place& from, const Rows& to, const Place& place, std::int64_t count, std::int64_t head,
            std::vector<float>& scratch) const {
    if (dtype_ == to.dtype_ && (dtype_ != Dtype::kU8 || scale(head) == to.scale(head))) {
      if (size_of(dtype_) == 1) return copy_elements<std::uint8_t>(from, to, place, count, head);
      return copy_elements<std::uint16_t>(from, to, place, count, head);
    }
    scratch.resize(kMostTokens * dim_);
    load(from, count, head, scratch.data());
    to.store(place, count, head, scratch.data());
  }

  void clear(const Place& place, std::int64_t count, std::int64_t head, std::vector<float>& scratch) const {
    scratch.assign(kMostTokens * dim_, 0.0F);
    store(place, count, head, scratch.data());
  }

 private:
  struct Strides {
    std::int64_t page, token, head, run;
  };

  /// Runs of `run` elements are contiguous: all `dim`, or a power of two.
  Rows(const ConstTensorView& view, const ConstTensorView& scale, std::int64_t dim, std::int64_t run,
       const Strides& strides)
      : data_(static_cast<std::uint8_t*>(const_cast<void*>(view.data))),
        dtype_(view.dtype),
        scale_(scale),
        dim_(dim),
        run_(run),
        strides_(strides) {}

  template <class Element>
  Element* at(const Place& place, std::int64_t head) const {
    return reinterpret_cast<Element*>(data_) + place.page * strides_.page + place.token * strides_.token +
           head * strides_.head;
  }

  /// Elements from a row's first element to its element d.
  std::int64_t offset(std::int64_t d) const {
    if (run_ == dim_) return d;
    return (d >> std::countr_zero(static_cast<std::uint64_t>(run_))) * strides_.run + (d & (run_ - 1));
  }

  template <class Element>
  void copy_elements(const Place& place, const Rows& to, const Place& to_place, std::int64_t count,
                     std::int64_t head) const {
    const Element* from_row = at<const Element>(place, head);
    Element* to_row = to.at<Element>(to_place, head);
    const std::int64_t run = std::min(run_, to.run_);  // the smaller divides the larger
    if (run > 1) {
      for (std::int64_t d = 0; d < dim_; d += run) {
        const Element* from = from_row + offset(d);
        Element* target = to_row + to.offset(d);
        for (std::int64_t t = 0; t < count; ++t, from += strides_.token, target += to.strides_.token) {
          constexpr std::size_t kUnit = 16;  // of packed keys: a move, and not a call of memcpy
          if (run * sizeof(Element) == kUnit) {
            std::memcpy(target, from, kUnit);
          } else {
            std::memcpy(target, from, run * sizeof(Element));
          }
        }
      }
      return;
    }
    // Contiguous rows, or single elements.
    const std::int64_t step = run_ == 1 ? strides_.run : 1, to_step = to.run_ == 1 ? to.strides_.run : 1;
    // columns at a time, so that their lines stay in the first-level cache
    constexpr std::int64_t kColumns = 32;
    for (std::int64_t begin = 0; begin < dim_; begin += kColumns) {
      const std::int64_t end = std::min(begin + kColumns, dim_);
      for (std::int64_t t = 0; t < count; ++t) {
        const Element* from = from_row + t * strides_.token + begin * step;
        Element* target = to_row + t * to.strides_.token + begin * to_step;
        for (std::int64_t d = begin; d < end; ++d, from += step, target += to_step) *target = *from;
      }
    }
  }

  float scale(std::int64_t head) const {
    if (!scale_.present()) return 1;
    return static_cast<const float*>(scale_.data)[scale_.shape[0] > 1 ? head : 0];
  }

  void load(const Place& place, std::int64_t count, std::int64_t head, float* rows) const {
    const float factor = scale(head);
    for (std::int64_t t = 0; t < count; ++t) {
      const Place token{place.page, place.token + t};
      float* row = rows + t * dim_;
      if (dtype_ == Dtype::kU8) {
        const auto* from = at<const std::uint8_t>(token, head);
        for (std::int64_t d = 0; d < dim_; ++d) row[d] = fp8_656::decode_scaled(from[offset(d)], factor);
      } else {
        const auto* from = at<const std::uint16_t>(token, head);
        for (std::int64_t d = 0; d < dim_; ++d) row[d] = to_float(from[offset(d)], dtype_);
      }
    }
  }

  void store(const Place& place, std::int64_t count, std::int64_t head, const float* rows) const {
    const float factor = scale(head);
    for (std::int64_t t = 0; t < count; ++t) {
      const Place token{place.page, place.token + t};
      const float* row = rows + t * dim_;
      if (dtype_ == Dtype::kU8) {
        auto* to = at<std::uint8_t>(token, head);
        for (std::int64_t d = 0; d < dim_; ++d) to[offset(d)] = fp8_656::encode_scaled(row[d], factor);
      } else {
        auto* to = at<std::uint16_t>(token, head);
        for (std::int64_t d = 0; d < dim_; ++d) to[offset(d)] = from_float(row[d], dtype_);
      }
    }
  }

  std::uint8_t* data_;
  Dtype dtype_;
  ConstTensorView scale_;
  std::int64_t dim_, run_;
  Strides strides_;
};

/// The keys and values of a cache, or of rows.
struct Pair {
  Rows keys, values;

  static Pair of(const ConstKeyValueCache& cache) {
    return {Rows::of_keys(cache.keys, cache.key_scale),
            Rows::of_values(cache.values, cache.value_scale, cache.keys.rank == 5)};
  }

  void copy(const Place& from, const Pair& to, const Place& place, std::int64_t count, std::int64_t heads,
            std::vector<float>& scratch) const {
    for (std::int64_t head = 0; head < heads; ++head) {
      keys.copy(from, to.keys, place, count, head, scratch);
      values.copy(from, to.values, place, count, head, scratch);
    }
  }
};

std::int64_t page_size_of(const ConstKeyValueCache& cache) {
  return cache.keys.shape[cache.keys.rank == 5 ? 3 : 1];
}

}  // namespace

Status append_kv(const ConstTensorView& keys, const ConstTensorView& values,
                 const ConstTensorView& slot_mapping, const KeyValueCache& cache, const Executor& executor) {
  const std::int64_t page_size = page_size_of(cache), heads = keys.shape[1];
  FLASHLATENT_RETURN_IF_ERROR(validate_slots(slot_mapping, cache.keys.shape[0] * page_size));
  const Pair from{Rows(keys), Rows(values)}, to = Pair::of(cache);
  const std::int64_t tokens = slot_mapping.shape[0];
  const int threads = threads_of(executor);
  // One thread writes a slot and takes its tokens in order, so the later of two tokens for one slot stays.
  // The slots of a cache line belong to one thread, too: threads that write to one line wait for each other
  // at each element.
  parallel_for(threads, threads, [&](std::int64_t thread) {
    std::vector<float> scratch;
    for (std::int64_t i = 0, count = 1; i < tokens; i += count) {
      const std::int64_t slot = integer(slot_mapping, i);
      count = 1;
      if (slot < 0 || slot / kMostTokens % threads != thread) continue;
      const std::int64_t most =
          std::min({kMostTokens - slot % kMostTokens, page_size - slot % page_size, tokens - i});
      while (count < most && integer(slot_mapping, i + count) == slot + count) ++count;
      from.copy({0, i}, to, {slot / page_size, slot % page_size}, count, heads, scratch);
    }
  });
  return {};
}

Status gather_kv(const ConstKeyValueCache& cache, const ConstTensorView& block_table,
                 const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                 const TensorView& keys, const TensorView& values, const Executor& executor) {
  const std::int64_t rows = keys.shape[0], heads = keys.shape[1], page_size = page_size_of(cache);
  FLASHLATENT_RETURN_IF_ERROR(validate_rows(cu_seqlens, first_token, rows));
  const Pair from = Pair::of(cache), to{Rows(keys), Rows(values)};
  const auto* begins = static_cast<const std::int32_t*>(cu_seqlens.data);
  const auto* ends = begins + cu_seqlens.shape[0];
  constexpr std::int64_t kRows = 16;  // that a thread takes at a time
  parallel_for((rows + kRows - 1) / kRows, threads_of(executor), [&](std::int64_t piece) {
    std::vector<float> scratch;
    const std::int64_t end = std::min((piece + 1) * kRows, rows);
    for (std::int64_t row = piece * kRows, count = 1; row < end; row += count) {
      const std::int64_t request = std::upper_bound(begins, ends, row) - begins - 1;
      const std::int64_t first = first_token.present() ? integer(first_token, request) : 0;
      const std::int64_t token = first + row - begins[request];
      const std::int64_t column = token / page_size;
      count = std::min({end, std::int64_t{begins[request + 1]}, row + page_size - token % page_size}) - row;
      const std::int64_t page = column < block_table.shape[1]
                                    ? integer(block_table, request * block_table.strides[0] + column)
                                    : -1;
      if (page >= 0 && page < cache.keys.shape[0]) {
        from.copy({page, token % page_size}, to, {0, row}, count, heads, scratch);
        continue;
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        to.keys.clear({0, row}, count, head, scratch);
        to.values.clear({0, row}, count, head, scratch);
      }
    }
  });
  return {};
}

Status convert_kv(const ConstKeyValueCache& from_cache, const KeyValueCache& to_cache,
                  const Executor& executor) {
  const Pair from = Pair::of(from_cache), to = Pair::of(to_cache);
  const std::int64_t page_size = page_size_of(from_cache);
  const std::int64_t heads = from_cache.keys.shape[from_cache.keys.rank == 5 ? 1 : 2];
  parallel_for(from_cache.keys.shape[0], threads_of(executor), [&](std::int64_t page) {
    std::vector<float> scratch;
    for (std::int64_t token = 0; token < page_size; token += kMostTokens) {
      const std::int64_t count = std::min(kMostTokens, page_size - token);
      from.copy({page, token}, to, {page, token}, count, heads, scratch);
    }
  });
  return {};
}

}  // namespace flashlatent::cpu
