// The host side of mla_16: takes.cc and team_takes.cc say what it takes, launch.cc launches.
#pragma once

#include "cuda/sm90/kernels/mla_16/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::mla_16 {

/// The key for teams of `team` CTAs; 1: no teams.
cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading, int team);

/// Takes the team size from the geometry.
Status launch(const DecodeCall& call);

}  // namespace flashlatent::mla_16
