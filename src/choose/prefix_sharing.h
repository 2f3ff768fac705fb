// Whether requests of a problem attend to a shared prefix by groups, on a given kernel.
#pragma once

#include <string>

#include "choose/cutters.h"

namespace flashlatent::choose {

/// Why requests may not attend to shared prefixes by groups; empty if they may.
std::string reason_against_prefixes(const DecodeKernel& kernel, const DecodeProblem& problem);

/// How requests attend to shared prefixes by groups, as select() uses it; `requests` is 0 if they do not.
prefix::Shape prefix_shape_of(const Cutter& cutter, const DecodeProblem& problem,
                              const schedule::Workers& workers);

}  // namespace flashlatent::choose
