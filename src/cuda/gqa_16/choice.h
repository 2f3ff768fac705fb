// gqa_16 on the host: choice.cc chooses, launch.cc launches.
#pragma once

#include "cuda/gqa_16/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::gqa_16 {

/// Null if there is none of the problem's dimensions.
const InstanceKey* key_of(const DecodeProblem& problem);

int element_bytes(const DecodeProblem& problem);

/// What a CTA's warps take of a tile at once is a block: the fewer warps a tile has, the more tiles the CTA
/// has side by side.
int tiles_a_cta(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Do the warps that split a request merge it themselves? With batch_invariant they might be any number.
bool merges_splits(const schedule::Geometry& geometry);

/// Of partial results; tickets come after them, one a warp for each of fewer merges than parts.
std::size_t partial_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);
std::size_t workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& geometry);

Status launch(const DecodeCall& call);

}  // namespace flashlatent::gqa_16
