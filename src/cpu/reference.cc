#include "cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.h"
#include "core/formats/formats.h"
#include "cpu/cpu_backend.h"
#include "cpu/parallel.h"
#include "cpu/plain_rounding.h"
#include "cpu/reference_rows.h"
#include "cpu/reference_tokens.h"
#include "cpu/token_rows.h"

namespace flashlatent::cpu {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The weight of a token's p^2 |v|^2 in `spread`. A token that is named several times is rounded in the same
/// way each time, and a kernel that continues with an older maximum rounds its P even if it is the largest.
/// It counts with u, the most that rounding P loses, in place of the 0.6 u that a tolerance comes to.
double spread_weight(int repeats, bool is_largest) {
  if (repeats > 1) return repeats / (0.6 * 0.6);
  return is_largest ? 0 : 1;
}

/// Applies soft cap and ALiBi to a score.
template <class Real>
Real transformed(Real score, const DecodeProblem& problem, const DecodeInputs& inputs, int head,
                 std::int64_t distance) {
  const Real cap = problem.options.separate.soft_cap;
  if (cap != 0) score = cap * std::tanh(score / cap);
  if (!problem.options.separate.alibi) return score;
  return score + static_cast<const float*>(inputs.alibi_slopes.data)[head] * static_cast<Real>(distance);
}

/// Turns a row back by out_rotate.
void turn_back(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
               ReferenceRow& row) {
  const edges::Rotary rotary = edges::rotary_of(inputs.out_rotate, /*back=*/true);
  const std::int64_t position = position_of(rotary, problem, inputs, request, token);
  const int first = problem.cache.v_dim - rotary.columns;
  const std::vector<double> before(row.out.begin() + first, row.out.end());
  double norm2 = 0;   // of the turned columns
  double growth = 1;  // the longest (cos, sin): by so much the rotation may enlarge errors
  for (int column = 0; column < rotary.columns; ++column) {
    const edges::Angle angle = rotary.angle(position, rotary.pair_of(column));
    const int partner = rotary.partner_of(column);
    const double sine = partner > column ? -angle.sin : angle.sin;
    const double turned = before[column] * angle.cos + before[partner] * sine;
    row.out[first + column] = turned;
    if (std::isfinite(turned)) norm2 += turned * turned;
    growth = std::max(growth, std::hypot(double{angle.cos}, double{angle.sin}));
  }
  rotate_columns(row.plain_out.data(), first, rotary, position);
  for (float& value : row.plain_out) value = rounded(value, problem.cache.dtype);
  const double again = 0.4 * unit_roundoff(problem.cache.dtype) * std::sqrt(norm2);
  row.out_rounding = std::hypot(row.out_rounding * growth, again);
}

/// One query row on its way to a result: first the scores of all tokens, then the sum of their values.
class HeadRow {
 public:
  HeadRow(const DecodeProblem& problem, const DecodeInputs& inputs, const Working& working, int request,
          int token, int head)
      : problem_(problem),
        inputs_(inputs),
        working_(working),
        request_(request),
        token_(token),
        head_(head),
        query_(query_elements(problem, inputs, request, token, head, inputs.q_scale)),
        plain_query_(working_query(problem, query_)),
        reads_rounded_(working.rounds_cached(format_of(problem.cache))),
        e4m3_products_(problem.fp8_products()),
        result_{.out = std::vector<double>(problem.cache.v_dim),
                .lse = -kInfinity,
                .plain_out = std::vector<float>(problem.cache.v_dim),
                .plain_lse = -std::numeric_limits<float>::infinity(),
                .lse_rounding = 0,
                .out_rounding = 0,
                .max_logit = -kInfinity,
                .plain_max_logit = -std::numeric_limits<float>::infinity(),
                .max_logit_rounding = 0} {}

  /// A token's key, and as it is read in the working precision.
  void add_key(const double* key, const float* read, std::int64_t distance) {
    double score = 0, read_score = 0;
    float plain_score = 0;
    Fp32Sums fp32_sums;
    E4m3Sums e4m3_sums;
    for (int d = 0; d < problem_.cache.qk_dim; ++d) {
      score += query_[d] * key[d];
      if (reads_rounded_) read_score += query_[d] * read[d];
      const float product = plain_query_[d] * read[d];
      plain_score += product;
      if (e4m3_products_) {
        e4m3_sums.add(d, product, plain_score);
      } else {
        fp32_sums.add(product, plain_score);
      }
    }
    const float scale = problem_.options.softmax_scale;
    const float plain_scale = scale * working_.scale();
    const double rounding = e4m3_products_ ? e4m3_sums.rounding() : fp32_sums.rounding();
    roundings_.push_back(rounding * std::abs(plain_scale));
    scores_.push_back(transformed(score * scale, problem_, inputs_, head_, distance));
    if (!reads_rounded_) read_score = score;
    read_scores_.push_back(transformed(read_score * scale, problem_, inputs_, head_, distance));
    plain_scores_.push_back(transformed(plain_score * plain_scale, problem_, inputs_, head_, distance));
  }

  /// Behind the last key.
  void begin_values() {
    for (double score : scores_) max_ = std::max(max_, score);
    for (float score : plain_scores_) plain_max_ = std::max(plain_max_, score);
    // A row is empty if it has no token, or if all its scores are -inf.
    empty_ = std::all_of(scores_.begin(), scores_.end(), [](double s) { return s == -kInfinity; });
  }

  /// Token i's value, as it is read, the sum of its squares, and how often the token is among all.
  void add_value(std::size_t i, const double* value, const float* read, double norm2, int repeats) {
    if (empty_) return;
    const double p = std::exp(scores_[i] - max_);
    const float plain_p = std::exp(plain_scores_[i] - plain_max_);
    const float rounded_p = working_.probability(plain_p);
    const double read_p = std::exp(read_scores_[i] - max_);
    sum_ += p;
    read_sum_ += read_p;
    plain_sum_ += plain_p;
    rounding2_ += repeats * (p * roundings_[i]) * (p * roundings_[i]);
    spread_ += spread_weight(repeats, p == 1 && !e4m3_products_) * p * p * norm2;
    size2_ += p * norm2;
    for (int d = 0; d < problem_.cache.v_dim; ++d) {
      result_.out[d] += p * value[d];
      result_.plain_out[d] += rounded_p * read[d];
      if (reads_rounded_) read_out_[d] += read_p * read[d];
    }
  }

  /// Behind the last value.
  ReferenceRow result() {
    if (empty_) return std::move(result_);
    result_.lse = max_ + std::log(sum_);
    result_.max_logit = std::isnan(result_.lse) ? result_.lse : max_;
    result_.plain_lse = plain_max_ + std::log(plain_sum_);
    result_.plain_max_logit = plain_max_;
    const auto magnitude = [](double x) { return std::isfinite(x) ? std::abs(x) : 0; };
    const double read_lse = max_ + std::log(read_sum_);
    const double deviations = e4m3_products_ ? 1 : kDeviations;
    const std::size_t largest = std::max_element(scores_.begin(), scores_.end()) - scores_.begin();
    result_.lse_rounding = magnitude(read_lse - result_.lse) + deviations * std::sqrt(rounding2_) / sum_;
    result_.max_logit_rounding =
        magnitude(read_scores_[largest] - max_) + deviations * magnitude(roundings_[largest]);
    double keep = 1, plain_keep = 1, read_keep = 1;  // what the sink leaves
    if (problem_.options.attn_sink) {
      const double sink = static_cast<const float*>(inputs_.attn_sink.data)[head_];
      keep = 1 / (1 + std::exp(sink - result_.lse));
      plain_keep = 1 / (1 + std::exp(sink - result_.plain_lse));
      read_keep = 1 / (1 + std::exp(sink - read_lse));
    }
    const double spread_left = keep * std::sqrt(spread_) / sum_;
    double norm2 = 0, reading2 = 0;
    for (int d = 0; d < problem_.cache.v_dim; ++d) {
      result_.out[d] *= keep / sum_;
      if (reads_rounded_) {
        const double difference = magnitude(read_out_[d] * read_keep / read_sum_ - result_.out[d]);
        reading2 += difference * difference;
      }
      const float plain =
          result_.plain_out[d] / plain_sum_ * working_.scale() * static_cast<float>(plain_keep);
      result_.plain_out[d] = rounded(plain, problem_.cache.dtype);
      if (std::isfinite(result_.out[d])) norm2 += result_.out[d] * result_.out[d];
    }
    const auto square = [](double x) { return std::isfinite(x) ? x * x : 0; };
    const double u = unit_roundoff(problem_.cache.dtype);
    double out_rounding2 = u * u * (norm2 + square(spread_left));
    if (e4m3_products_) {
      // Rounding P to e4m3 loses something that follows from the score. Beside the part that is independent
      // from token to token there is an error in the direction in which values go with scores. And where few
      // tokens weigh, the error is no average of many roundings; one is at most 2^-4.
      constexpr double kOfTokens = 0x1p-3, kOfDirection = 0x1p-4;
      const double value_size = keep * std::sqrt(size2_ / sum_ / problem_.cache.v_dim);
      out_rounding2 = u * u * norm2 + kOfTokens * kOfTokens * square(spread_left) +
                      kOfDirection * kOfDirection * square(value_size);
      // A sink's share follows from lse, and so does its error.
      if (problem_.options.attn_sink) out_rounding2 += square(result_.lse_rounding) * norm2 / 0.16;
    }
    result_.out_rounding = std::sqrt(0.16 * out_rounding2 + reading2);
    if (inputs_.out_rotate.present()) turn_back(problem_, inputs_, request_, token_, result_);
    return std::move(result_);
  }

 private:
  const DecodeProblem& problem_;
  const DecodeInputs& inputs_;
  const Working& working_;
  int request_, token_, head_;
  std::vector<double> query_;
  std::vector<float> plain_query_;
  bool reads_rounded_, e4m3_products_;
  ReferenceRow result_;
  // One a token:
  std::vector<double> scores_;
  std::vector<double> read_scores_;  // of keys as they are read, without any other rounding
  std::vector<float> plain_scores_;
  std::vector<double> roundings_;  // of plain scores, RMS
  bool empty_ = false;
  double max_ = -kInfinity;
  float plain_max_ = -std::numeric_limits<float>::infinity();
  double sum_ = 0, spread_ = 0, size2_ = 0, rounding2_ = 0, read_sum_ = 0;
  float plain_sum_ = 0;
  std::vector<double> read_out_ = std::vector<double>(problem_.cache.v_dim);
};

}  // namespace

std::vector<const std::uint8_t*> e4m3_tokens_seen(const DecodeProblem& problem, const DecodeInputs& inputs,
                                                  int request, int token) {
  std::vector<const std::uint8_t*> tokens;
  for (const Seen& seen : seen_by(problem, inputs, request, token)) {
    const ConstTensorView& cache = seen.place.extra ? inputs.extra_kv_cache : inputs.kv_cache;
    tokens.push_back(static_cast<const std::uint8_t*>(cache.data) + seen.place.page * cache.strides[0] +
                     seen.place.offset * cache.strides[1]);
  }
  return tokens;
}

std::vector<float> e4m3_query_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                                  int token, int head) {
  return working_query(problem, query_elements(problem, inputs, request, token, head, {}));
}

std::vector<ReferenceRow> reference_rows(const DecodeProblem& problem, const DecodeInputs& inputs,
                                         int request, int token, std::span<const int> heads) {
  const DecodeProblem::Cache& cache = problem.cache;
  const Working working(problem, scale_of(inputs.kv_scale, 0));
  const std::vector<Seen> seen = seen_by(problem, inputs, request, token);
  std::vector<HeadRow> rows;
  for (int head : heads) rows.emplace_back(problem, inputs, working, request, token, head);
  // A token is read once for all heads.
  const int kv_head = heads.empty() ? 0 : heads[0] / (problem.query.heads / cache.heads);
  std::vector<double> key(cache.qk_dim), value(cache.v_dim);
  std::vector<float> read(std::max(cache.qk_dim, cache.v_dim));  // in the working precision
  for (const auto& [place, distance] : seen) {
    read_key(problem, inputs, place, kv_head, key);
    for (int d = 0; d < cache.qk_dim; ++d) read[d] = working.cached(key[d]);
    for (HeadRow& row : rows) row.add_key(key.data(), read.data(), distance);
  }
  for (HeadRow& row : rows) row.begin_values();
  const std::vector<int> repeats = repeats_of(seen, problem.sparse.enabled || cache.extra.indexed);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    read_value(problem, inputs, seen[i].place, kv_head, value);
    double norm2 = 0;
    for (int d = 0; d < cache.v_dim; ++d) {
      read[d] = working.cached(value[d]);
      norm2 += value[d] * value[d];
    }
    for (HeadRow& row : rows) row.add_value(i, value.data(), read.data(), norm2, repeats[i]);
  }
  std::vector<ReferenceRow> results;
  results.reserve(rows.size());
  for (HeadRow& row : rows) results.push_back(row.result());
  return results;
}

ReferenceRow reference_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                           int head) {
  return std::move(reference_rows(problem, inputs, request, token, {&head, 1})[0]);
}

namespace {

/// Computes the whole problem; results are rounded to the output's dtype.
Status launch(const DecodeCall& call) {
  // By name: clang 14 cannot capture structured bindings.
  const DecodeProblem& problem = call.problem;
  const DecodeInputs& inputs = call.inputs;
  const DecodeOutputs& outputs = call.outputs;
  const DecodeProblem::Query& query = problem.query;
  const DecodeProblem::Cache& cache = problem.cache;
  const std::int64_t rows = std::int64_t{query.batch} * query.tokens * query.heads;
  auto* out = static_cast<std::uint16_t*>(outputs.out.data);
  auto* lse = static_cast<float*>(outputs.lse.data);
  const TensorView& max_logits = call.max_logits;
  const int threads = call.executor.threads > 0 ? call.executor.threads : hardware_threads();
  parallel_for_dynamic(rows, threads, [&](std::int64_t i) {
    const int head = static_cast<int>(i % query.heads);
    const int token = static_cast<int>(i / query.heads % query.tokens);
    const int request = static_cast<int>(i / query.heads / query.tokens);
    float& row_lse = lse[request * outputs.lse.strides[0] + head * outputs.lse.strides[1] +
                         token * outputs.lse.strides[2]];
    if (token >= query_tokens(problem, inputs, request)) {
      row_lse = problem.options.empty_lse;
      return;
    }
    const ReferenceRow row = reference_row(problem, inputs, request, token, head);
    const std::int64_t offset = query_offset(problem, inputs, request, token, head, outputs.out);
    for (int d = 0; d < cache.v_dim; ++d) {
      out[offset + d] = from_float(static_cast<float>(row.out[d]), cache.dtype);
    }
    row_lse = row.lse == -kInfinity ? problem.options.empty_lse : static_cast<float>(row.lse);
    if (!max_logits.present()) return;
    const auto& s = max_logits.strides;
    static_cast<float*>(max_logits.data)[request * s[0] + head * s[1] + token * s[2]] =
        static_cast<float>(row.max_logit);
  });
  return {};
}

}  // namespace

const DecodeKernel kReferenceKernel = {
    .name = "reference",
    .architecture = Architecture::kHost,
    .takes = "everything, in float64 and slowly; runs only when asked for by name",
    .declines = [](const DecodeProblem&) -> std::optional<std::string> { return std::nullopt; },
    .workspace_bytes = [](const DecodeProblem&, const schedule::Geometry&) -> std::size_t { return 0; },
    .launch = launch,
};

}  // namespace flashlatent::cpu
