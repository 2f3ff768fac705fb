#include "cpu/index_reference.h"
#include "core/e2m1.h"
#include "core/ue8m0.h"

#include <array>
#include <cmath>
#include <limits>

namespace flashlatent::cpu {

namespace {

using Elements = std::array<double, index_keys::kDim>;

double e2m1_at(const std::uint8_t* data, const std::uint8_t* scales, int i) {
  const double scale = ue8m0::scale_value(scales[i / index_keys::kGroup]);
  return scale * e2m1::decode(data[i / 2] >> (i % 2 * 4) & 0xF);
}

Elements query_of(const IndexCall& call, const IndexRow& row, int head) {
  const std::uint8_t* data = call.q.at(row.request, row.token) + head * call.q.inner;
  Elements q;
  for (int i = 0; i < index_keys::kDim; ++i) {
    q[i] = call.fp4_query
               ? e2m1_at(data, call.q_scale.at(row.request, row.token) + head * call.q_scale.inner, i)
               : e4m3::decode(data[i]);
  }
  return q;
}

/// The elements of a key, and the factor of its score.
double read_key(const IndexCall& call, std::int64_t page, std::int64_t offset, Elements& key) {
  const std::uint8_t* begin = call.index_cache + page * call.page_stride;
  const std::uint8_t* data = begin + index_keys::data_offset(call.format, offset);
  const std::uint8_t* scales = begin + index_keys::scale_offset(call.format, call.page_size, offset);
  for (int i = 0; i < index_keys::kDim; ++i) {
    key[i] = call.format == IndexFormat::kMxfp4_68 ? e2m1_at(data, scales, i) : e4m3::decode(data[i]);
  }
  if (call.format == IndexFormat::kMxfp4_68) return 1;
  float scale;
  std::memcpy(&scale, scales, sizeof(scale));
  return scale;
}

IndexScore score_of(const IndexCall& call, const IndexRow& row, const std::vector<Elements>& queries,
                    std::int64_t page, std::int64_t offset) {
  Elements key;
  const double scale = read_key(call, page, offset, key);
  const float* weights = call.weights.at(row.request, row.token);
  IndexScore result{.exists = true};
  for (int h = 0; h < call.heads; ++h) {
    double dot = 0, magnitude = 0;
    for (int i = 0; i < index_keys::kDim; ++i) {
      dot += queries[h][i] * key[i];
      magnitude += std::fabs(queries[h][i] * key[i]);
    }
    const double positive = dot < 0 ? 0 : dot;  // NaN stays
    result.score += scale * weights[h] * positive;
    result.magnitude += scale * std::fabs(weights[h]) * positive;
    result.products += scale * std::fabs(weights[h]) * magnitude;
  }
  if (std::isnan(result.score)) result.score = -std::numeric_limits<double>::infinity();
  return result;
}

}  // namespace

std::vector<IndexScore> index_scores(const IndexCall& call, std::int64_t index) {
  const IndexRow row = row_of(call, static_cast<int>(index));
  std::vector<IndexScore> scores(call.span);
  if (row.count == 0) return scores;
  std::vector<Elements> queries;
  queries.reserve(call.heads);
  for (int h = 0; h < call.heads; ++h) queries.push_back(query_of(call, row, h));
  const int visible = call.visible(row.request, row.token, row.own, row.count);
  const std::int32_t* blocks = call.candidates > 0 ? call.blocks.at(row.request, row.token) : nullptr;
  for (int place = 0; place < call.span; ++place) {
    const std::int64_t position = call.position(blocks, place);
    if (position < 0 || position >= visible) continue;
    const std::int64_t page = call.page_of(row.request, position);
    if (page >= 0) scores[place] = score_of(call, row, queries, page, position % call.page_size);
  }
  return scores;
}

}  // namespace flashlatent::cpu
