// Attention of more rows than few_rows.h takes: a block is widened to fp32 once; outer products follow, with
// rows in the vector's lanes.
#include "cpu/block_math.h"

#include <algorithm>
#include <limits>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/block_math.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "cpu/round_e4m3-inl.h"
#include "cpu/score_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;

constexpr Floats kFloats;
HWY_INLINE int lanes() {
  return static_cast<int>(hn::Lanes(kFloats));
}

/// Widens `count` 16-bit elements to fp32, and writes zeros up to a multiple of 16.
template <class Element>
void widen_row(const std::uint16_t* HWY_RESTRICT from, int count, float* HWY_RESTRICT to) {
  const hn::Rebind<Element, Floats> narrow;
  const auto* elements = reinterpret_cast<const Element*>(from);
  const int n = lanes();
  int i = 0;
  for (; i + n <= count; i += n) {
    hn::Store(hn::PromoteTo(kFloats, hn::LoadU(narrow, elements + i)), kFloats, to + i);
  }
  if (i < count) {
    HWY_ALIGN std::uint16_t tail[16] = {};
    std::copy(from + i, from + count, tail);
    for (int j = 0; i + j < (count + 15) / 16 * 16; j += n) {
      hn::Store(hn::PromoteTo(kFloats, hn::Load(narrow, reinterpret_cast<const Element*>(tail + j))), kFloats,
                to + i + j);
    }
  }
}

void widen(Dtype dtype, const std::uint16_t* from, int count, float* to) {
  if (dtype == Dtype::kBF16) {
    widen_row<hwy::bfloat16_t>(from, count, to);
  } else {
    widen_row<hwy::float16_t>(from, count, to);
  }
}

void load_query(const TileState& tile, const QueryRow* query_rows) {
  float* row_values = tile.kv;  // free before the first block
  const int first = tile.spec.first_columns, rope = tile.spec.qk_dim - first;
  std::fill_n(tile.q, tile.spec.qk_dim * tile.row_stride, 0.0F);
  for (int row = 0; row < tile.rows; ++row) {
    widen(tile.spec.dtype, query_rows[row].first, first, row_values);
    if (rope > 0) widen(tile.spec.dtype, query_rows[row].rope, rope, row_values + first);
    for (int d = 0; d < tile.spec.qk_dim; ++d) tile.q[d * tile.row_stride + row] = row_values[d];
  }
}

/// Scores of kTokens tokens by 16 * kRowBlocks rows: one outer product for each column of K. The sums stay in
/// registers.
template <int kTokens, int kVectors>
void score_outer(const TileState& tile, int token, int row) {
  Vector sums[kTokens][kVectors];
  for (auto& token_sums : sums) {
    for (Vector& sum : token_sums) sum = hn::Zero(kFloats);
  }
  const int n = lanes();
  const float* HWY_RESTRICT q = tile.q + row;
  const float* HWY_RESTRICT k = tile.kv + token * tile.kv_stride;
  for (int d = 0; d < tile.spec.qk_dim; ++d, q += tile.row_stride) {
    Vector q_values[kVectors];
    for (int v = 0; v < kVectors; ++v) q_values[v] = hn::Load(kFloats, q + v * n);
    for (int t = 0; t < kTokens; ++t) {
      const Vector k_value = hn::Set(kFloats, k[t * tile.kv_stride + d]);
      for (int v = 0; v < kVectors; ++v) sums[t][v] = hn::MulAdd(k_value, q_values[v], sums[t][v]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sums[t][v], kFloats, tile.scores + (token + t) * tile.row_stride + row + v * n);
    }
  }
}

/// Scores of all tokens for kVectors vectors of rows.
template <int kTokens, int kVectors>
void score_rows(const TileState& tile, int tokens, int row) {
  int token = 0;
  for (; token + kTokens <= tokens; token += kTokens) score_outer<kTokens, kVectors>(tile, token, row);
  for (; token < tokens; ++token) score_outer<1, kVectors>(tile, token, row);
}

void score(const TileState& tile, int tokens) {
  const int n = lanes();
  int row = 0;
  for (; row + 4 * n <= tile.row_stride; row += 4 * n) score_rows<4, 4>(tile, tokens, row);
  for (; row + 2 * n <= tile.row_stride; row += 2 * n) score_rows<8, 2>(tile, tokens, row);
  for (; row < tile.row_stride; row += n) score_rows<8, 1>(tile, tokens, row);
}

/// Applies scale, soft cap and ALiBi to all scores.
void transform(const TileState& tile, const Block& block) {
  const ScoreTransform<Floats> transform(tile.spec);
  for (int row = 0; row < tile.row_stride; row += lanes()) {
    const Vector slopes = tile.spec.alibi ? hn::Load(kFloats, tile.slopes + row) : hn::Zero(kFloats);
    for (int t = 0; t < block.tokens; ++t) {
      float* scores = tile.scores + t * tile.row_stride + row;
      const Vector distance = hn::Set(kFloats, tile.spec.alibi ? block.distances[t] : 0.0F);
      hn::Store(transform(hn::Load(kFloats, scores), slopes, distance), kFloats, scores);
    }
  }
}

/// scores = exp(scale * scores - max), with rows in the lanes. A token that a row does not see gets 0.
void softmax(const TileState& tile, const Block& block) {
  const int n = lanes();
  const int tokens = block.tokens;
  const Vector scale = hn::Set(kFloats, tile.spec.transforms() ? 1.0F : tile.spec.scale);
  const Vector minus_infinity = hn::Set(kFloats, -std::numeric_limits<float>::infinity());
  for (int row = 0; row < tile.row_stride; row += n) {
    HWY_ALIGN float begins[16], ends[16];
    for (int i = 0; i < n; ++i) {
      const bool live = row + i < tile.rows;
      begins[i] = live ? static_cast<float>(block.seen[row + i].begin) : 0.0F;
      ends[i] = live ? static_cast<float>(block.seen[row + i].end) : 0.0F;
    }
    const Vector begin = hn::Load(kFloats, begins), end = hn::Load(kFloats, ends);
    float* scores = tile.scores + row;
    const Vector before = hn::Load(kFloats, tile.max + row);
    Vector max = before;
    for (int t = 0; t < tokens; ++t) {
      float* score = scores + t * tile.row_stride;
      const Vector token = hn::Set(kFloats, static_cast<float>(t));
      const auto seen = hn::And(hn::Ge(token, begin), hn::Lt(token, end));
      const Vector s = hn::IfThenElse(seen, hn::Mul(hn::Load(kFloats, score), scale), minus_infinity);
      hn::Store(s, kFloats, score);
      // NaN fails the comparison, so it does not raise the maximum
      max = hn::IfThenElse(hn::Gt(s, max), s, max);
    }
    const Vector base = hn::IfThenElse(hn::Eq(max, minus_infinity), hn::Zero(kFloats), max);
    const Vector shrink = hn::Exp(kFloats, hn::Sub(before, base));
    Vector sum = hn::Mul(hn::Load(kFloats, tile.sum + row), shrink);
    for (int t = 0; t < tokens; ++t) {
      float* score = scores + t * tile.row_stride;
      const Vector x = hn::Sub(hn::Load(kFloats, score), base);
      // Exp() of Highway gives 0 for NaN.
      const Vector p = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(kFloats, x));
      hn::Store(tile.spec.e4m3_products ? round_e4m3(kFloats, p) : p, kFloats, score);
      sum = hn::Add(sum, p);
    }
    hn::Store(max, kFloats, tile.max + row);
    hn::Store(sum, kFloats, tile.sum + row);
    hn::Store(shrink, kFloats, tile.shrink + row);
  }
}

/// out = shrink * out + P V for the tokens [begin, end), kRows rows and kVectors vectors of columns.
template <int kRows, int kVectors>
void accumulate(const TileState& tile, int begin, int end, int row, int column) {
  const int n = lanes();
  Vector sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    const Vector shrink = hn::Set(kFloats, tile.shrink[row + r]);
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] =
          hn::Mul(shrink, hn::Load(kFloats, tile.out + (row + r) * tile.out_stride + column + v * n));
    }
  }
  const float* HWY_RESTRICT value = tile.kv + begin * tile.kv_stride + column;
  const float* HWY_RESTRICT p = tile.scores + begin * tile.row_stride + row;
  for (int t = begin; t < end; ++t, value += tile.kv_stride, p += tile.row_stride) {
    Vector values[kVectors];
    for (int v = 0; v < kVectors; ++v) values[v] = hn::Load(kFloats, value + v * n);
    for (int r = 0; r < kRows; ++r) {
      const Vector weight = hn::Set(kFloats, p[r]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(weight, values[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sums[r][v], kFloats, tile.out + (row + r) * tile.out_stride + column + v * n);
    }
  }
}

template <int kRows>
void accumulate_rows(const TileState& tile, int begin, int end, int row) {
  constexpr int kVectors = kRows == 4 ? 4 : 8;
  const int n = lanes();
  int column = 0;
  for (; column + kVectors * n <= tile.out_stride; column += kVectors * n) {
    accumulate<kRows, kVectors>(tile, begin, end, row, column);
  }
  for (; column < tile.out_stride; column += n) accumulate<kRows, 1>(tile, begin, end, row, column);
}

/// Adds one token to one row that sees it; for tokens that not all rows see.
void accumulate_one(const TileState& tile, int token, int row) {
  const int n = lanes();
  const Vector weight = hn::Set(kFloats, tile.scores[token * tile.row_stride + row]);
  const float* value = tile.kv + token * tile.kv_stride;
  float* out = tile.out + row * tile.out_stride;
  for (int column = 0; column < tile.out_stride; column += n) {
    hn::Store(hn::MulAdd(weight, hn::Load(kFloats, value + column), hn::Load(kFloats, out + column)), kFloats,
              out + column);
  }
}

/// Widens a block's keys or values to fp32, and prefetches those of the next block.
void widen_block(const TileState& tile, const std::uint16_t* const* rows, int tokens, int dim,
                 const std::uint16_t* const* next_rows, int next_tokens) {
  constexpr int kLine = 64 / sizeof(std::uint16_t);
  for (int t = 0; t < tokens; ++t) {
    for (int d = 0; t < next_tokens && d < dim; d += kLine) fetch_ahead(next_rows[t] + d);
    widen(tile.spec.dtype, rows[t], dim, tile.kv + t * tile.kv_stride);
  }
}

void attend(const TileState& tile, const Block& block, const Block& next) {
  const TileSpec& spec = tile.spec;
  widen_block(tile, block.rows, block.tokens, spec.qk_dim, next.rows, next.tokens);
  score(tile, block.tokens);
  if (spec.transforms()) transform(tile, block);
  softmax(tile, block);
  if (!spec.latent) widen_block(tile, block.values, block.tokens, spec.v_dim, next.values, next.tokens);
  // Tokens that all rows see are done together. The others are done row by row, because 0 * NaN is NaN.
  const TokenSpan all = block.seen_by_all(0, tile.rows);
  int row = 0;
  for (; row + 4 <= tile.rows; row += 4) accumulate_rows<4>(tile, all.begin, all.end, row);
  for (; row + 2 <= tile.rows; row += 2) accumulate_rows<2>(tile, all.begin, all.end, row);
  for (; row < tile.rows; ++row) accumulate_rows<1>(tile, all.begin, all.end, row);
  for (row = 0; row < tile.rows; ++row) {
    const TokenSpan own = block.seen[row];
    for (int t = own.begin; t < std::min(all.begin, own.end); ++t) accumulate_one(tile, t, row);
    for (int t = all.end; t < own.end; ++t) accumulate_one(tile, t, row);
  }
}

const char* target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace flashlatent::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/cpu_backend.h"
#include "cpu/few_rows.h"

namespace flashlatent::cpu {

HWY_EXPORT(load_query);
HWY_EXPORT(attend);
HWY_EXPORT(target_name);

namespace {

int round_up(int x, int unit) {
  return (x + unit - 1) / unit * unit;
}

/// Multiplies each query row by its factor.
void scale_queries(const TileState& tile, const float* factors) {
  const bool few = tile.rows <= few_rows::kMaxRows;  // decides the layout of tile.q
  for (int row = 0; row < tile.rows; ++row) {
    float* q = tile.q + row * (few ? tile.kv_stride : 1);
    const int count = few ? tile.kv_stride : tile.spec.qk_dim, stride = few ? 1 : tile.row_stride;
    for (int i = 0; i < count; ++i) q[i * stride] *= factors[row];
  }
}

}  // namespace

std::size_t tile_floats(int qk_dim, int v_dim) {
  const std::size_t kv_stride = round_up(std::max(qk_dim, v_dim), 32), out_stride = round_up(v_dim, 32);
  return kTileRows * kv_stride + kBlockTokens * kv_stride + kBlockTokens * kTileRows +
         kTileRows * out_stride + 4 * kTileRows;
}

TileState start_tile(float* memory, const TileSpec& spec, const QueryRow* query_rows, int rows,
                     const float* factors) {
  TileState tile = {};
  tile.spec = spec;
  tile.rows = rows;
  tile.row_stride = round_up(rows, 16);
  tile.kv_stride = round_up(std::max(spec.qk_dim, spec.v_dim), 32);
  tile.out_stride = round_up(spec.v_dim, 32);
  auto take = [&memory](std::size_t floats) {
    float* begin = memory;
    memory += floats;
    return begin;
  };
  tile.q = take(std::size_t{kTileRows} * tile.kv_stride);
  tile.kv = take(std::size_t{kBlockTokens} * tile.kv_stride);
  tile.scores = take(std::size_t{kBlockTokens} * kTileRows);
  tile.out = take(std::size_t{kTileRows} * tile.out_stride);
  tile.max = take(kTileRows);
  tile.sum = take(kTileRows);
  tile.shrink = take(kTileRows);
  tile.slopes = take(kTileRows);
  std::fill_n(tile.scores, kBlockTokens * kTileRows, 0.0F);
  std::fill_n(tile.out, rows * tile.out_stride, 0.0F);
  std::fill_n(tile.max, kTileRows, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, kTileRows, 0.0F);
  std::fill_n(tile.slopes, kTileRows, 0.0F);
  if (rows <= few_rows::kMaxRows) {
    few_rows::load_queries(tile, query_rows);
  } else {
    HWY_DYNAMIC_DISPATCH(load_query)(tile, query_rows);
  }
  if (factors != nullptr) scale_queries(tile, factors);
  return tile;
}

void attend_block(const TileState& tile, const Block& block, const Block& next) {
  if (tile.rows <= few_rows::kMaxRows) {
    few_rows::attend_block(tile, block, next);
  } else {
    HWY_DYNAMIC_DISPATCH(attend)(tile, block, next);
  }
}

const char* simd_target() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace flashlatent::cpu
#endif
