#include "cpu/reference.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/element.h"
#include "core/fp8_656.h"
#include "cpu/cpu_backend.h"

namespace flashlatent::cpu {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Element of a 16-bit tensor.
float element(const ConstTensorView& view, std::int64_t offset) {
  return to_float(static_cast<const std::uint16_t*>(view.data)[offset], view.dtype);
}

/// Element `d` of a cached token that begins at `row`.
double cached(const DecodeProblem& problem, const ConstTensorView& kv, std::int64_t row, int d) {
  if (problem.cache.format == KvFormat::kPlain) return element(kv, row + d);
  const std::uint8_t* token = static_cast<const std::uint8_t*>(kv.data) + row;
  if (d < fp8_656::kLatentDim) {
    float scale;
    std::memcpy(&scale, token + fp8_656::kScaleOffset + d / fp8_656::kGroup * sizeof(scale), sizeof(scale));
    return double{fp8_656::decode(token[d])} * scale;
  }
  std::uint16_t rope;
  std::memcpy(&rope, token + fp8_656::kRopeOffset + (d - fp8_656::kLatentDim) * sizeof(rope), sizeof(rope));
  return bf16_to_float(rope);
}

std::int64_t query_offset(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                          int head, const ConstTensorView& view) {
  const auto& s = view.strides;
  if (!problem.query.ragged) return request * s[0] + token * s[1] + head * s[2];
  const auto* begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data);
  return (begins[request] + std::int64_t{token}) * s[0] + head * s[1];
}

/// How many of the request's tokens this query token may see.
std::int64_t visible_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                            int token) {
  const std::int64_t stored = static_cast<const std::int32_t*>(inputs.cache_seqlens.data)[request];
  const std::int64_t reach = std::int64_t{problem.cache.max_pages} * problem.cache.page_size;
  const std::int64_t length = std::clamp<std::int64_t>(stored, 0, reach);
  if (!problem.options.causal) return length;
  return length - query_tokens(problem, inputs, request) + token + 1;
}

std::int64_t row_of(const ConstTensorView& kv, std::int64_t page, std::int64_t offset, int kv_head) {
  return page * kv.strides[0] + offset * kv.strides[1] + kv_head * kv.strides[2];
}

/// Where the rows lie that this query token attends to by the page table.
std::vector<std::int64_t> paged_rows(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                                     int token, int kv_head) {
  const ConstTensorView& kv = inputs.kv_cache;
  const auto* pages =
      static_cast<const std::int32_t*>(inputs.block_table.data) + request * inputs.block_table.strides[0];
  const std::int64_t visible = visible_tokens(problem, inputs, request, token);
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < visible; ++t) {
    const std::int64_t page = pages[t / problem.cache.page_size];
    if (page < 0 || page >= kv.shape[0]) continue;  // skipped
    rows.push_back(row_of(kv, page, t % problem.cache.page_size, kv_head));
  }
  return rows;
}

/// And by its indices.
std::vector<std::int64_t> indexed_rows(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                                       int token, int kv_head) {
  const ConstTensorView& kv = inputs.kv_cache;
  const auto* indices = static_cast<const std::int32_t*>(inputs.indices.data) +
                        request * inputs.indices.strides[0] + token * inputs.indices.strides[1];
  std::int64_t count = problem.sparse.topk;
  if (inputs.topk_length.present()) {
    const std::int64_t given = static_cast<const std::int32_t*>(inputs.topk_length.data)[request];
    count = std::clamp<std::int64_t>(given, 0, count);
  }
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t page_size = problem.cache.page_size;
    if (indices[i] < 0 || indices[i] >= kv.shape[0] * page_size) continue;  // skipped
    rows.push_back(row_of(kv, indices[i] / page_size, indices[i] % page_size, kv_head));
  }
  return rows;
}

/// What the working precision keeps of a number.
float rounded(double x, Dtype dtype) {
  return to_float(from_float(static_cast<float>(x), dtype), dtype);
}

}  // namespace

int query_tokens(const DecodeProblem& problem, const DecodeInputs& inputs, int request) {
  if (!problem.query.ragged) return problem.query.tokens;
  const auto* begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data);
  return begins[request + 1] - begins[request];
}

ReferenceRow reference_row(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                           int head) {
  const auto& [query, cache, sparse, options] = problem;
  const ConstTensorView& kv = inputs.kv_cache;
  const int kv_head = head / (query.heads / cache.heads);
  const std::int64_t q = query_offset(problem, inputs, request, token, head, inputs.q);
  // Where the rows of the tokens that count lie, and their scores.
  const std::vector<std::int64_t> rows = problem.sparse.enabled
                                             ? indexed_rows(problem, inputs, request, token, kv_head)
                                             : paged_rows(problem, inputs, request, token, kv_head);
  std::vector<double> scores;
  std::vector<float> plain_scores;
  for (const std::int64_t row : rows) {
    double score = 0;
    float plain_score = 0;
    for (int d = 0; d < cache.qk_dim; ++d) {
      const float a = element(inputs.q, q + d);
      const double b = cached(problem, kv, row, d);
      score += a * b;
      plain_score += a * rounded(b, cache.dtype);
    }
    scores.push_back(score * options.softmax_scale);
    plain_scores.push_back(plain_score * options.softmax_scale);
  }

  ReferenceRow result{std::vector<double>(cache.v_dim, 0.0), -kInfinity,
                      std::vector<float>(cache.v_dim, 0.0F), -std::numeric_limits<float>::infinity(), 0.0};
  // A row without any token, or whose tokens all have a score of -inf, is empty.
  if (std::all_of(scores.begin(), scores.end(), [](double s) { return s == -kInfinity; })) return result;
  double max = -kInfinity;
  float plain_max = -std::numeric_limits<float>::infinity();
  for (double score : scores) max = std::max(max, score);
  for (float score : plain_scores) plain_max = std::max(plain_max, score);
  double sum = 0, spread = 0;
  float plain_sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double p = std::exp(scores[i] - max);
    const float plain_p = std::exp(plain_scores[i] - plain_max);
    const float rounded_p = rounded(plain_p, cache.dtype);
    sum += p;
    plain_sum += plain_p;
    for (int d = 0; d < cache.v_dim; ++d) {
      const double v = cached(problem, kv, rows[i], d);
      result.out[d] += p * v;
      result.plain_out[d] += rounded_p * rounded(v, cache.dtype);
      spread += p * v * (p * v);
    }
  }
  result.lse = max + std::log(sum);
  result.plain_lse = plain_max + std::log(plain_sum);
  result.value_spread = std::sqrt(spread) / sum;
  double keep = 1;  // what the sink leaves
  if (options.attn_sink) {
    const double sink = static_cast<const float*>(inputs.attn_sink.data)[head];
    keep = 1 / (1 + std::exp(sink - result.lse));
  }
  for (int d = 0; d < cache.v_dim; ++d) {
    result.out[d] *= keep / sum;
    const float plain = result.plain_out[d] / plain_sum * static_cast<float>(keep);
    result.plain_out[d] = rounded(plain, cache.dtype);
  }
  return result;
}

namespace {

/// The whole problem, rounded to the output's dtype.
Status launch(const DecodeCall& call) {
  // Named one by one: structured bindings cannot be shared by OpenMP.
  const DecodeProblem& problem = call.problem;
  const DecodeInputs& inputs = call.inputs;
  const DecodeOutputs& outputs = call.outputs;
  const DecodeProblem::Query& query = problem.query;
  const DecodeProblem::Cache& cache = problem.cache;
  const std::int64_t rows = std::int64_t{query.batch} * query.tokens * query.heads;
  auto* out = static_cast<std::uint16_t*>(outputs.out.data);
  auto* lse = static_cast<float*>(outputs.lse.data);
  const int threads = call.executor.threads > 0 ? call.executor.threads : hardware_threads();
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t i = 0; i < rows; ++i) {
    const int head = static_cast<int>(i % query.heads);
    const int token = static_cast<int>(i / query.heads % query.tokens);
    const int request = static_cast<int>(i / query.heads / query.tokens);
    float& row_lse = lse[request * outputs.lse.strides[0] + head * outputs.lse.strides[1] +
                         token * outputs.lse.strides[2]];
    if (token >= query_tokens(problem, inputs, request)) {
      row_lse = -std::numeric_limits<float>::infinity();
      continue;
    }
    const ReferenceRow row = reference_row(problem, inputs, request, token, head);
    const std::int64_t offset = query_offset(problem, inputs, request, token, head, outputs.out);
    for (int d = 0; d < cache.v_dim; ++d) {
      out[offset + d] = from_float(static_cast<float>(row.out[d]), cache.dtype);
    }
    row_lse = static_cast<float>(row.lse);
  }
  return {};
}

schedule::Geometry geometry(const DecodeProblem& problem, int) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  return g;
}

}  // namespace

const DecodeKernel kReferenceKernel = {
    .name = "reference",
    .backend = Backend::kCpu,
    .takes = "everything, in float64 and slowly; runs only when asked for by name",
    .declines = [](const DecodeProblem&) -> std::optional<std::string> { return std::nullopt; },
    .geometry = geometry,
    .workspace_bytes = [](const DecodeProblem&, const schedule::Geometry&) -> std::size_t { return 0; },
    .launch = launch,
};

}  // namespace flashlatent::cpu
