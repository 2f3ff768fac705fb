// Operations on separate keys and values: an element is found by its token, KV head and place in the row,
// whatever the layout.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/element.h"
#include "core/message.h"
#include "core/scaled_e4m3.h"
#include "cpu/cache_arguments.h"
#include "cpu/cpu_backend.h"

namespace flashlatent::cpu {

namespace {

/// Keys or values: of a cache, or contiguous rows (then a page is a row, and has one token).
class Rows {
 public:
  /// (n, h_kv, d)
  explicit Rows(const ConstTensorView& rows)
      : Rows(rows, {}, rows.shape[2], rows.shape[2], {rows.strides[0], 0, rows.strides[1], 0}) {}

  static Rows of_keys(const ConstTensorView& keys, const ConstTensorView& scale) {
    const auto& s = keys.strides;
    if (keys.rank == 4) return {keys, scale, keys.shape[3], keys.shape[3], {s[0], s[1], s[2], 0}};
    return {keys, scale, keys.shape[2] * keys.shape[4], keys.shape[4], {s[0], s[3], s[1], s[2]}};
  }
  /// Whether values are packed only the keys show.
  static Rows of_values(const ConstTensorView& values, const ConstTensorView& scale, bool packed) {
    const auto& s = values.strides;
    if (!packed) return {values, scale, values.shape[3], values.shape[3], {s[0], s[1], s[2], 0}};
    return {values, scale, values.shape[2], 1, {s[0], s[3], s[1], s[2]}};
  }

  std::int64_t dim() const { return dim_; }

  /// One row, by way of fp32 where it is not the same.
  void copy(std::int64_t page, std::int64_t token, const Rows& to, std::int64_t to_page,
            std::int64_t to_token, std::int64_t head, float* scratch) const {
    if (dtype_ == to.dtype_ && (dtype_ != Dtype::kU8 || scale(head) == to.scale(head))) {
      const std::int64_t run = std::min(run_, to.run_);  // one of them divides the other
      for (std::int64_t d = 0; d < dim_; d += run) {
        std::memcpy(to.at(to_page, to_token, head, d), at(page, token, head, d), run * size_of(dtype_));
      }
      return;
    }
    load(page, token, head, scratch);
    to.store(to_page, to_token, head, scratch);
  }

  void clear(std::int64_t page, std::int64_t token, std::int64_t head, float* scratch) const {
    std::fill_n(scratch, dim_, 0.0F);
    store(page, token, head, scratch);
  }

 private:
  struct Strides {
    std::int64_t page, token, head, run;
  };

  Rows(const ConstTensorView& view, const ConstTensorView& scale, std::int64_t dim, std::int64_t run,
       const Strides& strides)
      : data_(static_cast<std::uint8_t*>(const_cast<void*>(view.data))),
        dtype_(view.dtype),
        scale_(scale),
        dim_(dim),
        run_(run),
        strides_(strides) {}

  std::uint8_t* at(std::int64_t page, std::int64_t token, std::int64_t head, std::int64_t d) const {
    const std::int64_t offset = page * strides_.page + token * strides_.token + head * strides_.head +
                                d / run_ * strides_.run + d % run_;
    return data_ + offset * static_cast<std::int64_t>(size_of(dtype_));
  }

  float scale(std::int64_t head) const {
    if (!scale_.present()) return 1;
    return static_cast<const float*>(scale_.data)[scale_.shape[0] > 1 ? head : 0];
  }

  void load(std::int64_t page, std::int64_t token, std::int64_t head, float* row) const {
    const float factor = scale(head);
    for (std::int64_t d = 0; d < dim_; ++d) {
      const std::uint8_t* from = at(page, token, head, d);
      row[d] = dtype_ == Dtype::kU8 ? fp8_656::decode_scaled(*from, factor)
                                    : to_float(*reinterpret_cast<const std::uint16_t*>(from), dtype_);
    }
  }

  void store(std::int64_t page, std::int64_t token, std::int64_t head, const float* row) const {
    const float factor = scale(head);
    for (std::int64_t d = 0; d < dim_; ++d) {
      std::uint8_t* to = at(page, token, head, d);
      if (dtype_ == Dtype::kU8) {
        *to = fp8_656::encode_scaled(row[d], factor);
      } else {
        *reinterpret_cast<std::uint16_t*>(to) = from_float(row[d], dtype_);
      }
    }
  }

  std::uint8_t* data_;
  Dtype dtype_;
  ConstTensorView scale_;
  std::int64_t dim_, run_;
  Strides strides_;
};

/// A cache's tensors, or rows.
struct Pair {
  Rows keys, values;

  static Pair of(const ConstKeyValueCache& cache) {
    return {Rows::of_keys(cache.keys, cache.key_scale),
            Rows::of_values(cache.values, cache.value_scale, cache.keys.rank == 5)};
  }

  void copy(std::int64_t page, std::int64_t token, const Pair& to, std::int64_t to_page,
            std::int64_t to_token, std::int64_t heads, std::vector<float>& scratch) const {
    scratch.resize(std::max(keys.dim(), values.dim()));
    for (std::int64_t head = 0; head < heads; ++head) {
      keys.copy(page, token, to.keys, to_page, to_token, head, scratch.data());
      values.copy(page, token, to.values, to_page, to_token, head, scratch.data());
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
  const int threads = threads_of(executor);
  // A slot belongs to one thread, which takes the tokens in order: of two for one slot the later one stays.
  constexpr std::int64_t kNeighbours = 16;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    std::vector<float> scratch;
    for (std::int64_t i = 0; i < slot_mapping.shape[0]; ++i) {
      const std::int64_t slot = integer(slot_mapping, i);
      if (slot < 0 || slot / kNeighbours % threads != thread) continue;
      from.copy(i, 0, to, slot / page_size, slot % page_size, heads, scratch);
    }
  }
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
#pragma omp parallel for schedule(static) num_threads(threads_of(executor))
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<float> scratch(std::max(to.keys.dim(), to.values.dim()));
    const std::int64_t request = std::upper_bound(begins, ends, row) - begins - 1;
    const std::int64_t first = first_token.present() ? integer(first_token, request) : 0;
    const std::int64_t token = first + row - begins[request];
    const std::int64_t column = token / page_size;
    const std::int64_t page =
        column < block_table.shape[1] ? integer(block_table, request * block_table.strides[0] + column) : -1;
    if (page >= 0 && page < cache.keys.shape[0]) {
      from.copy(page, token % page_size, to, row, 0, heads, scratch);
      continue;
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      to.keys.clear(row, 0, head, scratch.data());
      to.values.clear(row, 0, head, scratch.data());
    }
  }
  return {};
}

Status convert_kv(const ConstKeyValueCache& from_cache, const KeyValueCache& to_cache,
                  const Executor& executor) {
  const Pair from = Pair::of(from_cache), to = Pair::of(to_cache);
  const std::int64_t page_size = page_size_of(from_cache);
  const std::int64_t heads = from_cache.keys.shape[from_cache.keys.rank == 5 ? 1 : 2];
#pragma omp parallel for schedule(static) num_threads(threads_of(executor))
  for (std::int64_t page = 0; page < from_cache.keys.shape[0]; ++page) {
    std::vector<float> scratch;
    for (std::int64_t token = 0; token < page_size; ++token) {
      from.copy(page, token, to, page, token, heads, scratch);
    }
  }
  return {};
}

}  // namespace flashlatent::cpu
