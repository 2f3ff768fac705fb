// The other half of a DecodeKernel: how a call of it is cut into parts, and what it takes then. Kernels
// compute; these decide. docs/architecture.md, "How a cut is chosen".
#pragma once

#include <span>

#include "kernel/decode_kernel.h"
#include "plan/call_times.h"
#include "plan/prefix.h"
#include "plan/schedule.h"
#include "plan/workers.h"

namespace flashlatent::choose {

struct Cutter {
  const DecodeKernel& kernel;
  /// The fixed part of the schedule, with the kernel's costs for a problem that it takes. `workers`: the
  /// device's multiprocessors, or threads.
  schedule::Geometry (*geometry)(const DecodeProblem&, const schedule::Workers& workers);
  /// What a dense call takes by a geometry that geometry() made, for `workers`, where lengths may vary and no
  /// prefixes are shared. Null: what schedule::estimate() says of all lengths alike.
  schedule::CallTimes (*times)(const DecodeProblem&, const schedule::Geometry&,
                               const schedule::Workers& workers) = nullptr;
  /// The schedule of sparse prefill, of a problem that DecodeKernel::declines_turns lets pass. Null: the
  /// kernel takes none.
  schedule::Geometry (*turns)(const DecodeProblem&, const schedule::Workers& workers) = nullptr;
  /// How requests share prefixes by groups, where DecodeKernel::declines_prefixes lets the problem pass. Not
  /// called with Options::prefix_sharing off. Null: they never do.
  prefix::Shape (*prefix_shape)(const DecodeProblem&, const schedule::Workers& workers) = nullptr;
};

/// All kernels, also those without a launch in this build. The first of kernels with equal estimates is
/// picked. The last is the oracle.
std::span<const Cutter* const> cutters();

// A file a kernel.
extern const Cutter kMla16;
extern const Cutter kMla16Team4;
extern const Cutter kMla16Team8;
extern const Cutter kMla16Team16;
extern const Cutter kMla16Transposed;
extern const Cutter kMla64Pingpong;
extern const Cutter kMla64Team;
extern const Cutter kMla64Roles;
extern const Cutter kMla64E4m3;
extern const Cutter kFp8Rows32;
extern const Cutter kFp8Rows16Team8;
extern const Cutter kFp8Rows64;
extern const Cutter kGqa16;
extern const Cutter kGqa128;
extern const Cutter kGqa128Split;
extern const Cutter kCpuDense;
extern const Cutter kReference;

}  // namespace flashlatent::choose
