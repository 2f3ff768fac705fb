#include "runtime/random_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "core/element.h"

namespace flashlatent::runtime {

namespace {

constexpr int kPad = 8;  // elements that a strided tensor's rows are longer than needed: 16 bytes

class Maker {
 public:
  Maker(const CaseSpec& spec, std::uint64_t seed) : spec_(spec), engine_(seed) {}

  RandomCase make() {
    set_problem();
    make_cache();
    make_query();
    make_sink();
    return std::move(case_);
  }

 private:
  int batch() const { return static_cast<int>(spec_.lengths.size()); }
  std::uint16_t normal() { return from_float(normal_(engine_), spec_.dtype); }

  template <class T>
  T* allocate(std::int64_t count) {
    case_.storage.emplace_back(std::max<std::int64_t>(count, 1) * sizeof(T));
    return reinterpret_cast<T*>(case_.storage.back().data());
  }

  std::uint16_t poison() {
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
    return from_float(values[engine_() % 3], spec_.dtype);
  }

  void set_problem() {
    DecodeProblem& p = case_.problem;
    const int longest =
        spec_.lengths.empty() ? 0 : *std::max_element(spec_.lengths.begin(), spec_.lengths.end());
    p.query = {batch(), spec_.query_tokens, spec_.heads, !spec_.ragged_tokens.empty()};
    if (p.query.ragged) {
      p.query.tokens = std::max(1, *std::max_element(spec_.ragged_tokens.begin(), spec_.ragged_tokens.end()));
    }
    p.cache = {KvFormat::kPlain, spec_.dtype, spec_.kv_heads, spec_.qk_dim, spec_.v_dim, spec_.page_size, 0};
    p.cache.max_pages = (longest + spec_.page_size - 1) / spec_.page_size + 2;
    p.options = {spec_.logit_scale / std::sqrt(static_cast<float>(spec_.qk_dim)), spec_.causal, spec_.sink,
                 spec_.batch_invariant};
  }

  void make_cache() {
    const auto& cache = case_.problem.cache;
    auto* lengths = allocate<std::int32_t>(batch());
    std::copy(spec_.lengths.begin(), spec_.lengths.end(), lengths);
    case_.inputs.cache_seqlens = {lengths, Dtype::kI32, {batch()}};

    std::int64_t used = 0;
    for (int length : spec_.lengths) used += (length + spec_.page_size - 1) / spec_.page_size;
    const std::int64_t pages = used + 3;
    std::vector<std::int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine_);

    const std::int64_t dim = cache.qk_dim + (spec_.strided ? kPad : 0);
    const std::int64_t page_elements = dim * cache.heads * cache.page_size + (spec_.strided ? 64 : 0);
    auto* kv = allocate<std::uint16_t>(pages * page_elements);
    std::generate_n(kv, pages * page_elements, [this] { return poison(); });
    ConstTensorView& view = case_.inputs.kv_cache;
    view = {kv, spec_.dtype, {pages, cache.page_size, cache.heads, cache.qk_dim}};
    view.strides = {page_elements, dim * cache.heads, dim, 1};

    auto* table = allocate<std::int32_t>(std::int64_t{batch()} * cache.max_pages);
    case_.inputs.block_table = {table, Dtype::kI32, {batch(), cache.max_pages}};
    std::int64_t next = 0;
    for (int i = 0; i < batch(); ++i) {
      for (int column = 0; column < cache.max_pages; ++column) {
        std::int32_t& entry = table[std::int64_t{i} * cache.max_pages + column];
        const int begin = column * cache.page_size;
        if (begin >= spec_.lengths[i]) {
          entry = static_cast<std::int32_t>(engine_());  // never read
          continue;
        }
        entry = order[next++];
        for (int t = 0; t < std::min(cache.page_size, spec_.lengths[i] - begin); ++t) {
          for (int head = 0; head < cache.heads; ++head) {
            std::generate_n(kv + entry * page_elements + t * view.strides[1] + head * dim, cache.qk_dim,
                            [this] { return normal(); });
          }
        }
        if (spec_.invalid_pages && engine_() % 3 == 0) {
          const std::int32_t outside[] = {-1, static_cast<std::int32_t>(pages),
                                          std::numeric_limits<int>::max(), std::numeric_limits<int>::min()};
          entry = outside[engine_() % 4];
        }
      }
    }
  }

  void make_query() {
    const auto& query = case_.problem.query;
    const std::int64_t dim = spec_.qk_dim + (spec_.strided ? kPad : 0);
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
      if (head % 5 == 3) sink[head] = std::numeric_limits<float>::infinity();
      if (head % 5 == 4) sink[head] = -std::numeric_limits<float>::infinity();
    }
    case_.inputs.attn_sink = {sink, Dtype::kF32, {spec_.heads}};
  }

  const CaseSpec& spec_;
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
  RandomCase case_;
};

}  // namespace

RandomCase make_case(const CaseSpec& spec, std::uint64_t seed) {
  return Maker(spec, seed).make();
}

}  // namespace flashlatent::runtime
