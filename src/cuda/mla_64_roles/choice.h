// The mla_64_roles kernel on the host: choice.cc chooses, launch.cc launches.
#pragma once

#include "cuda/mla_64_roles/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::mla_64_roles {

/// Boxes come of pages that are whole stages: those of 16 tokens, which others have boxes of, are too short.
cuda::InstanceKey key_of(const DecodeProblem& problem);

Status launch(const DecodeCall& call);

}  // namespace flashlatent::mla_64_roles
