// Attention of few query rows: each cached element is widened in registers where it is used, since there are
// few operations a byte.
#include "cpu/few_rows.h"

#include <algorithm>
#include <limits>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/few_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "cpu/round_e4m3-inl.h"
#include "cpu/score_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::few_rows::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;

constexpr Floats kFloats;
using cpu::HWY_NAMESPACE::round_e4m3;
using cpu::HWY_NAMESPACE::ScoreTransform;
HWY_INLINE int lanes() {
  return static_cast<int>(hn::Lanes(kFloats));
}

/// Sums that stay in registers. 8 hide the latency of two units and fit 16 registers. With 32 registers 16
/// sums halve the loads of Q and of weights: 4 rows are 16 % faster, 1 row is not.
constexpr int sums_of(int rows) {
  return HWY_TARGET <= HWY_AVX3 && rows == 4 ? 16 : 8;
}

/// Two vectors of fp32 from 2 n 16-bit elements, in the order that is cheapest to make ("pair order").
struct Pair {
  Vector a, b;
};

/// By the target's conversion, in the elements' own order.
template <class Narrow>
struct Promoted {
  static HWY_INLINE Pair load(const std::uint16_t* from) {
    const hn::Rebind<Narrow, Floats> narrow;
    const auto* elements = reinterpret_cast<const Narrow*>(from);
    return {hn::PromoteTo(kFloats, hn::LoadU(narrow, elements)),
            hn::PromoteTo(kFloats, hn::LoadU(narrow, elements + lanes()))};
  }
  static HWY_INLINE Pair load_floats(const float* from) {
    return {hn::Load(kFloats, from), hn::Load(kFloats, from + lanes())};
  }
  static HWY_INLINE void store_floats(const Pair& pair, float* to) {
    hn::Store(pair.a, kFloats, to);
    hn::Store(pair.b, kFloats, to + lanes());
  }
};
using Fp16 = Promoted<hwy::float16_t>;

#if HWY_TARGET == HWY_SCALAR  // a scalar "vector" has no halves
using Bf16 = Promoted<hwy::bfloat16_t>;
#else
/// bf16 is the upper half of fp32: a shift gives the even elements, a mask the odd ones.
struct Bf16 {
  static HWY_INLINE Pair load(const std::uint16_t* from) {
    const hn::Repartition<std::uint16_t, Floats> halves;
    const hn::RebindToUnsigned<Floats> words;
    const auto both = hn::BitCast(words, hn::LoadU(halves, from));
    return {hn::BitCast(kFloats, hn::ShiftLeft<16>(both)),
            hn::BitCast(kFloats, hn::And(both, hn::Set(words, 0xFFFF0000U)))};
  }
  static HWY_INLINE Pair load_floats(const float* from) {
    Pair pair;
    hn::LoadInterleaved2(kFloats, from, pair.a, pair.b);
    return pair;
  }
  static HWY_INLINE void store_floats(const Pair& pair, float* to) {
    hn::StoreInterleaved2(pair.a, pair.b, kFloats, to);
  }
};
#endif

/// The pair at `column` of a row with `count` elements; zeros past its end.
template <class Element>
HWY_INLINE Pair load_tail(const std::uint16_t* row, int column, int count) {
  HWY_ALIGN std::uint16_t tail[32] = {};
  std::copy(row + column, row + std::min(column + 2 * lanes(), count), tail);
  return Element::load(tail);
}

/// Stores query rows in pair order, with zeros past qk_dim.
template <class Element>
void load_rows(const TileState& tile, const QueryRow* query_rows) {
  const int n = lanes(), first = tile.spec.first_columns, rope = tile.spec.qk_dim - first;
  for (int row = 0; row < tile.rows; ++row) {
    for (int d = 0; d < tile.kv_stride; d += 2 * n) {  // 2 n divides `first` where RoPE columns follow
      const bool is_rope = rope > 0 && d >= first;
      const int count = is_rope ? rope : first;
      const Pair pair = load_tail<Element>(is_rope ? query_rows[row].rope : query_rows[row].first,
                                           std::min(is_rope ? d - first : d, count), count);
      float* q = tile.q + row * tile.kv_stride + d;
      hn::Store(pair.a, kFloats, q);
      hn::Store(pair.b, kFloats, q + n);
    }
  }
}

/// Scores of kRows rows and kTokens tokens, whose cached rows are k[0], k[1], ...; meanwhile prefetches
/// `ahead`.
template <class Element, int kRows, int kTokens>
HWY_INLINE void score(const TileState& tile, const std::uint16_t* const* k, const std::uint16_t* const* ahead,
                      int row, int token) {
  const int n = lanes();
  const float* HWY_RESTRICT q = tile.q + row * tile.kv_stride;
  Vector sums[kTokens][kRows];
  for (auto& token_sums : sums) {
    for (Vector& sum : token_sums) sum = hn::Zero(kFloats);
  }
  auto add = [&](int t, int d, const Pair& pair) HWY_ATTR {
    for (int r = 0; r < kRows; ++r) {
      const float* HWY_RESTRICT values = q + r * tile.kv_stride + d;
      sums[t][r] = hn::MulAdd(pair.a, hn::Load(kFloats, values), sums[t][r]);
      sums[t][r] = hn::MulAdd(pair.b, hn::Load(kFloats, values + n), sums[t][r]);
    }
  };
  int d = 0;
  for (; d + 2 * n <= tile.spec.qk_dim; d += 2 * n) {
    for (int t = 0; t < kTokens; ++t) {
      fetch_ahead(ahead[t] + d);
      add(t, d, Element::load(k[t] + d));
    }
  }
  if (d < tile.spec.qk_dim) {
    for (int t = 0; t < kTokens; ++t) add(t, d, load_tail<Element>(k[t], d, tile.spec.qk_dim));
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) {
      tile.scores[(row + r) * kBlockTokens + token + t] = hn::GetLane(hn::SumOfLanes(kFloats, sums[t][r]));
    }
  }
}

/// Applies scale, soft cap and ALiBi to one row's scores.
void transform(const TileState& tile, const Block& block, int row) {
  const ScoreTransform<Floats> transform(tile.spec);
  const Vector slope = hn::Set(kFloats, tile.slopes[row]);
  float* scores = tile.scores + row * kBlockTokens;
  for (int t = 0; t < block.tokens; t += lanes()) {
    const Vector distances = tile.spec.alibi ? hn::LoadU(kFloats, block.distances + t) : hn::Zero(kFloats);
    hn::Store(transform(hn::Load(kFloats, scores + t), slope, distances), kFloats, scores + t);
  }
}

/// Replaces one row's scores by P, with tokens in the lanes. Returns the factor that brings the row's earlier
/// sums to the new maximum.
float softmax(const TileState& tile, const Block& block, int row) {
  const int n = lanes();
  const float infinity = std::numeric_limits<float>::infinity();
  float* scores = tile.scores + row * kBlockTokens;
  const Vector minus_infinity = hn::Set(kFloats, -infinity);
  const int tokens = block.tokens;
  const Vector scale = hn::Set(kFloats, tile.spec.transforms() ? 1.0F : tile.spec.scale);
  const Vector begin = hn::Set(kFloats, static_cast<float>(block.seen[row].begin));
  const Vector end = hn::Set(kFloats, static_cast<float>(block.seen[row].end));
  Vector maxima = hn::Set(kFloats, tile.max[row]);
  for (int t = 0; t < tokens; t += n) {
    const Vector token = hn::Iota(kFloats, static_cast<float>(t));
    const auto seen = hn::And(hn::Ge(token, begin), hn::Lt(token, end));
    const Vector s = hn::IfThenElse(seen, hn::Mul(hn::Load(kFloats, scores + t), scale), minus_infinity);
    hn::Store(s, kFloats, scores + t);
    // NaN fails the comparison, so it does not raise the maximum
    maxima = hn::IfThenElse(hn::Gt(s, maxima), s, maxima);
  }
  const float max = hn::GetLane(hn::MaxOfLanes(kFloats, maxima));
  const Vector base = hn::Set(kFloats, max == -infinity ? 0.0F : max);
  const float shrink = hn::GetLane(hn::Exp(kFloats, hn::Sub(hn::Set(kFloats, tile.max[row]), base)));
  Vector sums = hn::Zero(kFloats);
  for (int t = 0; t < tokens; t += n) {
    const Vector x = hn::Sub(hn::Load(kFloats, scores + t), base);
    // Exp() of Highway gives 0 for NaN.
    const Vector p = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(kFloats, x));
    hn::Store(tile.spec.e4m3_products ? round_e4m3(kFloats, p) : p, kFloats, scores + t);
    sums = hn::Add(sums, p);
  }
  tile.max[row] = max;
  tile.sum[row] = tile.sum[row] * shrink + hn::GetLane(hn::SumOfLanes(kFloats, sums));
  return shrink;
}

/// Elements that may be read from where a value begins.
HWY_INLINE int value_row(const TileState& tile) {
  return tile.spec.latent ? tile.spec.qk_dim : tile.spec.v_dim;
}

/// out = shrink * out + P V for kRows rows, kPairs pairs of columns and the tokens [begin, end).
template <class Element, int kRows, int kPairs, bool kTail = false>
HWY_INLINE void accumulate(const TileState& tile, const std::uint16_t* const* values, int row, int column,
                           int begin, int end, const float* shrink) {
  const int n = lanes();
  Pair sums[kRows][kPairs];
  for (int r = 0; r < kRows; ++r) {
    const Vector factor = hn::Set(kFloats, shrink[row + r]);
    for (int i = 0; i < kPairs; ++i) {
      const Pair out = Element::load_floats(tile.out + (row + r) * tile.out_stride + column + i * 2 * n);
      sums[r][i] = {hn::Mul(out.a, factor), hn::Mul(out.b, factor)};
    }
  }
  const float* HWY_RESTRICT p = tile.scores + row * kBlockTokens;
  for (int t = begin; t < end; ++t) {
    for (int i = 0; i < kPairs; ++i) {
      const Pair value = kTail ? load_tail<Element>(values[t], column, value_row(tile))
                               : Element::load(values[t] + column + i * 2 * n);
      for (int r = 0; r < kRows; ++r) {
        const Vector weight = hn::Set(kFloats, p[r * kBlockTokens + t]);
        sums[r][i].a = hn::MulAdd(weight, value.a, sums[r][i].a);
        sums[r][i].b = hn::MulAdd(weight, value.b, sums[r][i].b);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kPairs; ++i) {
      Element::store_floats(sums[r][i], tile.out + (row + r) * tile.out_stride + column + i * 2 * n);
    }
  }
}

template <class Element, int kRows>
void accumulate_columns(const TileState& tile, const std::uint16_t* const* values, int row, int begin,
                        int end, const float* shrink) {
  constexpr int kPairs = sums_of(kRows) / 2 / kRows;
  const int pair = 2 * lanes();
  int column = 0;
  for (; column + kPairs * pair <= tile.spec.v_dim; column += kPairs * pair) {
    accumulate<Element, kRows, kPairs>(tile, values, row, column, begin, end, shrink);
  }
  for (; column + pair <= value_row(tile) && column < tile.spec.v_dim; column += pair) {
    accumulate<Element, kRows, 1>(tile, values, row, column, begin, end, shrink);
  }
  if (column < tile.spec.v_dim) {
    accumulate<Element, kRows, 1, true>(tile, values, row, column, begin, end, shrink);
  }
}

/// Adds one block to the rows [row, row + kRows).
template <class Element, int kRows>
void attend_rows(const TileState& tile, const Block& block, const std::uint16_t* const* ahead, int row) {
  constexpr int kTokens = sums_of(kRows) / kRows;
  int t = 0;
  for (; t + kTokens <= block.tokens; t += kTokens) {
    score<Element, kRows, kTokens>(tile, block.rows + t, ahead + t, row, t);
  }
  for (; t < block.tokens; ++t) score<Element, kRows, 1>(tile, block.rows + t, ahead + t, row, t);
  float* shrink = tile.shrink;
  for (int r = row; r < row + kRows; ++r) {
    if (tile.spec.transforms()) transform(tile, block, r);
    shrink[r] = softmax(tile, block, r);
  }
  // Tokens that all rows see are done together. The others are done row by row, because 0 * NaN is NaN.
  const TokenSpan all = block.seen_by_all(row, kRows);
  accumulate_columns<Element, kRows>(tile, block.values, row, all.begin, all.end, shrink);
  for (int r = row; r < row + kRows; ++r) {
    shrink[r] = 1;
    const auto [begin, end] = block.seen[r];
    const int before = std::min(all.begin, end);
    if (begin < before) accumulate_columns<Element, 1>(tile, block.values, r, begin, before, shrink);
    if (all.end < end) accumulate_columns<Element, 1>(tile, block.values, r, all.end, end, shrink);
  }
}

template <class Element>
void attend(const TileState& tile, const Block& block, const Block& next) {
  const std::uint16_t* ahead[kBlockTokens];
  for (int t = 0; t < block.tokens; ++t) ahead[t] = t < next.tokens ? next.rows[t] : block.rows[t];
  // Scores prefetch the next block's keys, or latent rows; its values are prefetched here.
  for (int t = 0; !tile.spec.latent && t < next.tokens; ++t) {
    for (int d = 0; d < tile.spec.v_dim; d += 64 / static_cast<int>(sizeof(std::uint16_t))) {
      fetch_ahead(next.values[t] + d);
    }
  }
  int row = 0;
  for (; row + 4 <= tile.rows; row += 4) attend_rows<Element, 4>(tile, block, ahead, row);
  for (; row + 2 <= tile.rows; row += 2) attend_rows<Element, 2>(tile, block, ahead, row);
  if (row < tile.rows) attend_rows<Element, 1>(tile, block, ahead, row);
}

void load_queries_of(const TileState& tile, const QueryRow* query_rows) {
  if (tile.spec.dtype == Dtype::kBF16) {
    load_rows<Bf16>(tile, query_rows);
  } else {
    load_rows<Fp16>(tile, query_rows);
  }
}

void attend_of(const TileState& tile, const Block& block, const Block& next) {
  if (tile.spec.dtype == Dtype::kBF16) {
    attend<Bf16>(tile, block, next);
  } else {
    attend<Fp16>(tile, block, next);
  }
}

}  // namespace flashlatent::cpu::few_rows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlatent::cpu::few_rows {

HWY_EXPORT(load_queries_of);
HWY_EXPORT(attend_of);

void load_queries(const TileState& tile, const QueryRow* query_rows) {
  HWY_DYNAMIC_DISPATCH(load_queries_of)(tile, query_rows);
}

void attend_block(const TileState& tile, const Block& block, const Block& next) {
  HWY_DYNAMIC_DISPATCH(attend_of)(tile, block, next);
}

}  // namespace flashlatent::cpu::few_rows
#endif
