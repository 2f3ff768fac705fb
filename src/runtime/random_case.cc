#include "runtime/random_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/token_shard.h"
#include "runtime/layer_edges.h"
#include "runtime/random_caches.h"
#include "runtime/split_query.h"

namespace flashlatent::runtime {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Maker {
 public:
  Maker(const CaseSpec& spec, std::uint64_t seed) : spec_(spec), draws_(spec.dtype, seed) {}

  RandomCase make() {
    case_.problem = problem_of(spec_);
    spec_.layout == KvLayout::kLatent ? caches_.make(cache_, true) : caches_.make_separate(cache_);
    spec_.sparse ? make_indices() : make_page_table();
    make_query();
    make_sink();
    make_slopes();
    if (case_.problem.cache.extra.enabled) make_extra();
    if (spec_.other_lengths) make_other_lengths();
    case_.storage = draws_.take_storage();
    return std::move(case_);
  }

 private:
  int batch() const { return static_cast<int>(spec_.lengths.size()); }
  /// The mean of a query row's elements, for score_steps (RandomCaches::key_mean()).
  float query_mean(std::int64_t row) const {
    return spec_.score_steps.empty() ? 0 : 1 - static_cast<float>(row % 4) / 4;
  }

  /// The length of a context whose tokens on this rank are `held`; several lengths are possible, and one is
  /// drawn.
  std::int32_t context_of(int held) {
    const auto& [rank, world, run] = spec_.shard;
    if (world == 1) return held;
    const TokenShard shard(rank, world, run);
    const std::int64_t least = held == 0 ? 0 : shard.position(held - 1) + 1, most = shard.position(held);
    return static_cast<std::int32_t>(least + static_cast<std::int64_t>(draws_.bits() % (most - least + 1)));
  }

  void make_page_table() {
    const std::int64_t columns = case_.problem.cache.max_pages;
    auto* lengths = draws_.allocate<std::int32_t>(batch());
    std::transform(spec_.lengths.begin(), spec_.lengths.end(), lengths,
                   [this](int length) { return context_of(length); });
    case_.inputs.cache_seqlens = {lengths, Dtype::kI32, {batch()}};
    auto* table = draws_.allocate<std::int32_t>(batch() * columns);
    case_.inputs.block_table = {table, Dtype::kI32, {batch(), columns}};
    for (std::int64_t i = 0; i < batch() * columns; ++i) {
      const std::vector<std::int32_t>& pages = cache_.pages[i / columns];
      if (i % columns >= static_cast<std::int64_t>(pages.size())) {
        table[i] = static_cast<std::int32_t>(draws_.bits());  // never read
      } else {
        const bool invalid = spec_.invalid_pages && draws_.bits() % 3 == 0;
        const ConstTensorView& cache =
            spec_.layout == KvLayout::kLatent ? case_.inputs.kv_cache : case_.inputs.key_cache;
        table[i] = invalid ? draws_.outside(cache.shape[0]) : pages[i % columns];
        const auto request = static_cast<std::size_t>(i / columns);
        if (i % columns < caches_.shared_pages(request))
          table[i] = table[caches_.leader_of(request) * columns + i % columns];
      }
    }
  }

  ConstTensorView integers(const std::vector<int>& values) {
    if (values.empty()) return {};
    auto* copy = draws_.allocate<std::int32_t>(static_cast<std::int64_t>(values.size()));
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
    auto* indices = draws_.allocate<std::int32_t>(rows * topk);
    const ConstTensorView view{indices, Dtype::kI32, {batch(), tokens, topk}};
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto request = static_cast<int>(row / tokens);
      const int length = cache.lengths[request];
      const bool all_skipped = length == 0 || (spec_.skipped_indices > 0 && row % none == 2);
      const bool by_token = static_cast<std::int64_t>(topk_lengths.size()) > batch();
      const int read = topk_lengths.empty() ? topk : topk_lengths[by_token ? row : request];
      for (int i = 0; i < topk; ++i, ++indices) {
        const bool skipped = all_skipped || draws_.uniform() < spec_.skipped_indices;
        if (i >= read && draws_.bits() % 2 == 0) {
          *indices = cache.spare_page * cache.page_size;  // poison, never read
        } else {
          *indices = skipped ? draws_.outside(slots)
                             : static_cast<std::int32_t>(cache.slot_of(request, draws_.bits() % length));
        }
      }
    }
    return view;
  }

  void make_extra() {
    DecodeInputs& inputs = case_.inputs;
    caches_.make(extra_, false);
    if (spec_.extra_indexed) {
      inputs.extra_topk_length = integers(spec_.extra_topk_lengths);
      inputs.extra_indices = indices_of(extra_, spec_.extra_topk, spec_.extra_topk_lengths, 4);
      return;
    }
    const int columns = case_.problem.cache.extra.max_pages, tokens = case_.problem.query.tokens;
    auto* table = draws_.allocate<std::int32_t>(std::int64_t{batch()} * columns);
    inputs.extra_block_table = {table, Dtype::kI32, {batch(), columns}};
    for (std::int64_t i = 0; i < std::int64_t{batch()} * columns; ++i) {
      const std::vector<std::int32_t>& pages = extra_.pages[i / columns];
      const bool live = i % columns < static_cast<std::int64_t>(pages.size());
      const bool invalid = spec_.invalid_pages && draws_.bits() % 3 == 0;
      table[i] = !live     ? static_cast<std::int32_t>(draws_.bits())  // never read
                 : invalid ? draws_.outside(extra_.view.shape[0])
                           : pages[i % columns];
    }
    inputs.extra_cache_seqlens = integers(spec_.extra_lengths);
    if (!spec_.extra_by_token) return;
    auto* lengths = draws_.allocate<std::int32_t>(std::int64_t{batch()} * tokens);
    inputs.extra_cache_seqlens = {lengths, Dtype::kI32, {batch(), tokens}};
    for (int i = 0; i < batch() * tokens; ++i) {
      lengths[i] = std::max(0, spec_.extra_lengths[i / tokens] - 5 * (tokens - 1 - i % tokens));
    }
  }

  void make_query() {
    const auto& query = case_.problem.query;
    const std::int64_t dim = spec_.qk_dim + (spec_.strided ? (query.e4m3 ? kRowPad : kRowPad / 2) : 0);
    std::int64_t tokens = std::int64_t{query.batch} * query.tokens;
    if (query.ragged) {
      auto* begins = draws_.allocate<std::int32_t>(batch() + 1);
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
    auto* q = draws_.allocate<std::uint16_t>(rows * dim);
    std::generate_n(q, rows * dim, [this] { return draws_.poison(); });
    for (std::int64_t row = 0; row < rows; ++row) {
      std::generate_n(q + row * dim, spec_.qk_dim, [&] { return draws_.normal(query_mean(row)); });
    }
    return q;
  }
  /// e4m3 codes of q.
  const void* make_query_codes(std::int64_t tokens, std::int64_t dim) {
    const std::int64_t rows = tokens * spec_.heads;
    case_.inputs.q_scale = draws_.make_scales(spec_.query_scales);
    auto* q = draws_.allocate<std::uint8_t>(rows * dim);
    std::memset(q, 0xFF, rows * dim);
    for (std::int64_t row = 0; row < rows; ++row) {
      draws_.write_codes(q + row * dim, spec_.qk_dim, case_.inputs.q_scale,
                         static_cast<int>(row % spec_.heads), query_mean(row));
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
    auto* other = draws_.allocate<std::int32_t>(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t most = spec_.prefix_sharing == PrefixSharing::kOff ? longest : own[i];
      other[i] = static_cast<std::int32_t>(draws_.bits() % (static_cast<std::uint64_t>(most) + 1));
    }
    lengths.data = other;
    return lengths;
  }

  void make_sink() {
    if (!spec_.sink) return;
    auto* sink = draws_.allocate<float>(spec_.heads);
    for (int head = 0; head < spec_.heads; ++head) {
      sink[head] = 3 * draws_.real();
      if (head % 5 == 3) sink[head] = kInfinity;
      if (head % 5 == 4) sink[head] = -kInfinity;
    }
    case_.inputs.attn_sink = {sink, Dtype::kF32, {spec_.heads}};
  }

  /// As ALiBi's paper has them: 2^(-8 (h + 1) / h_q).
  void make_slopes() {
    if (!spec_.alibi) return;
    auto* slopes = draws_.allocate<float>(spec_.heads);
    for (int head = 0; head < spec_.heads; ++head) {
      slopes[head] = std::exp2(-8 * static_cast<float>(head + 1) / static_cast<float>(spec_.heads));
    }
    case_.inputs.alibi_slopes = {slopes, Dtype::kF32, {spec_.heads}};
  }

  const CaseSpec& spec_;
  CaseDraws draws_;
  RandomCase case_;
  RandomCaches caches_{spec_, draws_, case_.inputs};
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
