// Tickets: of several who each leave a part of a result in memory, the last one adds all of them up, whoever
// that is. Nobody waits for anybody.
//
// A ticket is counts below a word that says that it is one. The workspace may hold anything before a call,
// and any call leaves its tickets at 0: only where that word does not stand is a ticket begun anew.
#pragma once

#include "cuda/parts/arguments.h"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

/// kBits: of the counts.
template <int kBits>
struct Counts {
  static constexpr Ticket kMask = (1ULL << kBits) - 1;
  static constexpr Ticket kNone = 0x7E4A5C0D1F3B0000 & ~kMask;  // all are 0

  /// Adds to the ticket's counts; returns what they were. Everything that the CTA's threads wrote before a
  /// barrier that this thread passed is there for who adds later.
  __device__ __forceinline__ static Ticket add(Ticket* ticket, Ticket x) {
    Ticket before = ptx::add_at_gpu(ticket, x);
    // Not a ticket yet. What was added to it until it is one counts for nothing.
    while ((before & ~kMask) != kNone) {
      const Ticket found = ptx::add_at_gpu(ticket, 0);
      const bool is_one = (found & ~kMask) == kNone;
      const Ticket counted = (is_one ? found : kNone) + x;
      if (atomicCAS(ticket, found, counted) == found) before = counted - x;
    }
    return before & kMask;
  }

  /// Where this has been called counts may be added by any atomic addition.
  __device__ __forceinline__ static void prepare(Ticket* ticket) {
    if ((ptx::load_relaxed_at_gpu(ticket) & ~kMask) != kNone) add(ticket, 0);
  }
};

/// Takes one of `count` tickets; true for the last of them. Everything that the CTA's threads wrote before a
/// barrier that this thread passed is there for who reads after the last ticket.
__device__ __forceinline__ bool take_ticket(Ticket* ticket, int count) {
  using Taken = Counts<16>;
  const bool last = Taken::add(ticket, 1) == static_cast<Ticket>(count - 1);
  if (last) *ticket = Taken::kNone;
  return last;
}

}  // namespace flashlatent::parts
