#include "runtime/random_index_case.h"
#include "core/e2m1.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "core/enum_names.h"
#include "core/index_keys.h"

namespace flashlatent::runtime {

namespace {

constexpr int kDim = index_keys::kDim, kGroup = index_keys::kGroup, kGroups = index_keys::kGroups;

constexpr EnumName<IndexScores> kNames[] = {
    {IndexScores::kNormal, "normal"},     {IndexScores::kUnit, "unit"},    {IndexScores::kEqual, "equal"},
    {IndexScores::kNegative, "negative"}, {IndexScores::kHuge, "huge"},    {IndexScores::kNan, "nan"},
    {IndexScores::kRising, "rising"},     {IndexScores::kSpread, "spread"}};

class Maker {
 public:
  Maker(const IndexSpec& spec, std::uint64_t seed) : spec_(spec), engine_(seed * 0x9E3779B97F4A7C15 + 1) {}

  RandomIndexCase make() {
    tokens_of_requests();
    cache();
    tables();
    queries();
    lengths();
    if (spec_.candidates > 0) candidates();
    if (spec_.slot_page_size > 0) slots();
    case_.options = {.format = spec_.format,
                     .page_size = spec_.page_size,
                     .causal = spec_.causal,
                     .candidate_block = spec_.candidate_block,
                     .slot_page_size = spec_.slot_page_size};
    case_.wanted = {.topk = spec_.topk, .best_blocks = spec_.best_blocks};
    return std::move(case_);
  }

 private:
  // Not the standard library's distributions, which differ between implementations.
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  int below(std::int64_t n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  float normal() {
    const double u = uniform() + 0x1p-54;
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * uniform()));
  }

  template <class T>
  T* allocate(std::size_t count) {
    auto* memory = static_cast<T*>(std::aligned_alloc(256, (count * sizeof(T) + 511) / 256 * 256));
    case_.storage.emplace_back(memory, std::free);
    return memory;
  }
  template <class T>
  T* copy(const std::vector<T>& values) {
    T* memory = allocate<T>(values.size());
    std::copy(values.begin(), values.end(), memory);
    return memory;
  }

  bool ragged() const { return !spec_.ragged_tokens.empty(); }
  int batch() const { return static_cast<int>(spec_.lengths.size()); }

  void tokens_of_requests() {
    sums_.push_back(0);
    for (int i = 0; i < batch(); ++i) {
      sums_.push_back(sums_.back() + (ragged() ? spec_.ragged_tokens[i] : spec_.query_tokens));
    }
    if (!ragged()) return;
    case_.inputs.cu_seqlens_q = {copy(sums_), Dtype::kI32, {batch() + 1}};
  }

  /// (batch, s_q, ...), or ragged (tokens, ...), contiguous.
  ConstTensorView over_tokens(const void* data, Dtype dtype,
                              std::initializer_list<std::int64_t> inner) const {
    ConstTensorView view;
    view.data = data;
    view.dtype = dtype;
    if (!ragged()) view.shape[view.rank++] = batch();
    view.shape[view.rank++] = ragged() ? sums_.back() : spec_.query_tokens;
    for (std::int64_t extent : inner) view.shape[view.rank++] = extent;
    std::int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.strides[i] = stride;
      stride *= view.shape[i];
    }
    return view;
  }
  int rows() const { return sums_.back(); }

  void cache() {
    const int longest = *std::max_element(spec_.lengths.begin(), spec_.lengths.end());
    columns_ = std::max(1, (longest + spec_.page_size - 1) / spec_.page_size) + 1;
    pages_ = 2;  // that no request has
    for (int length : spec_.lengths) pages_ += (length + spec_.page_size - 1) / spec_.page_size;
    const std::int64_t least = index_keys::page_bytes(spec_.format, spec_.page_size);
    stride_ = (least + 15) / 16 * 16 + (spec_.strided ? 64 : 0);
    bytes_ = allocate<std::uint8_t>(pages_ * stride_);
    std::memset(bytes_, 0xFF, pages_ * stride_);
    case_.inputs.index_cache = {bytes_, Dtype::kU8, {pages_, stride_}};
  }

  void tables() {
    std::vector<int> order(pages_);
    std::iota(order.begin(), order.end(), 0);
    for (int i = pages_ - 1; i > 0; --i) std::swap(order[i], order[below(i + 1)]);
    std::vector<std::int32_t> table;
    int next = 0;
    for (int length : spec_.lengths) {
      const int used = (length + spec_.page_size - 1) / spec_.page_size;
      for (int j = 0; j < columns_; ++j) {
        // Behind the request's own: poisoned pages, and numbers that are none.
        table.push_back(j < used ? order[next + j] : j % 2 == 0 ? order[pages_ - 1] : 1 << 30);
      }
      for (int t = 0; t < length; ++t) write_key(table[table.size() - columns_ + t / spec_.page_size], t);
      next += used;
      for (int j = 0; j < used && spec_.invalid_pages; ++j) {
        if (below(4) == 0) table[table.size() - columns_ + j] = below(2) == 0 ? -1 : pages_ + below(5);
      }
    }
    case_.inputs.block_table = {copy(table), Dtype::kI32, {batch(), columns_}};
  }

  void write_key(int page, int token) {
    std::uint8_t* begin = bytes_ + page * stride_;
    const int offset = token % spec_.page_size;
    std::uint8_t* data = begin + index_keys::data_offset(spec_.format, offset);
    std::uint8_t* scales = begin + index_keys::scale_offset(spec_.format, spec_.page_size, offset);
    const bool constant = spec_.scores == IndexScores::kUnit || spec_.scores == IndexScores::kEqual ||
                          spec_.scores == IndexScores::kRising;
    float factor = std::exp2(static_cast<float>(6 * uniform() - 3));
    if (constant) factor = 1;
    if (spec_.scores == IndexScores::kRising) factor = 1 + static_cast<float>(token) / 64;
    if (spec_.scores == IndexScores::kHuge && token == 3) factor = 1e20F;
    if (spec_.scores == IndexScores::kSpread) factor *= std::exp2(static_cast<float>(below(31) - 15));
    const bool nan = spec_.scores == IndexScores::kNan && token % 3 == 1;
    float x[kDim];
    for (float& element : x) element = constant ? 1 : normal();
    if (spec_.format == IndexFormat::kFp8_132) {
      // Any positive scale is legal, a power of two or not.
      for (int i = 0; i < kDim; ++i) data[i] = e4m3::encode(x[i] * (constant ? 1 : 64));
      if (nan && token % 2 == 0) data[token % kDim] = e4m3::kNan;
      const float scale = nan && token % 2 != 0 ? std::numeric_limits<float>::quiet_NaN()
                                                : (constant ? 1 : 1.0F / 64) * factor;
      std::memcpy(scales, &scale, sizeof(scale));
      return;
    }
    for (int i = 0; i < kDim; i += 2) {
      data[i / 2] = static_cast<std::uint8_t>(e2m1::encode(x[i]) | e2m1::encode(x[i + 1]) << 4);
    }
    for (int group = 0; group < kGroups; ++group) {
      int exponent = static_cast<int>(std::floor(std::log2(factor)));
      if (!constant) exponent += below(3);
      if (spec_.scores == IndexScores::kSpread) exponent += below(31) - 15;
      scales[group] = static_cast<std::uint8_t>(exponent + 127);
    }
    if (nan) scales[token % kGroups] = 0xFF;
  }

  void queries() {
    const int bytes = spec_.fp4_query ? kDim / 2 : kDim;
    const int stride = spec_.strided ? spec_.heads * bytes + 32 : spec_.heads * bytes;
    std::vector<std::uint8_t> q(std::size_t{static_cast<unsigned>(rows())} * stride, 0xFF);
    std::vector<std::uint8_t> scales;
    std::vector<float> weights;
    const bool constant = spec_.scores == IndexScores::kUnit || spec_.scores == IndexScores::kRising;
    for (int r = 0; r < rows(); ++r) {
      for (int h = 0; h < spec_.heads; ++h) {
        std::uint8_t* own = q.data() + std::size_t{static_cast<unsigned>(r)} * stride + h * bytes;
        for (int i = 0; i < kDim; ++i) {
          const float x = constant ? (spec_.fp4_query ? 1 : 0.25F) : 4 * normal();
          if (!spec_.fp4_query) {
            own[i] = e4m3::encode(x);
          } else if (i % 2 == 0) {
            own[i / 2] = static_cast<std::uint8_t>(e2m1::encode(constant ? x : x / 4));
          } else {
            own[i / 2] |= static_cast<std::uint8_t>(e2m1::encode(constant ? x : x / 4) << 4);
          }
        }
        for (int group = 0; group < kGroups; ++group) {
          const int spread = spec_.scores == IndexScores::kSpread ? below(31) - 15 : below(4) - 2;
          scales.push_back(static_cast<std::uint8_t>(127 + (constant ? -2 : spread)));
        }
        // With kUnit every product is 0.25 * 128 = 32 a head.
        float weight = constant ? 1.0F / (32.0F * static_cast<float>(spec_.heads)) : normal() / 8;
        if (spec_.scores == IndexScores::kNegative) weight = -std::fabs(weight);
        weights.push_back(weight);
      }
    }
    case_.inputs.q = over_tokens(copy(q), Dtype::kU8, {spec_.heads, bytes});
    case_.inputs.q.strides[ragged() ? 0 : 1] = stride;
    if (!ragged()) case_.inputs.q.strides[0] = std::int64_t{stride} * spec_.query_tokens;
    if (spec_.fp4_query) case_.inputs.q_scale = over_tokens(copy(scales), Dtype::kU8, {spec_.heads, kGroups});
    case_.inputs.weights = over_tokens(copy(weights), Dtype::kF32, {spec_.heads});
  }

  void lengths() {
    if (spec_.causal || (!ragged() && !spec_.lengths_per_token)) {
      const std::vector<std::int32_t> lengths(spec_.lengths.begin(), spec_.lengths.end());
      case_.inputs.cache_seqlens = {copy(lengths), Dtype::kI32, {batch()}};
      return;
    }
    std::vector<std::int32_t> lengths;
    for (int i = 0; i < batch(); ++i) {
      for (int t = sums_[i]; t < sums_[i + 1]; ++t) {
        lengths.push_back(spec_.lengths_per_token ? below(spec_.lengths[i] + 1) : spec_.lengths[i]);
      }
    }
    case_.inputs.cache_seqlens = over_tokens(copy(lengths), Dtype::kI32, {});
  }

  void candidates() {
    std::vector<std::int32_t> blocks;
    for (int i = 0; i < batch(); ++i) {
      const int there = (spec_.lengths[i] + spec_.candidate_block - 1) / spec_.candidate_block;
      for (int t = sums_[i]; t < sums_[i + 1]; ++t) {
        std::vector<std::int32_t> all(there);
        std::iota(all.begin(), all.end(), 0);
        for (int j = there - 1; j > 0; --j) std::swap(all[j], all[below(j + 1)]);
        for (int j = 0; j < spec_.candidates; ++j) {
          const bool none = j >= there || below(8) == 0;
          blocks.push_back(!none ? all[j] : below(2) == 0 ? -1 : there + 1 + below(1 << 20));
        }
      }
    }
    case_.inputs.candidates = over_tokens(copy(blocks), Dtype::kI32, {spec_.candidates});
  }

  /// A table that gives each token a slot of its own.
  void slots() {
    const int columns = (columns_ * spec_.page_size + spec_.slot_page_size - 1) / spec_.slot_page_size;
    std::vector<std::int32_t> table(std::size_t{static_cast<unsigned>(batch())} * columns);
    std::iota(table.begin(), table.end(), 0);
    for (std::size_t i = table.size() - 1; i > 0; --i)
      std::swap(table[i], table[below(static_cast<std::int64_t>(i) + 1)]);
    case_.inputs.slot_table = {copy(table), Dtype::kI32, {batch(), columns}};
  }

  const IndexSpec& spec_;
  std::mt19937_64 engine_;
  RandomIndexCase case_;
  std::vector<std::int32_t> sums_;
  int columns_ = 0, pages_ = 0;
  std::int64_t stride_ = 0;
  std::uint8_t* bytes_ = nullptr;
};

}  // namespace

const char* to_string(IndexScores scores) {
  return name_of(kNames, scores);
}

RandomIndexCase make_index_case(const IndexSpec& spec, std::uint64_t seed) {
  return Maker(spec, seed).make();
}

}  // namespace flashlatent::runtime
