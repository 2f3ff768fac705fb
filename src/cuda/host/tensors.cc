#include "cuda/host/tensors.h"

#include "core/message.h"

namespace flashlatent::cuda {

namespace {

/// Rows of ragged requests count as one request's.
bool are_countable(const DecodeProblem& problem, const ConstTensorView& part) {
  return !problem.query.ragged || part.shape[0] * problem.query.heads < (1LL << 31) - 1;
}

bool are_in_line(const DecodeProblem& problem, const ConstTensorView& part) {
  const auto& s = part.strides;
  if (problem.query.ragged) {
    return problem.cache.heads == 1 && s[0] == problem.query.heads * s[1] && are_countable(problem, part);
  }
  return problem.query.tokens == 1 || (problem.cache.heads == 1 && s[1] == problem.query.heads * s[2]);
}

}  // namespace

bool rows_in_line(const DecodeProblem& problem, const DecodeInputs& inputs) {
  return are_in_line(problem, inputs.q) && (!inputs.q_rope.present() || are_in_line(problem, inputs.q_rope));
}

bool rows_in_boxes(const DecodeProblem& problem, const DecodeInputs& inputs) {
  if (rows_in_line(problem, inputs)) return true;
  const int heads = problem.query.heads;
  return problem.cache.heads == 1 && (64 % heads == 0 || heads % 64 == 0) && are_countable(problem, inputs.q);
}

bool is_aligned(const ConstTensorView& view, int bytes) {
  if (view.elements() == 0) return true;
  bool fits = reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
  for (int i = 0; i + 1 < view.rank; ++i) {
    const std::int64_t stride_bytes = view.strides[i] * static_cast<std::int64_t>(size_of(view.dtype));
    fits = fits && (view.shape[i] <= 1 || (stride_bytes % bytes == 0 && stride_bytes >= 0));
  }
  return fits;
}

Status check_alignment(const char* name, const ConstTensorView& view, int bytes) {
  if (is_aligned(view, bytes)) return {};
  return invalid_argument(name, " at ", view.data, " is ", to_string(view),
                          "; its address and strides must be multiples of ", bytes,
                          " bytes and not negative");
}

Status check_pages(const char* name, const ConstTensorView& cache) {
  if (cache.shape[0] <= (1LL << 31) - 1) return {};
  return invalid_argument(name, " has ", cache.shape[0], " pages; at most 2^31 - 1 can be named by int32");
}

bool heads_in_chunks(const ConstTensorView& cache) {
  const std::int64_t chunk = 128 / size_of(cache.dtype);
  return cache.shape[3] % chunk == 0 && (cache.shape[2] == 1 || cache.strides[2] % chunk == 0);
}

}  // namespace flashlatent::cuda
