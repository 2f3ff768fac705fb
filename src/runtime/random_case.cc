#include "runtime/random_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "core/element.h"
#include "core/formats/formats.h"
#include "core/token_shard.h"
#include "runtime/layer_edges.h"
#include "runtime/random_fp8_tokens.h"
#include "runtime/split_query.h"

namespace flashlatent::runtime {

namespace {

constexpr int kPad = 16;       // bytes that are added to a row's stride in a strided tensor
constexpr int kPagePad = 128;  // bytes that are added to a page's stride
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A latent cache, or keys and values, with the pages of requests.
struct PagedTokens {
  int page_size;
  const std::vector<int>& lengths;
  ConstTensorView& view;
  const LatentFormat* format;
  std::vector<std::vector<std::int32_t>> pages = {};  // of each request
  std::int32_t spare_page = 0;

  /// The slot of a request's token.
  std::int64_t slot_of(int request, int token) const {
    return std::int64_t{pages[request][token / page_size]} * page_size + token % page_size;
  }
  std::uint8_t* page_at(std::int64_t page) const {
    // const_cast: this case owns the memory
    auto* memory = static_cast<std::uint8_t*>(const_cast<void*>(view.data));
    return memory + page * view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype));
  }
  std::uint8_t* at(std::int64_t slot) const {
    return page_at(slot / page_size) +
           slot % page_size * view.strides[1] * static_cast<std::int64_t>(size_of(view.dtype));
  }
  /// Data and scales of a token whose format has bytes of its own.
  std::pair<std::uint8_t*, std::uint8_t*> record_at(std::int64_t slot) const {
    std::uint8_t* page = page_at(slot / page_size);
    const std::int64_t offset = slot % page_size;
    return {page + format->data_at(offset, view.strides[1]),
            page + format->scales_at(page_size, offset, view.strides[1])};
  }
};

class Maker {
 public:
  Maker(const CaseSpec& spec, std::uint64_t seed) : spec_(spec), engine_(seed) {}

  RandomCase make() {
    case_.problem = problem_of(spec_);
    const std::int64_t pages = make_pages(cache_);
    spec_.layout == KvLayout::kLatent ? make_cache(cache_, pages) : make_separate_caches(pages);
    spec_.sparse ? make_indices() : make_page_table();
    make_query();
    make_sink();
    make_slopes();
    if (case_.problem.cache.extra.enabled) make_extra();
    if (spec_.other_lengths) make_other_lengths();
    return std::move(case_);
  }

 private:
  int batch() const { return static_cast<int>(spec_.lengths.size()); }
  /// The request whose pages this request shares, as far as both fill them.
  std::size_t leader_of(std::size_t request) const { return request - request % spec_.sharers; }
  int shared_pages(std::size_t request) const {
    const int shortest = std::min(spec_.lengths[request], spec_.lengths[leader_of(request)]);
    return std::max(0, std::min(spec_.shared_tokens, shortest)) / spec_.page_size;
  }
  std::uint16_t normal(float mean = 0) { return from_float(normal_(engine_) + mean, spec_.dtype); }

  /// The mean of a token's key elements, and of a query row's elements, for score_steps: qk_dim times the
  /// product of both means is the row's share of the token's step.
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

  /// An index that is -1, or `count` or more.
  std::int32_t outside(std::int64_t count) {
    const std::int32_t values[] = {-1, static_cast<std::int32_t>(count), std::numeric_limits<int>::max(),
                                   std::numeric_limits<int>::min()};
    return values[engine_() % 4];
  }

  /// Writes a plain row.
  void write_row(std::uint16_t* row, float mean) {
    std::generate_n(row, spec_.qk_dim, [&] { return normal(mean); });
  }

  /// Gives each request its pages; returns how many pages the cache has.
  std::int64_t make_pages(PagedTokens& cache) {
    std::int64_t used = 0;
    for (int length : cache.lengths) used += pages_for(length, cache.page_size);
    const std::int64_t count = used + 3;
    std::vector<std::int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine_);
    auto next = order.begin();
    for (int length : cache.lengths) {
      cache.pages.emplace_back(next, next + pages_for(length, cache.page_size));
      next += pages_for(length, cache.page_size);
      if (&cache != &cache_) continue;
      const std::size_t request = cache.pages.size() - 1;
      std::copy_n(cache.pages[leader_of(request)].begin(), shared_pages(request),
                  cache.pages[request].begin());
    }
    cache.spare_page = order.back();
    return count;
  }

  /// Writes the tokens of requests; everything else is poison.
  void make_cache(PagedTokens& cache, std::int64_t pages) {
    const LatentFormat& format = *cache.format;
    if (format.is_record()) {
      make_records(cache, pages);
    } else if (format.plain()) {
      const std::int64_t elements = make_rows(cache, pages, spec_.dtype, spec_.qk_dim);
      std::generate_n(reinterpret_cast<std::uint16_t*>(cache.at(0)), elements, [this] { return poison(); });
    } else {  // 0xFF is NaN
      make_rows(cache, pages, Dtype::kU8, spec_.qk_dim);
      if (!case_.inputs.kv_scale.present()) case_.inputs.kv_scale = make_scales(spec_.scales);
    }
    for (int i = 0; i < batch(); ++i) {
      for (int t = 0; t < cache.lengths[i]; ++t) write_token(cache, cache.slot_of(i, t), key_mean(t));
    }
  }

  void write_token(const PagedTokens& cache, std::int64_t slot, float mean) {
    const LatentFormat& format = *cache.format;
    if (format.is_record()) {
      const auto [data, scales] = cache.record_at(slot);
      records_.write(format, data, scales, spec_.qk_dim != format.dim_without_rope, mean);
    } else if (format.plain()) {
      auto* row = reinterpret_cast<std::uint16_t*>(cache.at(slot));
      for (int head = 0; head < spec_.kv_heads; ++head) write_row(row + head * cache.view.strides[2], mean);
    } else {
      write_codes(cache.at(slot), case_.inputs.kv_scale, 0, mean);
    }
  }

  /// Writes the codes of qk_dim normal elements.
  void write_codes(std::uint8_t* codes, const ConstTensorView& scale, int head, float mean) {
    const auto* scales = static_cast<const float*>(scale.data);
    const float factor = scale.present() ? scales[scale.shape[0] > 1 ? head : 0] : 1;
    std::generate_n(codes, spec_.qk_dim, [&] { return e4m3::encode((normal_(engine_) + mean) / factor); });
  }

  /// Makes a cache whose rows have `dim` elements, with all bytes 0xFF; returns the elements of its memory.
  /// Pages begin at multiples of `unit` elements.
  std::int64_t make_rows(PagedTokens& cache, std::int64_t pages, Dtype dtype, std::int64_t dim,
                         std::int64_t unit = 1) {
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    const int heads = spec_.kv_heads;
    const std::int64_t row = dim + (spec_.strided ? kPad / element : 0);
    const std::int64_t least = row * heads * cache.page_size + (spec_.strided ? kPagePad / element : 0);
    const std::int64_t page = (least + unit - 1) / unit * unit;
    auto* memory = allocate<std::uint8_t>(pages * page * element);
    std::memset(memory, 0xFF, pages * page * element);
    cache.view = {memory, dtype, {pages, cache.page_size, heads, dim}};
    cache.view.strides = {page, row * heads, row, 1};
    return pages * page;
  }

  /// Makes a cache of a format with bytes of its own; all tokens are poison.
  void make_records(PagedTokens& cache, std::int64_t pages) {
    const LatentFormat& format = *cache.format;
    if (!format.apart()) {
      make_rows(cache, pages, Dtype::kU8, format.token_bytes(), format.page_unit);
    } else {
      const std::int64_t page =
          format.least_page_stride(cache.page_size, 0) + (spec_.strided ? kPageAlignment * 9 : 0);
      auto* memory = allocate<std::uint8_t>(pages * page);
      std::memset(memory, 0xFF, pages * page);
      cache.view = {memory, Dtype::kU8, {pages, cache.page_size, 1, format.token_bytes()}};
      cache.view.strides[0] = page;
    }
    for (std::int64_t slot = 0; slot < pages * cache.page_size; ++slot) {
      const auto [data, scales] = cache.record_at(slot);
      records_.poison(format, data, scales);
    }
  }

  /// Makes caches of keys and values.
  void make_separate_caches(std::int64_t pages) {
    DecodeInputs& inputs = case_.inputs;
    const bool packed = spec_.layout == KvLayout::kPacked;
    const Dtype dtype = spec_.format == KvFormat::kE4m3 ? Dtype::kU8 : spec_.dtype;
    inputs.key_scale = make_scales(spec_.scales);
    inputs.value_scale = make_scales(spec_.scales);
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
        const std::int64_t page = cache_.pages[request][t / page_size], place = t % page_size;
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

  ConstTensorView make_scales(int count) {
    if (count == 0) return {};
    auto* scales = allocate<float>(count);
    std::generate_n(scales, count, [this] { return static_cast<float>(0.01 + 0.02 * uniform_(engine_)); });
    return {scales, Dtype::kF32, {count}};
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

  /// Writes a normal element. With e4m3 its code, in units of the scale if there is one.
  void write(const ConstTensorView& view, const ConstTensorView& scale, int head,
             std::initializer_list<std::int64_t> place, float mean = 0) {
    const std::int64_t offset =
        std::inner_product(place.begin(), place.end(), view.strides.begin(), std::int64_t{0});
    void* memory = const_cast<void*>(view.data);  // const_cast: this case owns the memory
    if (view.dtype != Dtype::kU8) {
      static_cast<std::uint16_t*>(memory)[offset] = normal(mean);
      return;
    }
    const auto* scales = static_cast<const float*>(scale.data);
    const float factor = scale.present() ? scales[spec_.scales > 1 ? head : 0] : 1;
    static_cast<std::uint8_t*>(memory)[offset] = e4m3::encode((normal_(engine_) + mean) / factor);
  }

  /// The length of a context whose tokens on this rank are `held`; several lengths are possible, and one is
  /// drawn.
  std::int32_t context_of(int held) {
    const auto& [rank, world, run] = spec_.shard;
    if (world == 1) return held;
    const TokenShard shard(rank, world, run);
    const std::int64_t least = held == 0 ? 0 : shard.position(held - 1) + 1, most = shard.position(held);
    return static_cast<std::int32_t>(least + static_cast<std::int64_t>(engine_() % (most - least + 1)));
  }

  void make_page_table() {
    const std::int64_t columns = case_.problem.cache.max_pages;
    auto* lengths = allocate<std::int32_t>(batch());
    std::transform(spec_.lengths.begin(), spec_.lengths.end(), lengths,
                   [this](int length) { return context_of(length); });
    case_.inputs.cache_seqlens = {lengths, Dtype::kI32, {batch()}};
    auto* table = allocate<std::int32_t>(batch() * columns);
    case_.inputs.block_table = {table, Dtype::kI32, {batch(), columns}};
    for (std::int64_t i = 0; i < batch() * columns; ++i) {
      const std::vector<std::int32_t>& pages = cache_.pages[i / columns];
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

  ConstTensorView integers(const std::vector<int>& values) {
    if (values.empty()) return {};
    auto* copy = allocate<std::int32_t>(static_cast<std::int64_t>(values.size()));
    std::copy(values.begin(), values.end(), copy);
    const auto count = static_cast<std::int64_t>(values.size());
    if (count == batch()) return {copy, Dtype::kI32, {batch()}};
    return {copy, Dtype::kI32, {batch(), count / batch()}};
  }

  void make_indices() {
    case_.inputs.topk_length = integers(spec_.topk_lengths);
    case_.inputs.indices = indices_of(cache_, spec_.topk, spec_.topk_lengths, 3);
  }

  /// For each query token random tokens of its request. Each `none`-th query token gets no valid index.
  ConstTensorView indices_of(const PagedTokens& cache, int topk, const std::vector<int>& topk_lengths,
                             int none) {
    const int tokens = case_.problem.query.tokens;
    const std::int64_t slots = cache.view.shape[0] * cache.page_size;
    const std::int64_t rows = std::int64_t{batch()} * tokens;
    auto* indices = allocate<std::int32_t>(rows * topk);
    const ConstTensorView view{indices, Dtype::kI32, {batch(), tokens, topk}};
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto request = static_cast<int>(row / tokens);
      const int length = cache.lengths[request];
      const bool all_skipped = length == 0 || (spec_.skipped_indices > 0 && row % none == 2);
      const bool by_token = static_cast<std::int64_t>(topk_lengths.size()) > batch();
      const int read = topk_lengths.empty() ? topk : topk_lengths[by_token ? row : request];
      for (int i = 0; i < topk; ++i, ++indices) {
        const bool skipped = all_skipped || uniform_(engine_) < spec_.skipped_indices;
        if (i >= read && engine_() % 2 == 0) {
          *indices = cache.spare_page * cache.page_size;  // poison, never read
        } else {
          *indices = skipped ? outside(slots)
                             : static_cast<std::int32_t>(cache.slot_of(request, engine_() % length));
        }
      }
    }
    return view;
  }

  void make_extra() {
    DecodeInputs& inputs = case_.inputs;
    make_cache(extra_, make_pages(extra_));
    if (spec_.extra_indexed) {
      inputs.extra_topk_length = integers(spec_.extra_topk_lengths);
      inputs.extra_indices = indices_of(extra_, spec_.extra_topk, spec_.extra_topk_lengths, 4);
      return;
    }
    const int columns = case_.problem.cache.extra.max_pages, tokens = case_.problem.query.tokens;
    auto* table = allocate<std::int32_t>(std::int64_t{batch()} * columns);
    inputs.extra_block_table = {table, Dtype::kI32, {batch(), columns}};
    for (std::int64_t i = 0; i < std::int64_t{batch()} * columns; ++i) {
      const std::vector<std::int32_t>& pages = extra_.pages[i / columns];
      const bool live = i % columns < static_cast<std::int64_t>(pages.size());
      const bool invalid = spec_.invalid_pages && engine_() % 3 == 0;
      table[i] = !live     ? static_cast<std::int32_t>(engine_())  // never read
                 : invalid ? outside(extra_.view.shape[0])
                           : pages[i % columns];
    }
    inputs.extra_cache_seqlens = integers(spec_.extra_lengths);
    if (!spec_.extra_by_token) return;
    auto* lengths = allocate<std::int32_t>(std::int64_t{batch()} * tokens);
    inputs.extra_cache_seqlens = {lengths, Dtype::kI32, {batch(), tokens}};
    for (int i = 0; i < batch() * tokens; ++i) {
      lengths[i] = std::max(0, spec_.extra_lengths[i / tokens] - 5 * (tokens - 1 - i % tokens));
    }
  }

  void make_query() {
    const auto& query = case_.problem.query;
    const std::int64_t dim = spec_.qk_dim + (spec_.strided ? (query.e4m3 ? kPad : kPad / 2) : 0);
    std::int64_t tokens = std::int64_t{query.batch} * query.tokens;
    if (query.ragged) {
      auto* begins = allocate<std::int32_t>(batch() + 1);
      begins[0] = 0;
      std::partial_sum(spec_.ragged_tokens.begin(), spec_.ragged_tokens.end(), begins + 1);
      case_.inputs.cu_seqlens_q = {begins, Dtype::kI32, {batch() + 1}};
      tokens = begins[batch()];
    }
    const Dtype dtype = query.e4m3 ? Dtype::kU8 : spec_.dtype;
    const void* q = query.e4m3 ? make_query_codes(tokens, dim) : make_query_elements(tokens, dim);
    ConstTensorView& view = case_.inputs.q;
    if (query.ragged) {
      view = {q, dtype, {tokens, query.heads, spec_.qk_dim}};
      view.strides = {query.heads * dim, dim, 1};
    } else {
      view = {q, dtype, {query.batch, query.tokens, query.heads, spec_.qk_dim}};
      view.strides = {query.tokens * query.heads * dim, query.heads * dim, dim, 1};
    }
  }

  /// Elements of q; rows are `dim` apart.
  const void* make_query_elements(std::int64_t tokens, std::int64_t dim) {
    const std::int64_t rows = tokens * spec_.heads;
    auto* q = allocate<std::uint16_t>(rows * dim);
    std::generate_n(q, rows * dim, [this] { return poison(); });
    for (std::int64_t row = 0; row < rows; ++row) {
      std::generate_n(q + row * dim, spec_.qk_dim, [&] { return normal(query_mean(row)); });
    }
    return q;
  }
  /// e4m3 codes of q.
  const void* make_query_codes(std::int64_t tokens, std::int64_t dim) {
    const std::int64_t rows = tokens * spec_.heads;
    case_.inputs.q_scale = make_scales(spec_.query_scales);
    auto* q = allocate<std::uint8_t>(rows * dim);
    std::memset(q, 0xFF, rows * dim);
    for (std::int64_t row = 0; row < rows; ++row) {
      write_codes(q + row * dim, case_.inputs.q_scale, static_cast<int>(row % spec_.heads), query_mean(row));
    }
    return q;
  }

  void make_other_lengths() {
    const PlanLengths own = lengths_of(case_.problem, case_.inputs);
    case_.other_lengths = {other_than(own.cache), other_than(own.extra), own.cu_seqlens_q};
  }
  ConstTensorView other_than(ConstTensorView lengths) {
    if (!lengths.present()) return {};
    const auto* own = static_cast<const std::int32_t*>(lengths.data);
    const std::int64_t count = lengths.elements();
    const std::int32_t longest = count == 0 ? 0 : *std::max_element(own, own + count);
    auto* other = allocate<std::int32_t>(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t most = spec_.prefix_sharing == PrefixSharing::kOff ? longest : own[i];
      other[i] = static_cast<std::int32_t>(engine_() % (static_cast<std::uint64_t>(most) + 1));
    }
    lengths.data = other;
    return lengths;
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

  /// As ALiBi's paper has them: 2^(-8 (h + 1) / h_q).
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
  RandomTokens records_{engine_, normal_};
  RandomCase case_;
  PagedTokens cache_{spec_.page_size, spec_.lengths, case_.inputs.kv_cache,
                     &format_of(spec_.format, spec_.scale_place)};
  PagedTokens extra_{spec_.extra_page_size, spec_.extra_lengths, case_.inputs.extra_kv_cache,
                     &format_of(spec_.extra_format.value_or(spec_.format), spec_.scale_place)};
};

}  // namespace

RandomCase make_case(const CaseSpec& spec, std::uint64_t seed) {
  RandomCase made = Maker(spec, seed).make();
  if (spec.split_query) made.inputs = split_query(made, spec.strided);
  add_edges(spec.edges, seed, made);
  return made;
}

}  // namespace flashlatent::runtime
