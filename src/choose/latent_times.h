// What dense calls of latent kernels take, by cost/times.h.
#pragma once

#include "cost/times.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::choose {

/// What calls take by a kernel whose CTAs walk a line. per_call is for whole items; for a line that is cut it
/// is the geometry's.
schedule::CallTimes dense_times(const schedule::Geometry& geometry, const schedule::Workers& workers,
                                const cost::Costs& costs);

/// What a call of shares takes, each share of one item; `costs`: those by which calls are cut. A segment
/// takes as long on every device, though cuts count it in blocks.
schedule::CallTimes share_times(schedule::Geometry geometry, const schedule::Workers& workers,
                                const cost::Costs& costs);

/// Several query tokens: masks make each item longer by per_call.
schedule::CallTimes with_query_tokens(const schedule::CallTimes& times, const DecodeProblem& problem,
                                      const cost::Costs& of, const schedule::Workers& workers);

}  // namespace flashlatent::choose
