// The quartet kernel on the host: choice.cc chooses, launch.cc launches.
#pragma once

#include "cuda/quartet/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::quartet {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading);

Status launch(const DecodeCall& call);

}  // namespace flashlatent::quartet
