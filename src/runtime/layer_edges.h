// The edges of a layer in decode calls of random cases: adds them to a case, takes them off it, and judges
// what a call with them writes beside the call without.
#pragma once

#include <string>

#include "flashlatent/sparse_prefill.h"
#include "runtime/fp8_memory.h"
#include "runtime/random_case.h"

namespace flashlatent::runtime {

/// Sets the options of the problem that the spec's edges need.
void set_edge_options(const EdgeSpec& spec, DecodeProblem& problem);

/// The FP8 output that a call with these edges is to write.
Fp8Request request_of(const EdgeSpec& spec);

/// Gives the case positions and tables, drawn from `seed`.
void add_edges(const EdgeSpec& spec, std::uint64_t seed, RandomCase& random_case);

/// The case without edges: its query is what prepare_queries() makes of the case's. The case owns the memory.
RandomCase without_edges(RandomCase& random_case);

/// What a call wrote, on the CPU. `out` and `fp8` may be absent.
struct EdgeResults {
  ConstTensorView out, lse;
  Fp8Output fp8;
};

/// Compares a call with edges with the call without, whose out and lse are `plain`: lse has the same bits. So
/// do `out` and `fp8` with what finish_outputs() makes of plain's out, if `same_bits`; else each value is
/// rounded once less. Returns what differs; empty if nothing does.
std::string compare_edges(const DecodeInputs& inputs, const EdgeResults& got, const EdgeResults& plain,
                          bool same_bits);

/// The same of sparse prefill; max_logits, if there are any, have the same bits. `inputs`: of the case as
/// decode.
std::string compare_prefill_edges(const DecodeInputs& inputs, const SparsePrefillOutputs& got,
                                  const SparsePrefillOutputs& plain, bool same_bits);

}  // namespace flashlatent::runtime
