#include "runtime/compare.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/decode_inputs.h"
#include "core/element.h"
#include "core/message.h"
#include "cpu/parallel.h"
#include "cpu/reference.h"
#include "cpu/reference_tokens.h"
#include "runtime/fp8_row.h"

namespace flashlatent::runtime {

namespace {

struct Row {
  int request, token, head;
};

/// Rows of one query token and KV head, for which the oracle reads each cached token once.
struct RowGroup {
  int request, token;
  std::vector<int> heads;
};
constexpr std::size_t kMostHeads = 16;  // of a group: one request has work for several threads

std::vector<RowGroup> groups_of(const DecodeProblem& problem, RowSample sample) {
  const auto& query = problem.query;
  const int group = query.heads / problem.cache.heads;
  const std::int64_t rows = std::int64_t{query.batch} * query.tokens * query.heads;
  std::vector<RowGroup> groups;
  for (std::int64_t i = sample.first; i < rows; i += sample.stride) {
    const int request = static_cast<int>(i / query.heads / query.tokens);
    const int token = static_cast<int>(i / query.heads % query.tokens);
    const int head = static_cast<int>(i % query.heads);
    const bool same = !groups.empty() && groups.back().request == request && groups.back().token == token &&
                      groups.back().heads[0] / group == head / group;
    if (!same || groups.back().heads.size() == kMostHeads) groups.push_back({request, token, {}});
    groups.back().heads.push_back(head);
  }
  return groups;
}

/// A hash of a tensor's shape and of the whole span of its memory.
std::size_t hash_of(const ConstTensorView& view) {
  std::int64_t elements = view.elements() == 0 ? 0 : 1;
  for (int i = 0; i < view.rank && elements > 0; ++i) elements += (view.shape[i] - 1) * view.strides[i];
  std::size_t hash = static_cast<std::size_t>(view.dtype);
  const auto add = [&](const void* data, std::size_t bytes) {
    const std::string_view memory(static_cast<const char*>(data), bytes);
    hash = hash * 31 + std::hash<std::string_view>()(memory);
  };
  add(view.shape.data(), sizeof(view.shape));
  add(view.strides.data(), sizeof(view.strides));
  if (view.data != nullptr) add(view.data, elements * size_of(view.dtype));
  return hash;
}

/// The offset of a row in a tensor like out: (batch, s_q, h_q, ...) or ragged (total, h_q, ...).
std::int64_t out_offset(const DecodeProblem& problem, const DecodeInputs& inputs, Row row,
                        const ConstTensorView& view) {
  const auto& s = view.strides;
  if (!problem.query.ragged) return row.request * s[0] + row.token * s[1] + row.head * s[2];
  const auto* begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data);
  return (begins[row.request] + std::int64_t{row.token}) * s[0] + row.head * s[1];
}

float lse_at(const ConstTensorView& lse, Row row) {
  return static_cast<const float*>(
      lse.data)[row.request * lse.strides[0] + row.head * lse.strides[1] + row.token * lse.strides[2]];
}

/// Squared distances of one row from its reference.
struct Distance {
  double error = 0, norm = 0;
  int worst_column = 0;
  bool finite = true;   // is the reference finite?
  bool matches = true;  // are non-finite values where the reference has them?
};

/// Sums over the rows that are finite where they should be.
struct Sums {
  double error2 = 0, plain2 = 0, norm2 = 0;
  std::int64_t values = 0;

  void add(double row_error2, double row_plain2, double row_norm2, int row_values) {
    error2 += row_error2;
    plain2 += row_plain2;
    norm2 += row_norm2;
    values += row_values;
  }
};

/// The references of a call's results, which may be absent.
struct References {
  const ConstTensorView &out, &lse;
};

class RowJudge {
 public:
  RowJudge(const DecodeProblem& problem, const DecodeInputs& inputs, const ConstTensorView& out,
           const ConstTensorView& lse, const References& references, const MaxLogits& max_logits,
           const Fp8Output& fp8)
      : problem_(problem),
        inputs_(inputs),
        out_(out),
        lse_(lse),
        references_(references),
        max_logits_(max_logits),
        fp8_(fp8) {}

  void judge(const RowGroup& group, OracleMemory::Rows* kept, Comparison& total, Sums& sums) const {
    const auto& [request, token, heads] = group;
    total.rows += static_cast<std::int64_t>(heads.size());
    if (token >= cpu::query_tokens(problem_, inputs_, request)) {
      for (int head : heads) {
        const Row row{request, token, head};
        if (!judge_lse(row, -std::numeric_limits<double>::infinity(), 0, total)) ++total.wrong_rows;
      }
      return;
    }
    const auto& query = problem_.query;
    const std::int64_t first = (std::int64_t{request} * query.tokens + token) * query.heads;
    std::vector<int> missing;
    for (int head : heads) {
      if (kept == nullptr || (*kept)[first + head] == nullptr) missing.push_back(head);
    }
    std::vector<cpu::ReferenceRow> computed;
    if (!missing.empty()) computed = cpu::reference_rows(problem_, inputs_, request, token, missing);
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (kept == nullptr) {
        judge({request, token, missing[i]}, computed[i], total, sums);
      } else {
        (*kept)[first + missing[i]] = std::make_shared<cpu::ReferenceRow>(std::move(computed[i]));
      }
    }
    if (kept == nullptr) return;
    for (int head : heads) judge({request, token, head}, *(*kept)[first + head], total, sums);
  }

 private:
  void judge(Row row, const cpu::ReferenceRow& oracle, Comparison& total, Sums& sums) const {
    // Tolerances come from the oracle and not from the file: a wrong reference must not widen its own.
    const double plain_lse_error = plain_code_error(oracle.plain_lse, oracle.lse, oracle.lse_rounding);
    std::vector<double> expected = oracle.out;
    double expected_lse = oracle.lse;
    if (references_.out.present()) {
      const auto* values = static_cast<const float*>(references_.out.data) +
                           out_offset(problem_, inputs_, row, references_.out);
      std::copy_n(values, expected.size(), expected.begin());
    }
    if (references_.lse.present()) {
      expected_lse = lse_at(references_.lse, row);
      if (std::isinf(expected_lse)) expected_lse = -std::abs(expected_lse);  // either sign marks an empty row
    }
    bool right = judge_lse(row, expected_lse, plain_lse_error, total);
    right = judge_max(row, oracle, total) && right;
    if (out_.present()) right = judge_out(row, expected, oracle, total, sums) && right;
    if (fp8_.present()) right = judge_fp8(row, expected, oracle, total, sums) && right;
    if (!right) ++total.wrong_rows;
  }

  bool judge_lse(Row row, double expected, double plain_error, Comparison& total) const {
    if (expected == -std::numeric_limits<double>::infinity()) expected = problem_.options.empty_lse;
    double error = 0;
    const bool right =
        judge_number(row, RowReport::Of::kLse, lse_at(lse_, row), expected, plain_error, error, total);
    if (std::isfinite(error)) total.lse_error = std::max(total.lse_error, error);
    return right;
  }

  bool judge_max(Row row, const cpu::ReferenceRow& oracle, Comparison& total) const {
    if (!max_logits_.got.present()) return true;
    const double expected =
        max_logits_.reference.present() ? lse_at(max_logits_.reference, row) : oracle.max_logit;
    double error = 0;
    return judge_number(row, RowReport::Of::kMaxLogits, lse_at(max_logits_.got, row), expected,
                        plain_code_error(oracle.plain_max_logit, oracle.max_logit, oracle.max_logit_rounding),
                        error, total);
  }

  /// The error that plain code has in a number: it gets `plain` where `right` is right, and rounds by
  /// `expected`.
  double plain_code_error(double plain, double right, double expected) const {
    const double own = std::abs(plain - right);
    // With e4m3 products the plain code rounds q alone; tensor cores also round their sums.
    const double error = problem_.fp8_products() ? own + expected : std::max(own, expected);
    return std::isfinite(error) ? error : 0;
  }

  bool judge_number(Row row, RowReport::Of of, double got, double expected, double plain_error, double& error,
                    Comparison& total) const {
    error = std::abs(got - expected);
    double tolerance = 1.5 * plain_error + 1e-5 * (1 + std::abs(expected));
    bool right = error <= tolerance;
    if (!std::isfinite(expected)) {
      right = std::isnan(expected) ? std::isnan(got) : got == expected;
      error = right ? 0 : std::numeric_limits<double>::infinity();
      tolerance = 0;
    }
    if (!right) report({row.request, row.token, row.head, of, 0, got, expected, error, tolerance}, total);
    return right;
  }

  /// |plain code - oracle| of a row's values that are finite in the working dtype, squared.
  double plain_error2(const cpu::ReferenceRow& oracle) const {
    double sum = 0;
    for (std::size_t d = 0; d < oracle.out.size(); ++d) {
      const double difference = oracle.plain_out[d] - oracle.out[d];
      if (std::isfinite(oracle.out[d]) && !overflows(oracle.out[d])) sum += difference * difference;
    }
    return sum;
  }
  /// The most that a row's error may be.
  double tolerance_of(const cpu::ReferenceRow& oracle) const {
    const double error2 = plain_error2(oracle);
    const double plain = std::isfinite(error2) ? std::sqrt(error2) : 0;
    // 1e-7: a few of the smallest subnormals an element, for rows close to 0.
    return 1.5 * std::max(plain, oracle.out_rounding) + 1e-7;
  }

  /// Does a value become infinite in the working dtype?
  bool overflows(double value) const {
    const Dtype dtype = problem_.cache.dtype;
    return std::isfinite(value) && std::isinf(to_float(from_float(static_cast<float>(value), dtype), dtype));
  }

  bool judge_out(Row row, const std::vector<double>& reference, const cpu::ReferenceRow& oracle,
                 Comparison& total, Sums& sums) const {
    const auto* out = static_cast<const std::uint16_t*>(out_.data) + out_offset(problem_, inputs_, row, out_);
    auto got = [&](int d) { return double{to_float(out[d], out_.dtype)}; };
    Distance distance;
    double farthest = -1;
    for (int d = 0; d < problem_.cache.v_dim; ++d) {
      const double expected = reference[d];
      const double difference = got(d) - expected;
      if (!std::isfinite(expected) || overflows(expected)) {
        distance.finite = false;
        const bool same =
            std::isnan(expected) ? std::isnan(got(d)) : std::isinf(got(d)) && got(d) * expected > 0;
        if (!same && distance.matches) {
          distance.matches = false;
          distance.worst_column = d;
        }
        continue;
      }
      if (!std::isfinite(difference) && distance.matches) {
        distance.matches = false;
        distance.worst_column = d;
      }
      distance.error += difference * difference;
      if (std::isfinite(oracle.out[d])) distance.norm += oracle.out[d] * oracle.out[d];
      if (distance.matches && std::abs(difference) > farthest) {
        farthest = std::abs(difference);
        distance.worst_column = d;
      }
    }
    const double tolerance = tolerance_of(oracle), error = std::sqrt(distance.error);
    const bool right = distance.matches && error <= tolerance;
    if (distance.finite && distance.matches) {
      sums.add(distance.error, plain_error2(oracle), distance.norm, problem_.cache.v_dim);
      total.worst_ratio = std::max(total.worst_ratio, error / tolerance);
    }
    if (!right) {
      const int d = distance.worst_column;
      report({row.request, row.token, row.head, RowReport::Of::kOut, d, got(d), reference[d],
              distance.matches ? error : std::numeric_limits<double>::infinity(), tolerance},
             total);
    }
    return right;
  }

  bool judge_fp8(Row row, const std::vector<double>& reference, const cpu::ReferenceRow& oracle,
                 Comparison& total, Sums& sums) const {
    const double tolerance = tolerance_of(oracle);
    const Fp8Row got(fp8_, token_number(row), row.head, problem_.query.heads, problem_.cache.v_dim);
    double error2 = 0, steps2 = 0, norm2 = 0, farthest = -1;
    int worst = 0;
    for (int begin = 0; begin < problem_.cache.v_dim; begin += got.columns()) {
      const int end = begin + got.columns();
      double amax = 0, kept = 0;  // of finite values; of those that stay finite in the working dtype
      for (int d = begin; d < end; ++d) {
        if (!std::isfinite(reference[d])) continue;
        amax = std::max(amax, std::abs(reference[d]));
        if (!overflows(reference[d])) kept = std::max(kept, std::abs(reference[d]));
      }
      const double scale = got.scale(begin), most = scale_of(amax + tolerance);
      if (!(scale >= scale_of(std::max(kept - tolerance, 0.0)) && scale <= most)) {
        report({row.request, row.token, row.head, RowReport::Of::kScale, begin, scale, scale_of(amax),
                std::numeric_limits<double>::infinity(), most},
               total);
        return false;
      }
      for (int d = begin; d < end; ++d) {
        if (overflows(reference[d])) continue;  // NaN where it was rounded to the working dtype before
        const double difference = std::isfinite(reference[d]) ? got.value(d) - reference[d]
                                  : std::isnan(got.value(d))  ? 0
                                                              : std::numeric_limits<double>::infinity();
        const double step = std::max(std::abs(reference[d]) * 0x1p-4, scale * 0x1p-10);  // half of one
        error2 += difference * difference;
        if (std::isfinite(step)) {
          steps2 += step * step;
          norm2 += reference[d] * reference[d];
        }
        if (std::abs(difference) <= farthest) continue;
        farthest = std::abs(difference);
        worst = d;
      }
    }
    const double error = std::sqrt(error2), most = tolerance * (1 + 0x1p-4) + std::sqrt(steps2);
    if (error <= most) {
      if (!out_.present()) sums.add(error2, plain_error2(oracle), norm2, problem_.cache.v_dim);
      return true;
    }
    report({row.request, row.token, row.head, RowReport::Of::kCodes, worst, got.value(worst),
            reference[worst], error, most},
           total);
    return false;
  }

  static double scale_of(double amax) {
    const double largest = std::numeric_limits<float>::max();
    return Fp8Row::scale_of(static_cast<float>(std::min(amax, largest)));
  }

  /// The number of a query token among those of all requests.
  std::int64_t token_number(Row row) const {
    if (!problem_.query.ragged) return std::int64_t{row.request} * problem_.query.tokens + row.token;
    return static_cast<const std::int32_t*>(inputs_.cu_seqlens_q.data)[row.request] + row.token;
  }

  /// Keeps the report of the row that is farthest outside.
  static void report(const RowReport& found, Comparison& total) {
    const double now = total.worst.error / total.worst.tolerance;  // NaN at first
    if (!(found.error / found.tolerance <= now)) total.worst = found;
  }

  const DecodeProblem& problem_;
  const DecodeInputs& inputs_;
  const ConstTensorView& out_;
  const ConstTensorView& lse_;
  const References& references_;
  const MaxLogits& max_logits_;
  const Fp8Output& fp8_;
};

}  // namespace

OracleMemory::Rows& OracleMemory::rows_of(const DecodeProblem& problem, const DecodeInputs& inputs) {
  std::size_t hash = 0;
  const auto add = [&](std::size_t value) { hash = hash * 31 + value; };
  for (const auto& [name, view] : kDecodeInputs) add(hash_of(inputs.*view));
  for (const auto& input : kRotationInputs<DecodeInputs>) {
    const Rotation& rotation = inputs.*input.rotation;
    add(hash_of(rotation.positions));
    add(hash_of(rotation.table));
    add(static_cast<std::size_t>(rotation.pairs) * 2 + static_cast<std::size_t>(rotation.layout));
  }
  add(std::hash<float>()(inputs.q_norm));
  const auto same = [&](const Kept& kept) { return kept.hash == hash && kept.problem == problem; };
  const auto found = std::find_if(kept_.begin(), kept_.end(), same);
  if (found != kept_.end()) {
    std::rotate(kept_.begin(), found, found + 1);
    return kept_.front().rows;
  }
  const auto& query = problem.query;
  if (kept_.size() == kMost) kept_.pop_back();
  kept_.push_front({problem, hash, Rows(std::size_t{1} * query.batch * query.tokens * query.heads)});
  return kept_.front().rows;
}

Comparison compare(const DecodeProblem& problem, const DecodeInputs& inputs, const ConstTensorView& out,
                   const ConstTensorView& lse, const ConstTensorView& out_ref, const ConstTensorView& lse_ref,
                   RowSample sample, const MaxLogits& max_logits, const Fp8Output& fp8,
                   OracleMemory* memory) {
  const References references{out_ref, lse_ref};
  const RowJudge judge(problem, inputs, out, lse, references, max_logits, fp8);
  const std::vector<RowGroup> groups = groups_of(problem, sample);
  OracleMemory::Rows* const kept = memory == nullptr ? nullptr : &memory->rows_of(problem, inputs);
  Comparison total;
  Sums sums;
  const int threads = cpu::hardware_threads();
  std::atomic<std::size_t> next = 0;  // a free thread takes the next group
  std::mutex merging;
  cpu::parallel_for(threads, threads, [&](std::int64_t) {
    Comparison mine;
    Sums my_sums;
    for (std::size_t i; (i = next.fetch_add(1)) < groups.size();) judge.judge(groups[i], kept, mine, my_sums);
    const std::lock_guard lock(merging);
    const bool farther =
        mine.wrong_rows > 0 && (total.wrong_rows == 0 || mine.worst.error / mine.worst.tolerance >
                                                             total.worst.error / total.worst.tolerance);
    if (farther) total.worst = mine.worst;
    total.rows += mine.rows;
    total.wrong_rows += mine.wrong_rows;
    total.lse_error = std::max(total.lse_error, mine.lse_error);
    total.worst_ratio = std::max(total.worst_ratio, mine.worst_ratio);
    sums.error2 += my_sums.error2;
    sums.plain2 += my_sums.plain2;
    sums.norm2 += my_sums.norm2;
    sums.values += my_sums.values;
  });
  if (sums.norm2 > 0) {
    total.relative_error = std::sqrt(sums.error2 / sums.norm2);
    total.plain_relative_error = std::sqrt(sums.plain2 / sums.norm2);
  }
  if (sums.values > 0) total.rmse = std::sqrt(sums.error2 / static_cast<double>(sums.values));
  return total;
}

std::string what_is_wrong(const RowReport& report) {
  switch (report.of) {
    case RowReport::Of::kLse:
      return ": lse";
    case RowReport::Of::kMaxLogits:
      return ": max_logits";
    case RowReport::Of::kOut:
      return message(", column ", report.column, ": out");
    case RowReport::Of::kCodes:
      return message(", column ", report.column, ": out_fp8");
    case RowReport::Of::kScale:
      return message(", column ", report.column, ": out_fp8's scale");
  }
  return {};
}

std::string to_string(const Comparison& c) {
  if (c.ok()) {
    return message(c.rows, " rows right: relative error ", c.relative_error, " (plain computation ",
                   c.plain_relative_error, "), largest lse error ", c.lse_error);
  }
  const RowReport& w = c.worst;
  const std::string allowed = w.of == RowReport::Of::kScale
                                  ? message("at most ", w.tolerance, " is right")
                                  : message("the row's error is ", w.error, ", allowed ", w.tolerance);
  return message(c.wrong_rows, " of ", c.rows, " rows wrong: request ", w.request, ", query token ", w.token,
                 ", query head ", w.head, what_is_wrong(w), " is ", w.got, ", expected ", w.expected, "; ",
                 allowed);
}

}  // namespace flashlatent::runtime
