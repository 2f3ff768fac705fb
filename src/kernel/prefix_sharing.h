// Which kernels and problems let requests attend to a prefix that they share by groups.
#pragma once

#include <string>

#include "kernel/decode_kernel.h"

namespace flashlatent {

/// Empty if requests may attend to shared prefixes by groups, else why not.
std::string reason_against_prefixes(const DecodeKernel& kernel, const DecodeProblem& problem);

/// How requests attend to shared prefixes by groups, as select() has it for this problem: without requests,
/// if they don't.
prefix::Shape prefix_shape_of(const DecodeKernel& kernel, const DecodeProblem& problem,
                              const schedule::Workers& workers);

}  // namespace flashlatent
