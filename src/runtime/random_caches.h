// The caches of a random case: pages in random order, and poison wherever no request has a token.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/formats/formats.h"
#include "flashlatent/decode.h"
#include "runtime/case_draws.h"
#include "runtime/case_spec.h"

namespace flashlatent::runtime {

/// Bytes that are added to a row's stride in a strided tensor.
inline constexpr int kRowPad = 16;

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

class RandomCaches {
 public:
  /// The inputs get caches and scales.
  RandomCaches(const CaseSpec& spec, CaseDraws& draws, DecodeInputs& inputs)
      : spec_(spec), draws_(draws), inputs_(inputs) {}

  /// The request whose pages this request shares, as far as both fill them; and how many.
  std::size_t leader_of(std::size_t request) const { return request - request % spec_.sharers; }
  int shared_pages(std::size_t request) const {
    const int shortest = std::min(spec_.lengths[request], spec_.lengths[leader_of(request)]);
    return std::max(0, std::min(spec_.shared_tokens, shortest)) / spec_.page_size;
  }

  /// Gives each request its pages, and writes its tokens. `shares_pages`: requests have their leader's, as
  /// far as the spec says.
  void make(PagedTokens& cache, bool shares_pages);
  /// The same for keys and values.
  void make_separate(PagedTokens& tokens);

 private:
  std::int64_t make_pages(PagedTokens& cache, bool shares_pages);
  float key_mean(int token) const;
  void write_token(const PagedTokens& cache, std::int64_t slot, float mean);
  std::int64_t make_rows(PagedTokens& cache, std::int64_t pages, Dtype dtype, std::int64_t dim,
                         std::int64_t unit = 1);
  void make_records(PagedTokens& cache, std::int64_t pages);
  ConstTensorView make_poisoned(Dtype dtype, std::initializer_list<std::int64_t> shape);
  void write(const ConstTensorView& view, const ConstTensorView& scale, int head,
             std::initializer_list<std::int64_t> place, float mean = 0);
  int batch() const { return static_cast<int>(spec_.lengths.size()); }

  const CaseSpec& spec_;
  CaseDraws& draws_;
  DecodeInputs& inputs_;
};

}  // namespace flashlatent::runtime
