#include "runtime/random_caches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/element.h"

namespace flashlatent::runtime {

namespace {

constexpr int kPagePad = 128;  // bytes that are added to a page's stride in a strided tensor

}  // namespace

/// Gives each request its pages; returns how many pages the cache has.
std::int64_t RandomCaches::make_pages(PagedTokens& cache, bool shares_pages) {
  std::int64_t used = 0;
  for (int length : cache.lengths) used += pages_for(length, cache.page_size);
  const std::int64_t count = used + 3;
  std::vector<std::int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), draws_.engine());
  auto next = order.begin();
  for (int length : cache.lengths) {
    cache.pages.emplace_back(next, next + pages_for(length, cache.page_size));
    next += pages_for(length, cache.page_size);
    if (!shares_pages) continue;
    const std::size_t request = cache.pages.size() - 1;
    std::copy_n(cache.pages[leader_of(request)].begin(), shared_pages(request), cache.pages[request].begin());
  }
  cache.spare_page = order.back();
  return count;
}

/// The mean of a token's key elements, for score_steps: qk_dim times its product with the mean of a query
/// row's elements is the row's share of the token's step.
float RandomCaches::key_mean(int token) const {
  const std::vector<float>& steps = spec_.score_steps;
  if (steps.empty()) return 0;
  return steps[token / spec_.step_tokens % steps.size()] /
         (spec_.logit_scale * std::sqrt(static_cast<float>(spec_.qk_dim)));
}

/// Writes the tokens of requests; everything else is poison.
void RandomCaches::make(PagedTokens& cache, bool shares_pages) {
  const std::int64_t pages = make_pages(cache, shares_pages);
  const LatentFormat& format = *cache.format;
  if (format.is_record()) {
    make_records(cache, pages);
  } else if (format.plain()) {
    const std::int64_t elements = make_rows(cache, pages, spec_.dtype, spec_.qk_dim);
    std::generate_n(reinterpret_cast<std::uint16_t*>(cache.at(0)), elements,
                    [this] { return draws_.poison(); });
  } else {  // 0xFF is NaN
    make_rows(cache, pages, Dtype::kU8, spec_.qk_dim);
    if (!inputs_.kv_scale.present()) inputs_.kv_scale = draws_.make_scales(spec_.scales);
  }
  for (int i = 0; i < batch(); ++i) {
    for (int t = 0; t < cache.lengths[i]; ++t) write_token(cache, cache.slot_of(i, t), key_mean(t));
  }
}

void RandomCaches::write_token(const PagedTokens& cache, std::int64_t slot, float mean) {
  const LatentFormat& format = *cache.format;
  if (format.is_record()) {
    const auto [data, scales] = cache.record_at(slot);
    draws_.records().write(format, data, scales, spec_.qk_dim != format.dim_without_rope, mean);
  } else if (format.plain()) {
    auto* row = reinterpret_cast<std::uint16_t*>(cache.at(slot));
    for (int head = 0; head < spec_.kv_heads; ++head, row += cache.view.strides[2]) {
      std::generate_n(row, spec_.qk_dim, [&] { return draws_.normal(mean); });
    }
  } else {
    draws_.write_codes(cache.at(slot), spec_.qk_dim, inputs_.kv_scale, 0, mean);
  }
}

/// Makes a cache whose rows have `dim` elements, with all bytes 0xFF; returns the elements of its memory.
/// Pages begin at multiples of `unit` elements.
std::int64_t RandomCaches::make_rows(PagedTokens& cache, std::int64_t pages, Dtype dtype, std::int64_t dim,
                                     std::int64_t unit) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const int heads = spec_.kv_heads;
  const std::int64_t row = dim + (spec_.strided ? kRowPad / element : 0);
  const std::int64_t least = row * heads * cache.page_size + (spec_.strided ? kPagePad / element : 0);
  const std::int64_t page = (least + unit - 1) / unit * unit;
  auto* memory = draws_.allocate<std::uint8_t>(pages * page * element);
  std::memset(memory, 0xFF, pages * page * element);
  cache.view = {memory, dtype, {pages, cache.page_size, heads, dim}};
  cache.view.strides = {page, row * heads, row, 1};
  return pages * page;
}

/// Makes a cache of a format with bytes of its own; all tokens are poison.
void RandomCaches::make_records(PagedTokens& cache, std::int64_t pages) {
  const LatentFormat& format = *cache.format;
  if (!format.apart()) {
    make_rows(cache, pages, Dtype::kU8, format.token_bytes(), format.page_unit);
  } else {
    const std::int64_t page =
        format.least_page_stride(cache.page_size, 0) + (spec_.strided ? kPageAlignment * 9 : 0);
    auto* memory = draws_.allocate<std::uint8_t>(pages * page);
    std::memset(memory, 0xFF, pages * page);
    cache.view = {memory, Dtype::kU8, {pages, cache.page_size, 1, format.token_bytes()}};
    cache.view.strides[0] = page;
  }
  for (std::int64_t slot = 0; slot < pages * cache.page_size; ++slot) {
    const auto [data, scales] = cache.record_at(slot);
    draws_.records().poison(format, data, scales);
  }
}

/// Makes caches of keys and values.
void RandomCaches::make_separate(PagedTokens& tokens) {
  const std::int64_t pages = make_pages(tokens, true);
  const bool packed = spec_.layout == KvLayout::kPacked;
  const Dtype dtype = spec_.format == KvFormat::kE4m3 ? Dtype::kU8 : spec_.dtype;
  inputs_.key_scale = draws_.make_scales(spec_.scales);
  inputs_.value_scale = draws_.make_scales(spec_.scales);
  const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(dtype)), page_size = spec_.page_size;
  if (packed) {
    inputs_.key_cache = make_poisoned(dtype, {pages, spec_.kv_heads, spec_.qk_dim / x, page_size, x});
    inputs_.value_cache = make_poisoned(dtype, {pages, spec_.kv_heads, spec_.v_dim, page_size});
  } else {
    inputs_.key_cache = make_poisoned(dtype, {pages, page_size, spec_.kv_heads, spec_.qk_dim});
    inputs_.value_cache = make_poisoned(dtype, {pages, page_size, spec_.kv_heads, spec_.v_dim});
  }
  for (int request = 0; request < batch(); ++request) {
    for (int t = 0; t < spec_.lengths[request]; ++t) {
      const std::int64_t page = tokens.pages[request][t / page_size], place = t % page_size;
      const float mean = key_mean(t);
      for (int head = 0; head < spec_.kv_heads; ++head) {
        for (int d = 0; d < spec_.qk_dim; ++d) {
          packed ? write(inputs_.key_cache, inputs_.key_scale, head, {page, head, d / x, place, d % x}, mean)
                 : write(inputs_.key_cache, inputs_.key_scale, head, {page, place, head, d}, mean);
        }
        for (int d = 0; d < spec_.v_dim; ++d) {
          packed ? write(inputs_.value_cache, inputs_.value_scale, head, {page, head, d, place})
                 : write(inputs_.value_cache, inputs_.value_scale, head, {page, place, head, d});
        }
      }
    }
  }
}

ConstTensorView RandomCaches::make_poisoned(Dtype dtype, std::initializer_list<std::int64_t> shape) {
  ConstTensorView view{nullptr, dtype, shape};
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  if (spec_.strided) {  // rows and pages are longer
    view.strides[2] += kRowPad / element;
    view.strides[1] = view.strides[2] * view.shape[2];
    view.strides[0] = view.strides[1] * view.shape[1] + kPagePad / element;
  }
  const std::int64_t elements = view.shape[0] * view.strides[0];
  auto* memory = draws_.allocate<std::uint8_t>(elements * element);
  if (dtype == Dtype::kU8) {
    std::generate_n(memory, elements, [this] { return draws_.bits() % 2 == 0 ? 0x7F : 0xFF; });
  } else {
    std::generate_n(reinterpret_cast<std::uint16_t*>(memory), elements, [this] { return draws_.poison(); });
  }
  view.data = memory;
  return view;
}

/// Writes a normal element. With e4m3 its code, in units of the scale if there is one.
void RandomCaches::write(const ConstTensorView& view, const ConstTensorView& scale, int head,
                         std::initializer_list<std::int64_t> place, float mean) {
  const std::int64_t offset =
      std::inner_product(place.begin(), place.end(), view.strides.begin(), std::int64_t{0});
  void* memory = const_cast<void*>(view.data);  // const_cast: this case owns the memory
  if (view.dtype != Dtype::kU8) {
    static_cast<std::uint16_t*>(memory)[offset] = draws_.normal(mean);
    return;
  }
  const auto* scales = static_cast<const float*>(scale.data);
  const float factor = scale.present() ? scales[spec_.scales > 1 ? head : 0] : 1;
  static_cast<std::uint8_t*>(memory)[offset] = e4m3::encode((draws_.real() + mean) / factor);
}

}  // namespace flashlatent::runtime
