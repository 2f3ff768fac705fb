// index_topk() on host memory. Scores of 64 tokens at a time: tokens are the lanes of vectors, so that the
// sum over heads needs no step across lanes. Then the threshold of a query token's scores, and one walk over
// them.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/e2m1.h"
#include "core/message.h"
#include "core/ue8m0.h"
#include "cpu/cache_arguments.h"
#include "cpu/cpu_backend.h"
#include "cpu/index_reference.h"
#include "cpu/parallel.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/index_topk.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::index_topk_simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;
constexpr Floats kFloats;

/// Sums in registers: kHeads x kVectors. 16 of 32 registers with AVX-512, 8 of 16 elsewhere.
constexpr int kTokens = 64, kDim = 128, kHeads = 4;
constexpr int kVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

/// relu that keeps NaN, which Max() need not.
HWY_INLINE Vector relu(Vector x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(kFloats)), x);
}

/// totals[t] = sum over heads of weights[h] * relu(q[h] . keys[t]); q (heads, 128), keys (128, 64).
void score_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT weights, int heads,
                const float* HWY_RESTRICT keys, float* HWY_RESTRICT totals) {
  const int lanes = static_cast<int>(hn::Lanes(kFloats));
  for (int token = 0; token < kTokens; token += kVectors * lanes) {
    Vector total[kVectors];
    for (int v = 0; v < kVectors; ++v) total[v] = hn::Zero(kFloats);
    for (int h = 0; h < heads; h += kHeads) {  // heads are a multiple of 8
      Vector sums[kHeads][kVectors];
      for (int i = 0; i < kHeads; ++i) {
        for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(kFloats);
      }
      for (int d = 0; d < kDim; ++d) {
        Vector key[kVectors];
        for (int v = 0; v < kVectors; ++v)
          key[v] = hn::LoadU(kFloats, keys + d * kTokens + token + v * lanes);
        for (int i = 0; i < kHeads; ++i) {
          const Vector query = hn::Set(kFloats, q[(h + i) * kDim + d]);
          for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(query, key[v], sums[i][v]);
        }
      }
      for (int i = 0; i < kHeads; ++i) {
        const Vector weight = hn::Set(kFloats, weights[h + i]);
        for (int v = 0; v < kVectors; ++v) total[v] = hn::MulAdd(weight, relu(sums[i][v]), total[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) hn::StoreU(total[v], kFloats, totals + token + v * lanes);
  }
}

}  // namespace flashlatent::cpu::index_topk_simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlatent::cpu {
namespace index_topk_simd {

HWY_EXPORT(score_tile);

void score(const float* q, const float* weights, int heads, const float* keys, float* totals) {
  HWY_DYNAMIC_DISPATCH(score_tile)(q, weights, heads, keys, totals);
}

}  // namespace index_topk_simd

namespace {

constexpr int kTile = 64, kChunk = 4096;
constexpr std::size_t kMostBytes = 256ULL << 20;

/// e4m3 codes as floats.
const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> kTable = [] {
    std::array<float, 256> t;
    for (int i = 0; i < 256; ++i) t[i] = e4m3::decode(static_cast<std::uint8_t>(i));
    return t;
  }();
  return kTable;
}

/// 128 elements, the i-th to to[i * stride].
void decode_fp8(const std::uint8_t* data, float* to, int stride) {
  const std::array<float, 256>& table = e4m3_table();
  for (int i = 0; i < index_keys::kDim; ++i) to[i * stride] = table[data[i]];
}
void decode_mxfp4(const std::uint8_t* data, const std::uint8_t* scales, float* to, int stride) {
  for (int i = 0; i < index_keys::kDim; i += 2) {
    const float scale = ue8m0::scale_value(scales[i / index_keys::kGroup]);
    to[i * stride] = scale * e2m1::decode(data[i / 2] & 0xFU);
    to[(i + 1) * stride] = scale * e2m1::decode(data[i / 2] >> 4);
  }
}

/// The workspace of a query token: its queries as floats, sortable scores, and room to order them.
struct RowSpace {
  float* q;
  std::uint32_t* scores;
  std::uint32_t* scratch;

  static std::size_t bytes(const IndexCall& call) {
    const std::size_t bytes = (std::size_t{static_cast<unsigned>(call.heads)} * index_keys::kDim +
                               2 * (std::size_t{static_cast<unsigned>(call.span)} + kTile)) *
                              4;
    return (bytes + 63) / 64 * 64;
  }
  static RowSpace at(const IndexCall& call, void* memory, std::int64_t i) {
    auto* begin = static_cast<std::uint8_t*>(memory) + i * bytes(call);
    auto* q = reinterpret_cast<float*>(begin);
    auto* scores = reinterpret_cast<std::uint32_t*>(q + std::int64_t{call.heads} * index_keys::kDim);
    return {q, scores, scores + call.span + kTile};
  }
};

/// Query tokens that are worked on at a time: one a thread, as far as memory allows.
std::int64_t rows_at_a_time(const IndexCall& call, const Executor& executor) {
  const auto fit = static_cast<std::int64_t>(kMostBytes / RowSpace::bytes(call));
  return std::min({call.rows(), std::int64_t{threads_of(executor)}, std::max<std::int64_t>(fit, 1)});
}

void decode_queries(const IndexCall& call, const IndexRow& row, float* to) {
  for (int h = 0; h < call.heads; ++h) {
    const std::uint8_t* data = call.q.at(row.request, row.token) + h * call.q.inner;
    if (call.fp4_query) {
      decode_mxfp4(data, call.q_scale.at(row.request, row.token) + h * call.q_scale.inner,
                   to + h * index_keys::kDim, 1);
    } else {
      decode_fp8(data, to + h * index_keys::kDim, 1);
    }
  }
}

/// Places of a query token that may have a token.
int places_of(const IndexCall& call, const IndexRow& row) {
  if (row.count == 0) return 0;
  return call.candidates > 0 ? call.span : call.visible(row.request, row.token, row.own, row.count);
}

/// The scores at 64 places from `first` on, as sortable numbers.
void score_places(const IndexCall& call, const IndexRow& row, const float* q, int first, int places,
                  std::uint32_t* to) {
  alignas(64) float keys[index_keys::kDim * kTile];
  alignas(64) float totals[kTile];
  float scales[kTile];
  bool exists[kTile] = {};
  const int visible = call.visible(row.request, row.token, row.own, row.count);
  const std::int32_t* blocks = call.candidates > 0 ? call.blocks.at(row.request, row.token) : nullptr;
  for (int t = 0; t < kTile; ++t) {
    const std::int64_t position = first + t < places ? call.position(blocks, first + t) : -1;
    const std::int64_t page = position >= 0 && position < visible ? call.page_of(row.request, position) : -1;
    exists[t] = page >= 0;
    scales[t] = 1;
    if (!exists[t]) {
      for (int d = 0; d < index_keys::kDim; ++d) keys[d * kTile + t] = 0;
      continue;
    }
    const std::int64_t offset = position % call.page_size;
    const std::uint8_t* begin = call.index_cache + page * call.page_stride;
    const std::uint8_t* data = begin + index_keys::data_offset(call.format, offset);
    const std::uint8_t* scale = begin + index_keys::scale_offset(call.format, call.page_size, offset);
    if (call.format == IndexFormat::kFp8_132) {
      decode_fp8(data, keys + t, kTile);
      std::memcpy(&scales[t], scale, sizeof(float));
    } else {
      decode_mxfp4(data, scale, keys + t, kTile);
    }
  }
  index_topk_simd::score(q, call.weights.at(row.request, row.token), call.heads, keys, totals);
  for (int t = 0; t < kTile; ++t) to[t] = exists[t] ? sortable(scales[t] * totals[t]) : kNoToken;
}

/// The same by the oracle, for all places.
void score_by_reference(const IndexCall& call, std::int64_t index, int places, std::uint32_t* to) {
  const std::vector<IndexScore> scores = index_scores(call, index);
  for (int i = 0; i < places; ++i) {
    to[i] = scores[i].exists ? sortable(static_cast<float>(scores[i].score)) : kNoToken;
  }
}

/// In place of scores: which tokens exist.
void mark_places(const IndexCall& call, const IndexRow& row, int first, int end, std::uint32_t* marks) {
  for (int place = first; place < end; ++place) {
    marks[place] = call.page_of(row.request, place) >= 0 ? kNoToken + 1 : kNoToken;
  }
}

/// Which numbers are chosen: all above `above`, and the first `ties` that are equal to it.
struct Threshold {
  std::uint32_t above = 0;
  int ties = 0;
  int chosen = 0;
};

/// The threshold that chooses the `wanted` largest of `count` numbers; kNoToken is never chosen. `scratch`
/// has room for `count` numbers.
Threshold threshold_of(const std::uint32_t* numbers, int count, int wanted, std::uint32_t* scratch) {
  int found = 0;
  for (int i = 0; i < count; ++i) {
    if (numbers[i] != kNoToken) scratch[found++] = numbers[i];
  }
  if (found <= wanted) return {kNoToken, 0, found};
  std::nth_element(scratch, scratch + wanted - 1, scratch + found, std::greater<>());
  const std::uint32_t last = scratch[wanted - 1];
  const auto above = std::count_if(scratch, scratch + wanted, [&](std::uint32_t x) { return x > last; });
  return {last, wanted - static_cast<int>(above), wanted};
}

/// Calls take(i) for what is chosen, in order.
template <class Take>
void choose(const std::uint32_t* numbers, int count, Threshold threshold, Take take) {
  for (int i = 0; i < count; ++i) {
    if (numbers[i] > threshold.above) {
      take(i);
    } else if (numbers[i] == threshold.above && threshold.ties > 0) {
      --threshold.ties;
      take(i);
    }
  }
}

void write_topk(const IndexCall& call, const IndexRow& row, const RowSpace& space, int places) {
  const Threshold threshold = threshold_of(space.scores, places, call.topk, space.scratch);
  std::int32_t* indices = call.indices.at(row.request, row.token);
  float* scores = call.scores.data != nullptr ? call.scores.at(row.request, row.token) : nullptr;
  const std::int32_t* blocks = call.candidates > 0 ? call.blocks.at(row.request, row.token) : nullptr;
  int written = 0;
  choose(space.scores, places, threshold, [&](int place) {
    if (scores != nullptr) scores[written] = score_of(space.scores[place]);
    indices[written++] = call.result(row.request, static_cast<int>(call.position(blocks, place)));
  });
  if (scores != nullptr) std::fill(scores + written, scores + call.topk, score_of(kNoToken));
  std::fill(indices + written, indices + call.topk, -1);
  if (call.counts.data != nullptr) *call.counts.at(row.request, row.token) = written;
}

void write_best_blocks(const IndexCall& call, const IndexRow& row, const RowSpace& space, int places) {
  std::uint32_t* best = space.scratch;
  const int blocks = (places + call.candidate_block - 1) / call.candidate_block;
  int newest = -1;
  for (int b = 0; b < blocks; ++b) {
    const int begin = b * call.candidate_block, end = std::min(places, begin + call.candidate_block);
    best[b] = *std::max_element(space.scores + begin, space.scores + end);
    if (best[b] != kNoToken) newest = b;
  }
  if (newest >= 0) best[newest] = 0xFFFFFFFFU;
  // Token scores are written already: their place is the room for the order.
  const Threshold threshold = threshold_of(best, blocks, call.best_blocks, space.scores);
  std::int32_t* to = call.best.at(row.request, row.token);
  int written = 0;
  choose(best, blocks, threshold, [&](int block) { to[written++] = block; });
  std::fill(to + written, to + call.best_blocks, -1);
}

void write_row(const IndexCall& call, const IndexRow& row, const RowSpace& space) {
  const int places = places_of(call, row);
  if (call.all_scores.data != nullptr) {
    float* all = call.all_scores.at(row.request, row.token);
    for (int i = 0; i < call.span; ++i) all[i] = score_of(i < places ? space.scores[i] : kNoToken);
  }
  write_topk(call, row, space, places);
  if (call.best_blocks > 0) write_best_blocks(call, row, space, places);
}

}  // namespace

Result<std::size_t> index_topk_workspace_bytes(const IndexCall& call, const Executor& executor) {
  return static_cast<std::size_t>(rows_at_a_time(call, executor)) * RowSpace::bytes(call);
}

Status index_topk(const IndexCall& call, Memory workspace, const Executor& executor) {
  const bool reference = executor.kernel == "reference";
  const std::int64_t at_a_time = rows_at_a_time(call, executor), rows = call.rows();
  const int threads = threads_of(executor), chunks = (call.span + kChunk - 1) / kChunk;
  for (std::int64_t first = 0; first < rows; first += at_a_time) {
    const std::int64_t count = std::min(at_a_time, rows - first);
    auto row_at = [&](std::int64_t i) { return row_of(call, static_cast<int>(first + i)); };
    parallel_for(count, threads, [&](std::int64_t i) {
      const RowSpace space = RowSpace::at(call, workspace.data, i);
      if (row_at(i).count > 0) decode_queries(call, row_at(i), space.q);
    });
    parallel_for_dynamic(count * chunks, threads, [&](std::int64_t item) {
      const std::int64_t i = item / chunks;
      const IndexRow row = row_at(i);
      const RowSpace space = RowSpace::at(call, workspace.data, i);
      const int places = places_of(call, row), begin = static_cast<int>(item % chunks) * kChunk;
      if (reference) {
        if (begin == 0) score_by_reference(call, first + i, places, space.scores);
        return;
      }
      const int end = std::min(begin + kChunk, places);
      if (call.needs_no_scores(places)) return mark_places(call, row, begin, end, space.scores);
      for (int place = begin; place < end; place += kTile) {
        score_places(call, row, space.q, place, places, space.scores + place);
      }
    });
    parallel_for_dynamic(count, threads, [&](std::int64_t i) {
      write_row(call, row_at(i), RowSpace::at(call, workspace.data, i));
    });
  }
  return {};
}

}  // namespace flashlatent::cpu
#endif  // HWY_ONCE
