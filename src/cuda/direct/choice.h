// The direct kernel on the host: choice.cc and team_choice.cc choose, launch.cc launches.
#pragma once

#include "cuda/direct/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::direct {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading);
cuda::InstanceKey team_key_of(const DecodeProblem& problem, cuda::Loading loading);

Status launch(const DecodeCall& call);
Status launch_teams(const DecodeCall& call);

}  // namespace flashlatent::direct
