// Judges a kernel's result row by row against the float64 oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "flashlatent/decode.h"

namespace flashlatent::cpu {
struct ReferenceRow;
}

namespace flashlatent::runtime {

struct RowReport {
  enum class Of : std::uint8_t { kOut, kLse, kMaxLogits, kCodes, kScale };

  int request = 0, token = 0, head = 0;
  Of of = Of::kOut;  ///< Which of the row's results is wrong.
  int column = 0;    ///< Where out, or its codes times scales, are farthest from the reference.
  double got = 0, expected = 0;
  double error = 0;      ///< |out - ref| of the row, or |lse - ref|; infinite for a scale.
  double tolerance = 0;  ///< The most that `error` may be; for a scale the largest one that is right.
};
/// Behind a row's coordinates: ": lse", ": max_logits", ", column 7: out", ", column 7: out_fp8", ", column
/// 0: out_fp8's scale".
std::string what_is_wrong(const RowReport& report);

struct Comparison {
  std::int64_t rows = 0;
  std::int64_t wrong_rows = 0;
  /// |out - ref| / |ref| over all rows, without rows that have non-finite values.
  double relative_error = 0;
  double plain_relative_error = 0;  ///< The same for the plain code.
  double rmse = 0;                  ///< Root mean square of out - ref over all elements of the same rows.
  double lse_error = 0;             ///< Largest |lse - ref|.
  double worst_ratio = 0;           ///< Largest error / tolerance of a row's out.
  /// The wrong row that is farthest outside; without meaning if all rows are right.
  RowReport worst;

  bool ok() const { return wrong_rows == 0; }
};

/// The largest scores of sparse prefill, and their reference: fp32 (batch, h_q, s_q). Without a reference the
/// oracle's are used.
struct MaxLogits {
  ConstTensorView got, reference;
};

/// The rows to compare: each `stride`-th one from `first` on, counted over request, token, head.
struct RowSample {
  std::int64_t first = 0;
  std::int64_t stride = 1;
};

/// Rows of the oracle that comparisons of the same inputs share, since tests run every kernel on one case.
/// Equal inputs are found by a hash of their bytes.
class OracleMemory {
 public:
  /// By request, token, head; null: not yet computed.
  using Rows = std::vector<std::shared_ptr<const cpu::ReferenceRow>>;

  /// The rows of these inputs, which are on the CPU; valid until the next call.
  Rows& rows_of(const DecodeProblem& problem, const DecodeInputs& inputs);

 private:
  static constexpr std::size_t kMost = 4;  // inputs; a row of 512 columns takes 6 KB
  struct Kept {
    DecodeProblem problem;
    std::size_t hash;
    Rows rows;
  };
  std::deque<Kept> kept_;  // the last inputs that were asked for come first
};

/// Compares `out` and `lse` (on the CPU, as DecodeOutputs) with the oracle, or with `out_ref` and `lse_ref`
/// (fp32, out's and lse's shapes) where present.
///
/// A row's out passes if its error is at most 1.5 times the larger of two: the error of the plain computation
/// in the working precision on this row, and the error that computation is expected to have
/// (ReferenceRow::out_rounding): a row of few tokens may round well by luck. An lse passes within 1.5 times
/// the larger of the plain one's error and what that is expected to be (ReferenceRow::lse_rounding; with e4m3
/// products both added), plus 1e-5 (1 + |lse|), a few fp32 roundings; max_logits, if given, likewise.
/// Non-finite values must be where the reference has them. With `memory`, rows of the oracle that it has are
/// not computed again, and new ones are kept there.
///
/// With out_rotate in the inputs `out`, references and tolerances are of the output after its rotation.
/// `fp8`, if present, is judged, too, and `out` may then be absent. Codes times scales may be farther from
/// the reference than out by half a step of e4m3 an element; a scale must be that of the largest reference
/// within the row's tolerance.
Comparison compare(const DecodeProblem& problem, const DecodeInputs& inputs, const ConstTensorView& out,
                   const ConstTensorView& lse, const ConstTensorView& out_ref = {},
                   const ConstTensorView& lse_ref = {}, RowSample sample = {},
                   const MaxLogits& max_logits = {}, const Fp8Output& fp8 = {},
                   OracleMemory* memory = nullptr);

/// One line: what passed, or the worst row with its coordinates and both values.
std::string to_string(const Comparison& comparison);

}  // namespace flashlatent::runtime
