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
    const std::int64_t pages = make_pages();
    spec_.layout == KvLayout::kLatent ? make_cache(pages) : make_separate_caches(pages);
    spec_.sparse ? make_indices() : make_page_table();
    make_query();
    make_sink();
    make_slopes();
    return std::move(case_);
  }

 private:
  int batch() const { return static_cast<int>(spec_.lengths.size()); }
  int pages_of(int length) const { return pages(spec_, length); }
  /// The request whose pages this one shares, and how many of them: those that both fill.
  std::size_t leader_of(std::size_t request) const { return request - request % spec_.sharers; }
  int shared_pages(std::size_t request) const {
    const int shortest = std::min(spec_.lengths[request], spec_.lengths[leader_of(request)]);
    return std::max(0, std::min(spec_.shared_tokens, shortest)) / spec_.page_size;
  }
  std::uint16_t normal(float mean = 0) { return from_float(normal_(engine_) + mean, spec_.dtype); }

  /// What score_steps adds to each element of a token's key, and of a query row: qk_dim times their product
  /// is scaled to the row's share of the token's step.
  float key_mean(int token) const {
    const std::vector<float>& steps = spec_.score_steps;
    if (steps.empty()) return 0;
    return steps[token / spec_.step_tokens % steps.size()] /
           (spec_.logit_scale * std::sqrt(static_cast<float>(spec_.qk_dim)));
  }
  float query_mean(std::int64_t row) const {
    return spec_.score_steps.empty() ? 0 : 1 - static_cast<float>(row % 4) / 4;
  }

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
  void write_row(std::uint16_t* row, float mean) {
    std::generate_n(row, spec_.qk_dim, [&] { return normal(mean); });
  }

  /// An fp8_656 token of normal elements. Half of the groups have the writer's scale, the others any that
  /// leaves no element out of range.
  void write_token(std::uint8_t* token, float mean) {
    for (int group = 0; group < fp8_656::kGroups; ++group) {
      float values[fp8_656::kGroup], amax = 0;
      for (float& value : values) amax = std::max(amax, std::abs(value = normal_(engine_) + mean));
      float scale = fp8_656::power_of_two(fp8_656::scale_exponent(amax));
      if (engine_() % 2 == 0)
        scale = amax / fp8_656::kLargest * (1 + static_cast<float>(engine_() % 100) / 50);
      std::memcpy(token + fp8_656::kScaleOffset + group * sizeof(scale), &scale, sizeof(scale));
      for (int i = 0; i < fp8_656::kGroup; ++i) {
        token[group * fp8_656::kGroup + i] = fp8_656::encode(values[i] / scale);
      }
    }
    for (int i = 0; i < fp8_656::kRopeDim; ++i) {
      const std::uint16_t value = normal(mean);
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

  /// Gives each request its pages; how many pages the cache has.
  std::int64_t make_pages() {
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
      const std::size_t request = pages_.size() - 1;
      std::copy_n(pages_[leader_of(request)].begin(), shared_pages(request), pages_[request].begin());
    }
    spare_page_ = order.back();
    return pages;
  }

  /// Writes the requests' tokens; all else is poison.
  void make_cache(std::int64_t pages) {
    const auto& cache = case_.problem.cache;
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
        const float mean = key_mean(t);
        for (int head = 0; head < cache.heads; ++head, token += row * element) {
          plain ? write_row(reinterpret_cast<std::uint16_t*>(token), mean) : write_token(token, mean);
        }
      }
    }
  }

  /// The same of keys and values.
  void make_separate_caches(std::int64_t pages) {
    DecodeInputs& inputs = case_.inputs;
    const bool packed = spec_.layout == KvLayout::kPacked;
    const Dtype dtype = spec_.format == KvFormat::kE4m3 ? Dtype::kU8 : spec_.dtype;
    inputs.key_scale = make_scale();
    inputs.value_scale = make_scale();
    const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(dtype)), page_size = spec_.page_size;
    if (packed) {
      inputs.key_cache = make_poisoned(dtype, {pages, spec_.kv_heads, spec_.qk_dim / x, page_size, x});
      inputs.value_cache = make_poisoned(dtype, {pages, spec_.kv_heads, spec_.v_dim, page_size});
    } else {
      inputs.key_cache = make_poisoned(dtype, {pages, page_size, spec_.kv_heads, spec_.qk_dim});
      inputs.value_cache = make_poisoned(dtype, {pages, page_size, spec_.kv_heads, spec_.v_dim});
    }
    for (int request = 0; request < batch(); ++request) {
      for (int t = 0; t < spec_.lengths[request]; ++t) {
        const std::int64_t page = pages_[request][t / page_size], place = t % page_size;
        const float mean = key_mean(t);
        for (int head = 0; head < spec_.kv_heads; ++head) {
          for (int d = 0; d < spec_.qk_dim; ++d) {
            packed ? write(inputs.key_cache, inputs.key_scale, head, {page, head, d / x, place, d % x}, mean)
                   : write(inputs.key_cache, inputs.key_scale, head, {page, place, head, d}, mean);
          }
          for (int d = 0; d < spec_.v_dim; ++d) {
            packed ? write(inputs.value_cache, inputs.value_scale, head, {page, head, d, place})
                   : write(inputs.value_cache, inputs.value_scale, head, {page, place, head, d});
          }
        }
      }
    }
  }

  ConstTensorView make_scale() {
    if (spec_.scales == 0) return {};
    auto* scales = allocate<float>(spec_.scales);
    std::generate_n(scales, spec_.scales,
                    [this] { return static_cast<float>(0.01 + 0.02 * uniform_(engine_)); });
    return {scales, Dtype::kF32, {spec_.scales}};
  }

  ConstTensorView make_poisoned(Dtype dtype, std::initializer_list<std::int64_t> shape) {
    ConstTensorView view{nullptr, dtype, shape};
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    if (spec_.strided) {  // rows and pages are longer
      view.strides[2] += kPad / element;
      view.strides[1] = view.strides[2] * view.shape[2];
      view.strides[0] = view.strides[1] * view.shape[1] + kPagePad / element;
    }
    const std::int64_t elements = view.shape[0] * view.strides[0];
    auto* memory = allocate<std::uint8_t>(elements * element);
    if (dtype == Dtype::kU8) {
      std::generate_n(memory, elements, [this] { return engine_() % 2 == 0 ? 0x7F : 0xFF; });
    } else {
      std::generate_n(reinterpret_cast<std::uint16_t*>(memory), elements, [this] { return poison(); });
    }
    view.data = memory;
    return view;
  }

  /// A normal element; with e4m3 its code, which has no scale of its own where there is none.
  void write(const ConstTensorView& view, const ConstTensorView& scale, int head,
             std::initializer_list<std::int64_t> place, float mean = 0) {
    const std::int64_t offset =
        std::inner_product(place.begin(), place.end(), view.strides.begin(), std::int64_t{0});
    void* memory = const_cast<void*>(view.data);  // this case's own
    if (view.dtype != Dtype::kU8) {
      static_cast<std::uint16_t*>(memory)[offset] = normal(mean);
      return;
    }
    const auto* scales = static_cast<const float*>(scale.data);
    const float factor = scale.present() ? scales[spec_.scales > 1 ? head : 0] : 1;
    static_cast<std::uint8_t*>(memory)[offset] = fp8_656::encode((normal_(engine_) + mean) / factor);
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
        const ConstTensorView& cache =
            spec_.layout == KvLayout::kLatent ? case_.inputs.kv_cache : case_.inputs.key_cache;
        table[i] = invalid ? outside(cache.shape[0]) : pages[i % columns];
        const auto request = static_cast<std::size_t>(i / columns);
        if (i % columns < shared_pages(request)) table[i] = table[leader_of(request) * columns + i % columns];
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
      std::generate_n(q + row * dim, spec_.qk_dim, [&] { return normal(query_mean(row)); });
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

  /// As ALiBi has them: 2^(-8 (h + 1) / h_q).
  void make_slopes() {
    if (!spec_.alibi) return;
    auto* slopes = allocate<float>(spec_.heads);
    for (int head = 0; head < spec_.heads; ++head) {
      slopes[head] = std::exp2(-8 * static_cast<float>(head + 1) / static_cast<float>(spec_.heads));
    }
    case_.inputs.alibi_slopes = {slopes, Dtype::kF32, {spec_.heads}};
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
  p.cache = {spec.format, spec.dtype, spec.kv_heads, spec.qk_dim, spec.v_dim, spec.page_size, 0, spec.layout};
  p.cache.max_pages = spec.sparse ? 0 : pages(spec, longest) + 2;
  p.sparse = {spec.sparse, spec.sparse ? spec.topk : 0};
  p.options = {.softmax_scale = spec.logit_scale / std::sqrt(static_cast<float>(spec.qk_dim)),
               .causal = spec.causal,
               .attn_sink = spec.sink,
               .batch_invariant = spec.batch_invariant,
               .prefix_sharing = spec.prefix_sharing,
               .window = spec.window,
               .separate = {.soft_cap = spec.soft_cap, .alibi = spec.alibi}};
  return p;
}

RandomCase make_case(const CaseSpec& spec, std::uint64_t seed) {
  return Maker(spec, seed).make();
}

}  // namespace flashlatent::runtime
