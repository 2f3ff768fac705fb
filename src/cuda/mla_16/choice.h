// The 16-row kernel on the host: choice.cc and team_choice.cc choose, launch.cc launches.
#pragma once

#include "cuda/mla_16/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::mla_16 {

/// Of teams of so many CTAs, or of 1.
cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading, int team);

/// The team is the geometry's.
Status launch(const DecodeCall& call);

}  // namespace flashlatent::mla_16
