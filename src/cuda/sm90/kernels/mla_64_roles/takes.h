// The host side of mla_64_roles: takes.cc says what it takes, launch.cc launches.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::mla_64_roles {

/// Boxes need pages of whole stages (32 tokens); pages of 16, which other kernels load by boxes, are loaded
/// token by token.
cuda::InstanceKey key_of(const DecodeProblem& problem);

Status launch(const DecodeCall& call);

}  // namespace flashlatent::mla_64_roles
