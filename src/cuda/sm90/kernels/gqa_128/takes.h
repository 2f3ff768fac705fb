// The host side of gqa_128 and gqa_128_split: takes.cc and split_takes.cc say what they take, launch.cc
// launches.
#pragma once

#include <optional>
#include <string>

#include "cuda/sm90/kernels/gqa_128/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::gqa_128 {

/// Null if nothing is compiled for the problem's dimensions.
const InstanceKey* key_of(const DecodeProblem& problem, Kind kind);
/// The key for attending to requests' own tokens.
const InstanceKey* key_of(const DecodeProblem& problem);

/// Row tiles of a KV head.
int row_tiles_of(const DecodeProblem& problem);

/// Why no instance reads this cache; empty if one does.
std::optional<std::string> declines_cache(const DecodeProblem& problem);

Status launch(const DecodeCall& call);
Status launch_segments(const DecodeCall& call);

}  // namespace flashlatent::gqa_128
