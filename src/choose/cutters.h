// The other half of a DecodeKernel: how its calls are cut into parts, and what they then take. Kernels
// compute; cutters decide. docs/architecture.md, "How a cut is chosen".
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
  /// What a dense call takes with a geometry that geometry() made, for `workers`, if lengths may vary and no
  /// prefixes are shared. Null: what schedule::estimate() says, for equal lengths.
  schedule::CallTimes (*times)(const DecodeProblem&, const schedule::Geometry&,
                               const schedule::Workers& workers) = nullptr;
  /// The schedule of sparse prefill, for a problem that DecodeKernel::declines_turns lets pass. Null: the
  /// kernel takes no sparse prefill.
  schedule::Geometry (*turns)(const DecodeProblem&, const schedule::Workers& workers) = nullptr;
  /// How requests share prefixes by groups, if DecodeKernel::declines_prefixes lets the problem pass. Not
  /// called with Options::prefix_sharing off. Null: requests never share.
  prefix::Shape (*prefix_shape)(const DecodeProblem&, const schedule::Workers& workers) = nullptr;
};

/// The cutters of all kernels, also of those without a launch in this build. Among kernels with equal
/// estimates the first is picked. The last is the oracle.
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
