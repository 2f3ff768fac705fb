#include "runtime/read_cache.h"

#include <algorithm>

#include "core/fp8_656.h"
#include "core/message.h"

namespace flashlatent::runtime {

namespace {

/// One of the call's caches: pages of contiguous bytes.
struct Pages {
  const void* data;
  std::int64_t token_bytes;
  bool in_rows;  ///< A page's first tokens are its first bytes; else they are all over it.
};

std::vector<Pages> caches_of(const BenchInput& input) {
  const auto& cache = input.problem.cache;
  if (cache.format == KvFormat::kFp8_656) return {{input.kv_cache.data(), fp8_656::kTokenBytes, true}};
  const std::int64_t element = cache.format == KvFormat::kE4m3 ? 1 : 2;
  const std::int64_t key = element * cache.heads * cache.qk_dim, value = element * cache.heads * cache.v_dim;
  if (cache.layout == KvLayout::kLatent) return {{input.kv_cache.data(), key, true}};
  const bool rows = cache.layout == KvLayout::kSeparate;
  return {{input.kv_cache.data(), key, rows}, {input.value_cache.data(), value, rows}};
}

class Cutter {
 public:
  void add(const Pages& cache, std::int64_t token, std::int64_t bytes) {
    auto address = reinterpret_cast<std::uintptr_t>(cache.data) + token * cache.token_bytes;
    aligned_ &= address % 16 == 0 && bytes % 16 == 0;
    for (; bytes > 0; bytes -= Piece::kMostBytes, address += Piece::kMostBytes) {
      pieces_.push_back(
          {address, static_cast<std::uint64_t>(std::min<std::int64_t>(bytes, Piece::kMostBytes))});
    }
  }
  Result<std::vector<Piece>> finish() && {
    if (aligned_) return std::move(pieces_);
    return unsupported("the cache's rows are no multiple of 16 bytes; --with-read reads by copies of 16");
  }

 private:
  std::vector<Piece> pieces_;
  bool aligned_ = true;
};

}  // namespace

Result<std::vector<Piece>> cache_pieces(const BenchInput& input) {
  const auto& problem = input.problem;
  const std::int64_t page_size = problem.cache.page_size, columns = problem.cache.max_pages;
  const std::vector<Pages> caches = caches_of(input);
  Cutter cutter;
  for (const std::int32_t token : input.host_indices) cutter.add(caches[0], token, caches[0].token_bytes);
  // Of a page that requests share, as many tokens as the longest of them has in it.
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
    for (const Pages& cache : caches) {
      const std::int64_t tokens = cache.in_rows ? live[entry] : page_size;
      cutter.add(cache, entry * page_size, tokens * cache.token_bytes);
    }
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
