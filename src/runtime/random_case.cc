#include "runtime/random_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "core/element.h"
#include "core/fp8_656.h"

namespace flashlatent::runtime {

namespace {

constexpr int kPad = 16;       // bytes that a strided tensor's rows are longer than needed
constexpr int kPagePad = 128;  // and its pages
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int pages(const CaseSpec& spec, int length) {
  return (length + spec.page_size - 1) / spec.page_size;
}

class Maker {
 public:
  Maker(const CaseSpec& spec, std::uint64_t seed) : spec_(spec), engine_(seed) {}

  RandomCase make() {
    case_.problem = problem_of(spec_);
    make_cache();
    spec_.sparse ? make_indices() : make_page_table();
    make_query();
    make_sink();
    return std::move(case_);
  }

 private:
  int batch() const { return static_cast<int>(spec_.lengths.size()); }
  int pages_of(int length) const { return pages(spec_, length); }
  std::uint16_t normal() { return from_float(normal_(engine_), spec_.dtype); }

  template <class T>
  T* allocate(std::int64_t count) {
    case_.storage.emplace_back(std::max<std::int64_t>(count, 1) * sizeof(T));
    return reinterpret_cast<T*>(case_.storage.back().data());
  }

  std::uint16_t poison() {
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
    return from_float(values[engine_() % 3], spec_.dtype);
  }

  /// -1, or beyond `count`.
  std::int32_t outside(std::int64_t count) {
    const std::int32_t values[] = {-1, static_cast<std::int32_t>(count), std::numeric_limits<int>::max(),
                                   std::numeric_limits<int>::min()};
    return values[engine_() % 4];
  }

  /// A plain row.
  void write_row(std::uint16_t* row) {
    std::generate_n(row, spec_.qk_dim, [this] { return normal(); });
  }

  /// An fp8_656 token of normal elements. Half of the groups have the writer's scale, the others any that
  /// leaves no element out of range.
  void write_token(std::uint8_t* token) {
    for (int group = 0; group < fp8_656::kGroups; ++group) {
      float values[fp8_656::kGroup], amax = 0;
      for (float& value : values) amax = std::max(amax, std::abs(value = normal_(engine_)));
      float scale = fp8_656::power_of_two(fp8_656::scale_exponent(amax));
      if (engine_() % 2 == 0)
        scale = amax / fp8_656::kLargest * (1 + static_cast<float>(engine_() % 100) / 50);
      std::memcpy(token + fp8_656::kScaleOffset + group * sizeof(scale), &scale, sizeof(scale));
      for (int i = 0; i < fp8_656::kGroup; ++i) {
        token[group * fp8_656::kGroup + i] = fp8_656::encode(values[i] / scale);
      }
    }
    for (int i = 0; i < fp8_656::kRopeDim; ++i) {
      const std::uint16_t value = normal();
      std::memcpy(token + fp8_656::kRopeOffset + i * sizeof(value), &value, sizeof(value));
    }
  }

  /// NaN in every element, or numbers with scales that are no numbers.
  void poison_token(std::uint8_t* token) {
    std::memset(token, 0xFF, fp8_656::kTokenBytes);
    if (engine_() % 2 == 0) return;
    std::memset(token, 0x38, fp8_656::kLatentDim);
    const float scale = engine_() % 2 == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN();
    for (int group = 0; group < fp8_656::kGroups; ++group) {
      std::memcpy(token + fp8_656::kScaleOffset + group * sizeof(scale), &scale, sizeof(scale));
    }
  }

  /// Gives each request its pages and writes its tokens; all else is poison.
  void make_cache() {
    const auto& cache = case_.problem.cache;
    std::int64_t used = 0;
    for (int length : spec_.lengths) used += pages_of(length);
    const std::int64_t pages = used + 3;
    std::vector<std::int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine_);
    auto next = order.begin();
    for (int length : spec_.lengths) {
      pages_.emplace_back(next, next + pages_of(length));
      next += pages_of(length);
    }
    spare_page_ = order.back();

    const bool plain = spec_.format == KvFormat::kPlain;
    ConstTensorView& view = case_.inputs.kv_cache;
    const Dtype dtype = plain ? spec_.dtype : Dtype::kU8;
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t dim = plain ? cache.qk_dim : fp8_656::kTokenBytes;
    const std::int64_t row = dim + (spec_.strided ? kPad / element : 0);
    const std::int64_t page = row * cache.heads * cache.page_size + (spec_.strided ? kPagePad / element : 0);
    auto* memory = allocate<std::uint8_t>(pages * page * element);
    view = {memory, dtype, {pages, cache.page_size, cache.heads, dim}};
    view.strides = {page, row * cache.heads, row, 1};
    if (plain) {
      auto* elements = reinterpret_cast<std::uint16_t*>(memory);
      std::generate_n(elements, pages * page, [this] { return poison(); });
    } else {
      std::memset(memory, 0xFF, pages * page);
      for (std::int64_t slot = 0; slot < pages * cache.page_size; ++slot) poison_token(at(slot));
    }
    for (int i = 0; i < batch(); ++i) {
      for (int t = 0; t < spec_.lengths[i]; ++t) {
        std::uint8_t* token = at(slot_of(i, t));
        for (int head = 0; head < cache.heads; ++head, token += row * element) {
          plain ? write_row(reinterpret_cast<std::uint16_t*>(token)) : write_token(token);
        }
      }
    }
  }

  /// Where the cache keeps a request's token.
  std::int64_t slot_of(int request, int token) const {
    return std::int64_t{pages_[request][token / spec_.page_size]} * spec_.page_size + token % spec_.page_size;
  }

  std::uint8_t* at(std::int64_t slot) {
    const ConstTensorView& view = case_.inputs.kv_cache;
    const std::int64_t offset =
        slot / spec_.page_size * view.strides[0] + slot % spec_.page_size * view.strides[1];
    auto* memory = static_cast<std::uint8_t*>(const_cast<void*>(view.data));  // this case's own
    return memory + offset * static_cast<std::int64_t>(size_of(view.dtype));
  }

  void make_page_table() {
    const std::int64_t columns = case_.problem.cache.max_pages;
    auto* lengths = allocate<std::int32_t>(batch());
    std::copy(spec_.lengths.begin(), spec_.lengths.end(), lengths);
    case_.inputs.cache_seqlens = {lengths, Dtype::kI32, {batch()}};
    auto* table = allocate<std::int32_t>(batch() * columns);
    case_.inputs.block_table = {table, Dtype::kI32, {batch(), columns}};
    for (std::int64_t i = 0; i < batch() * columns; ++i) {
      const std::vector<std::int32_t>& pages = pages_[i / columns];
      if (i % columns >= static_cast<std::int64_t>(pages.size())) {
        table[i] = static_cast<std::int32_t>(engine_());  // never read
      } else {
        const bool invalid = spec_.invalid_pages && engine_() % 3 == 0;
        table[i] = invalid ? outside(case_.inputs.kv_cache.shape[0]) : pages[i % columns];
      }
    }
  }

  void make_indices() {
    const auto& query = case_.problem.query;
    const std::int64_t slots = case_.inputs.kv_cache.shape[0] * spec_.page_size;
    if (!spec_.topk_lengths.empty()) {
      auto* lengths = allocate<std::int32_t>(batch());
      std::copy(spec_.topk_lengths.begin(), spec_.topk_lengths.end(), lengths);
      case_.inputs.topk_length = {lengths, Dtype::kI32, {batch()}};
    }
    const std::int64_t rows = std::int64_t{batch()} * query.tokens;
    auto* indices = allocate<std::int32_t>(rows * spec_.topk);
    case_.inputs.indices = {indices, Dtype::kI32, {batch(), query.tokens, spec_.topk}};
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto request = static_cast<int>(row / query.tokens);
      const int length = spec_.lengths[request];
      const bool all_skipped = length == 0 || (spec_.skipped_indices > 0 && row % 3 == 2);
      const int read = spec_.topk_lengths.empty() ? spec_.topk : spec_.topk_lengths[request];
      for (int i = 0; i < spec_.topk; ++i, ++indices) {
        const bool skipped = all_skipped || uniform_(engine_) < spec_.skipped_indices;
        if (i >= read && engine_() % 2 == 0) {
          *indices = spare_page_ * spec_.page_size;  // poison, never read
        } else {
          *indices =
              skipped ? outside(slots) : static_cast<std::int32_t>(slot_of(request, engine_() % length));
        }
      }
    }
  }

  void make_query() {
    const auto& query = case_.problem.query;
    const std::int64_t dim = spec_.qk_dim + (spec_.strided ? kPad / 2 : 0);
    std::int64_t tokens = std::int64_t{query.batch} * query.tokens;
    if (query.ragged) {
      auto* begins = allocate<std::int32_t>(batch() + 1);
      begins[0] = 0;
      std::partial_sum(spec_.ragged_tokens.begin(), spec_.ragged_tokens.end(), begins + 1);
      case_.inputs.cu_seqlens_q = {begins, Dtype::kI32, {batch() + 1}};
      tokens = begins[batch()];
    }
    auto* q = allocate<std::uint16_t>(tokens * query.heads * dim);
    std::generate_n(q, tokens * query.heads * dim, [this] { return poison(); });
    for (std::int64_t row = 0; row < tokens * query.heads; ++row) {
      std::generate_n(q + row * dim, spec_.qk_dim, [this] { return normal(); });
    }
    ConstTensorView& view = case_.inputs.q;
    if (query.ragged) {
      view = {q, spec_.dtype, {tokens, query.heads, spec_.qk_dim}};
      view.strides = {query.heads * dim, dim, 1};
    } else {
      view = {q, spec_.dtype, {query.batch, query.tokens, query.heads, spec_.qk_dim}};
      view.strides = {query.tokens * query.heads * dim, query.heads * dim, dim, 1};
    }
  }

  void make_sink() {
    if (!spec_.sink) return;
    auto* sink = allocate<float>(spec_.heads);
    for (int head = 0; head < spec_.heads; ++head) {
      sink[head] = 3 * normal_(engine_);
      if (head % 5 == 3) sink[head] = kInfinity;
      if (head % 5 == 4) sink[head] = -kInfinity;
    }
    case_.inputs.attn_sink = {sink, Dtype::kF32, {spec_.heads}};
  }

  const CaseSpec& spec_;
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<std::vector<std::int32_t>> pages_;  // of each request
  std::int32_t spare_page_ = 0;
  RandomCase case_;
};

}  // namespace

DecodeProblem problem_of(const CaseSpec& spec) {
  DecodeProblem p;
  const int longest = spec.lengths.empty() ? 0 : *std::max_element(spec.lengths.begin(), spec.lengths.end());
  const std::vector<int>& ragged = spec.ragged_tokens;
  p.query = {static_cast<int>(spec.lengths.size()), spec.query_tokens, spec.heads, !ragged.empty()};
  if (p.query.ragged) p.query.tokens = std::max(1, *std::max_element(ragged.begin(), ragged.end()));
  p.cache = {spec.format, spec.dtype, spec.kv_heads, spec.qk_dim, spec.v_dim, spec.page_size, 0};
  p.cache.max_pages = spec.sparse ? 0 : pages(spec, longest) + 2;
  p.sparse = {spec.sparse, spec.sparse ? spec.topk : 0};
  p.options = {spec.logit_scale / std::sqrt(static_cast<float>(spec.qk_dim)), spec.causal, spec.sink,
               spec.batch_invariant};
  return p;
}

RandomCase make_case(const CaseSpec& spec, std::uint64_t seed) {
  return Maker(spec, seed).make();
}

}  // namespace flashlatent::runtime
