#include "runtime/read_cache.h"

#include <algorithm>

#include "core/formats/formats.h"
#include "core/message.h"

namespace flashlatent::runtime {

namespace {

/// One of the call's caches, as contiguous pages of bytes.
struct Pages {
  const void* data;
  std::int64_t page_bytes, page_size;
  std::int64_t token_bytes;
  /// A page's first tokens are its first bytes; otherwise each token lies all over the page (packed).
  bool in_rows;
  const LatentFormat* apart = nullptr;  ///< The format, if a page's scales follow its data.
};

Pages latent_pages(const DecodeProblem::Cache& cache, const LatentFormat& format, const void* data,
                   std::int64_t page_size) {
  if (format.is_record()) {
    return {data, format.least_page_stride(page_size, 0), page_size, format.token_stride(format.data_bytes),
            true, format.apart() ? &format : nullptr};
  }
  const std::int64_t token = (format.plain() ? 2 : 1) * cache.heads * cache.qk_dim;
  return {data, page_size * token, page_size, token, true};
}

std::vector<Pages> caches_of(const BenchInput& input) {
  const auto& cache = input.problem.cache;
  if (cache.layout == KvLayout::kLatent) {
    return {latent_pages(cache, format_of(cache), input.kv_cache.data(), cache.page_size)};
  }
  const std::int64_t element = cache.format == KvFormat::kE4m3 ? 1 : 2;
  const std::int64_t key = element * cache.heads * cache.qk_dim, value = element * cache.heads * cache.v_dim;
  const std::int64_t size = cache.page_size;
  const bool rows = cache.layout == KvLayout::kSeparate;
  return {{input.kv_cache.data(), key * size, size, key, rows},
          {input.value_cache.data(), value * size, size, value, rows}};
}

class Cutter {
 public:
  /// Adds tokens [first, first + count) of a page.
  void add(const Pages& cache, std::int64_t page, std::int64_t first, std::int64_t count) {
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(cache.data) + page * cache.page_bytes;
    add(begin + first * cache.token_bytes, count * cache.token_bytes);
    if (cache.apart == nullptr) return;
    // Rounded to whole words of 16 bytes, since bulk copies move those.
    const std::int64_t scales = cache.apart->scales_at(cache.page_size, first, 0) / 16 * 16;
    const std::int64_t end = cache.apart->scales_at(cache.page_size, first + count, 0);
    add(begin + scales, (end - scales + 15) / 16 * 16);
  }
  Result<std::vector<Piece>> finish() && {
    if (aligned_) return std::move(pieces_);
    return unsupported("the cache's rows are no multiple of 16 bytes; --with-read reads by copies of 16");
  }

 private:
  void add(std::uintptr_t address, std::int64_t bytes) {
    aligned_ &= address % 16 == 0 && bytes % 16 == 0;
    for (; bytes > 0; bytes -= Piece::kMostBytes, address += Piece::kMostBytes) {
      pieces_.push_back(
          {address, static_cast<std::uint64_t>(std::min<std::int64_t>(bytes, Piece::kMostBytes))});
    }
  }

  std::vector<Piece> pieces_;
  bool aligned_ = true;
};

}  // namespace

Result<std::vector<Piece>> cache_pieces(const BenchInput& input) {
  const auto& problem = input.problem;
  const std::int64_t page_size = problem.cache.page_size, columns = problem.cache.max_pages;
  const ExtraCache& extra = problem.cache.extra;
  const std::vector<Pages> caches = caches_of(input);
  Cutter cutter;
  auto add_token = [&cutter](const Pages& cache, std::int64_t token) {
    cutter.add(cache, token / cache.page_size, token % cache.page_size, 1);
  };
  for (const std::int32_t token : input.host_indices) add_token(caches[0], token);
  if (extra.enabled) {
    const Pages cache = latent_pages(problem.cache, extra_format_of(problem.cache),
                                     input.extra_kv_cache.data(), extra.page_size);
    for (const std::int32_t token : input.host_extra_indices) add_token(cache, token);
    // All requests have the same number of tokens; the last page counts as full.
    for (const std::int32_t page : input.host_extra_table) cutter.add(cache, page, 0, extra.page_size);
  }
  // A page that requests share is read once, up to the most tokens that one of them has in it.
  std::vector<std::int32_t> order;
  std::vector<std::int64_t> live;
  for (std::size_t request = 0; request < input.host_lengths.size(); ++request) {
    const std::int64_t length = input.host_lengths[request];
    for (std::int64_t page = 0; page * page_size < length; ++page) {
      const std::int32_t entry = input.host_table[request * columns + page];
      if (entry >= static_cast<std::int64_t>(live.size())) live.resize(entry + 1);
      if (live[entry] == 0) order.push_back(entry);
      live[entry] = std::max(live[entry], std::min(page_size, length - page * page_size));
    }
  }
  for (const std::int32_t entry : order) {
    for (const Pages& cache : caches) cutter.add(cache, entry, 0, cache.in_rows ? live[entry] : page_size);
  }
  return std::move(cutter).finish();
}

#if !FLASHLATENT_WITH_CUDA
Result<Timing> time_reading(const std::vector<Piece>& /*pieces*/, const TimingOptions& /*options*/,
                            const Executor& /*executor*/) {
  return available(Backend::kCuda);
}
#endif

}  // namespace flashlatent::runtime
