// The host side of gqa_16: takes.cc says what it takes, launch.cc launches.
#pragma once

#include "cuda/sm90/kernels/gqa_16/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::gqa_16 {

/// Null if nothing is compiled for the problem's dimensions.
const InstanceKey* key_of(const DecodeProblem& problem);

int element_bytes(const DecodeProblem& problem);

/// Tokens that a CTA's warps take at once.
int tokens_a_cta(const InstanceKey& key);

/// Row tiles that a CTA has side by side. A block is what the CTA's warps take of one tile at once, so a CTA
/// with more tiles has fewer warps for each.
int tiles_a_cta(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Do the warps that split a request merge it themselves? Not with batch_invariant, because there may be any
/// number of splits.
bool merges_splits(const schedule::Geometry& geometry);

/// Bytes of partial results. Tickets follow them: one a warp for each merge; there are fewer merges than
/// parts.
std::size_t partial_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);
std::size_t workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

Status launch(const DecodeCall& call);

}  // namespace flashlatent::gqa_16
