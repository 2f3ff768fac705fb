#include "runtime/compare.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "core/element.h"
#include "core/message.h"
#include "cpu/parallel.h"
#include "cpu/reference.h"

namespace flashlatent::runtime {

namespace {

struct Row {
  int request, token, head;
};

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
  double error = 0, plain = 0, norm = 0;
  int worst_column = 0;
  bool finite = true;   // is the reference finite?
  bool matches = true;  // are non-finite values where the reference has them?
};

/// Sums over the rows that are finite where they should be.
struct Sums {
  double error2 = 0, plain2 = 0, norm2 = 0;
  std::int64_t values = 0;
};

class RowJudge {
 public:
  RowJudge(const DecodeProblem& problem, const DecodeInputs& inputs, const ConstTensorView& out,
           const ConstTensorView& lse, const ConstTensorView& out_ref, const ConstTensorView& lse_ref,
           const MaxLogits& max_logits)
      : problem_(problem),
        inputs_(inputs),
        out_(out),
        lse_(lse),
        out_ref_(out_ref),
        lse_ref_(lse_ref),
        max_logits_(max_logits) {}

  void judge(Row row, Comparison& total, Sums& sums) const {
    ++total.rows;
    if (row.token >= cpu::query_tokens(problem_, inputs_, row.request)) {
      judge_lse(row, -std::numeric_limits<double>::infinity(), 0, total);
      return;
    }
    // Tolerances come from the oracle and not from the file: a wrong reference must not widen its own.
    const cpu::ReferenceRow oracle = cpu::reference_row(problem_, inputs_, row.request, row.token, row.head);
    const double plain_lse_error = plain_code_error(oracle.plain_lse, oracle.lse, oracle.lse_rounding);
    std::vector<double> expected = oracle.out;
    double expected_lse = oracle.lse;
    if (out_ref_.present()) {
      const auto* values =
          static_cast<const float*>(out_ref_.data) + out_offset(problem_, inputs_, row, out_ref_);
      std::copy_n(values, expected.size(), expected.begin());
    }
    if (lse_ref_.present()) {
      expected_lse = lse_at(lse_ref_, row);
      if (std::isinf(expected_lse)) expected_lse = -std::abs(expected_lse);  // either sign marks an empty row
    }
    const bool lse_right = judge_lse(row, expected_lse, plain_lse_error, total);
    const bool max_right = judge_max(row, oracle, total);
    if (!lse_right && !max_right) --total.wrong_rows;  // a row counts once
    judge_out(row, expected, oracle, lse_right && max_right, total, sums);
  }

 private:
  bool judge_lse(Row row, double expected, double plain_error, Comparison& total) const {
    if (expected == -std::numeric_limits<double>::infinity()) expected = problem_.options.empty_lse;
    double error = 0;
    const bool right =
        judge_number(row, RowReport::kLse, lse_at(lse_, row), expected, plain_error, error, total);
    if (std::isfinite(error)) total.lse_error = std::max(total.lse_error, error);
    return right;
  }

  bool judge_max(Row row, const cpu::ReferenceRow& oracle, Comparison& total) const {
    if (!max_logits_.got.present()) return true;
    const double expected =
        max_logits_.reference.present() ? lse_at(max_logits_.reference, row) : oracle.max_logit;
    double error = 0;
    return judge_number(row, RowReport::kMaxLogits, lse_at(max_logits_.got, row), expected,
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

  bool judge_number(Row row, int column, double got, double expected, double plain_error, double& error,
                    Comparison& total) const {
    error = std::abs(got - expected);
    double tolerance = 1.5 * plain_error + 1e-5 * (1 + std::abs(expected));
    bool right = error <= tolerance;
    if (!std::isfinite(expected)) {
      right = std::isnan(expected) ? std::isnan(got) : got == expected;
      error = right ? 0 : std::numeric_limits<double>::infinity();
      tolerance = 0;
    }
    if (!right) report(row, column, got, expected, error, tolerance, total);
    return right;
  }

  void judge_out(Row row, const std::vector<double>& reference, const cpu::ReferenceRow& oracle,
                 bool lse_right, Comparison& total, Sums& sums) const {
    const auto* out = static_cast<const std::uint16_t*>(out_.data) + out_offset(problem_, inputs_, row, out_);
    auto got = [&](int d) { return double{to_float(out[d], out_.dtype)}; };
    Distance distance;
    double farthest = -1;
    for (int d = 0; d < problem_.cache.v_dim; ++d) {
      const double expected = reference[d];
      const double difference = got(d) - expected;
      // A value that overflows the working dtype counts as infinite.
      const bool overflows =
          std::isfinite(expected) &&
          std::isinf(to_float(from_float(static_cast<float>(expected), out_.dtype), out_.dtype));
      if (!std::isfinite(expected) || overflows) {
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
      if (std::isfinite(oracle.out[d])) {
        distance.plain += (oracle.plain_out[d] - oracle.out[d]) * (oracle.plain_out[d] - oracle.out[d]);
        distance.norm += oracle.out[d] * oracle.out[d];
      }
      if (distance.matches && std::abs(difference) > farthest) {
        farthest = std::abs(difference);
        distance.worst_column = d;
      }
    }
    const double plain = std::isfinite(distance.plain) ? std::sqrt(distance.plain) : 0;
    // 1e-7: a few of the smallest subnormals an element, for rows close to 0.
    const double tolerance = 1.5 * std::max(plain, oracle.out_rounding) + 1e-7;
    const double error = std::sqrt(distance.error);
    const bool right = distance.matches && error <= tolerance;
    if (distance.finite && distance.matches) {
      sums.error2 += distance.error;
      sums.plain2 += distance.plain;
      sums.norm2 += distance.norm;
      sums.values += problem_.cache.v_dim;
      total.worst_ratio = std::max(total.worst_ratio, error / tolerance);
    }
    if (!right) {
      if (!lse_right) --total.wrong_rows;  // a row counts once
      const int d = distance.worst_column;
      report(row, d, got(d), reference[d], distance.matches ? error : std::numeric_limits<double>::infinity(),
             tolerance, total);
    }
  }

  static void report(Row row, int column, double got, double expected, double error, double tolerance,
                     Comparison& total) {
    const bool farther =
        total.wrong_rows == 0 || error / tolerance > total.worst.error / total.worst.tolerance;
    ++total.wrong_rows;
    if (farther) total.worst = {row.request, row.token, row.head, column, got, expected, error, tolerance};
  }

  const DecodeProblem& problem_;
  const DecodeInputs& inputs_;
  const ConstTensorView& out_;
  const ConstTensorView& lse_;
  const ConstTensorView& out_ref_;
  const ConstTensorView& lse_ref_;
  const MaxLogits& max_logits_;
};

}  // namespace

Comparison compare(const DecodeProblem& problem, const DecodeInputs& inputs, const ConstTensorView& out,
                   const ConstTensorView& lse, const ConstTensorView& out_ref, const ConstTensorView& lse_ref,
                   RowSample sample, const MaxLogits& max_logits) {
  const RowJudge judge(problem, inputs, out, lse, out_ref, lse_ref, max_logits);
  const std::int64_t rows = std::int64_t{problem.query.batch} * problem.query.tokens * problem.query.heads;
  Comparison total;
  Sums sums;
  const int threads = cpu::hardware_threads();
  std::atomic<std::int64_t> next = sample.first;  // a free thread takes the next row
  std::mutex merging;
  cpu::parallel_for(threads, threads, [&](std::int64_t) {
    Comparison mine;
    Sums my_sums;
    for (std::int64_t i; (i = next.fetch_add(sample.stride)) < rows;) {
      const Row row{static_cast<int>(i / problem.query.heads / problem.query.tokens),
                    static_cast<int>(i / problem.query.heads % problem.query.tokens),
                    static_cast<int>(i % problem.query.heads)};
      judge.judge(row, mine, my_sums);
    }
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

std::string to_string(const Comparison& c) {
  if (c.ok()) {
    return message(c.rows, " rows right: relative error ", c.relative_error, " (plain computation ",
                   c.plain_relative_error, "), largest lse error ", c.lse_error);
  }
  const RowReport& w = c.worst;
  return message(c.wrong_rows, " of ", c.rows, " rows wrong: request ", w.request, ", query token ", w.token,
                 ", query head ", w.head,
                 w.column == RowReport::kLse         ? std::string(": lse")
                 : w.column == RowReport::kMaxLogits ? std::string(": max_logits")
                                                     : message(", column ", w.column, ": out"),
                 " is ", w.got, ", expected ", w.expected, "; the row's error is ", w.error, ", allowed ",
                 w.tolerance);
}

}  // namespace flashlatent::runtime
