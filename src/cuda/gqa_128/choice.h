// gqa_128 on the host: choice.cc chooses, launch.cc launches.
#pragma once

#include <optional>
#include <string>

#include "cuda/gqa_128/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::gqa_128 {

/// Null if there is none of the problem's dimensions.
const InstanceKey* key_of(const DecodeProblem& problem, Kind kind);
/// Of requests' own tokens.
const InstanceKey* key_of(const DecodeProblem& problem);

/// Why no instance reads this cache; nothing if one does.
std::optional<std::string> declines_cache(const DecodeProblem& problem);

Status launch(const DecodeCall& call);
Status launch_segments(const DecodeCall& call);

}  // namespace flashlatent::gqa_128
