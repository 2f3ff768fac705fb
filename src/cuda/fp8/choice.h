// The kernels of this folder on the host: few_rows_choice.cc and rows64_choice.cc choose, launch.cc launches.
#pragma once

#include "cuda/fp8/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::fp8 {

/// Why none of these kernels takes the problem's cache; nothing if its rows decide.
std::optional<std::string> declines_cache(const DecodeProblem& problem);

/// Of any of them: the geometry says which.
Status launch(const DecodeCall& call);

}  // namespace flashlatent::fp8
