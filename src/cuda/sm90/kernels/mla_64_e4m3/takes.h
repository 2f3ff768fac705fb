// The kernel with e4m3 products on the host: takes.cc says what it takes, launch.cc launches.
#pragma once

#include "cuda/sm90/kernels/mla_64_e4m3/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::mla_64_e4m3 {

/// The key of the instance for a call's cache; a cache without pages has no boxes.
cuda::InstanceKey key_of(const DecodeProblem& problem, const schedule::Geometry& geometry, bool has_pages);

Status launch(const DecodeCall& call);

}  // namespace flashlatent::mla_64_e4m3
