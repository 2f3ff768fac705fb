// The transposed kernel on the host: takes.cc says what it takes, launch.cc launches.
#pragma once

#include "cuda/sm90/kernels/mla_16_transposed/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::mla_16_transposed {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading);

/// By two lists: does each CTA have a share of one item, or a whole item? Instances for shares compute these.
bool has_one_item(const DecodeProblem& problem, const schedule::Geometry& geometry);

Status launch(const DecodeCall& call);

}  // namespace flashlatent::mla_16_transposed
