// Tickets: if several CTAs each leave a partial result in memory, the last CTA adds them up. No CTA waits.
//
// A ticket has counts below a word that marks it as a ticket. The workspace may hold anything before a call,
// and every call leaves its tickets with counts of 0. A ticket without the mark is initialised first.
#pragma once

#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/arguments.h"

namespace flashlatent::sm90 {

/// kBits: bits of the counts.
template <int kBits>
struct Counts {
  static constexpr Ticket kMask = (1ULL << kBits) - 1;
  static constexpr Ticket kNone = 0x7E4A5C0D1F3B0000 & ~kMask;  // all counts are 0

  /// Adds to the ticket's counts and returns their previous values. Everything that the CTA's threads wrote
  /// before a barrier that this thread has passed is visible to those who add later.
  __device__ __forceinline__ static Ticket add(Ticket* ticket, Ticket x) {
    Ticket before = ptx::add_at_gpu(ticket, x);
    // Not a ticket yet. What is added before it becomes a ticket is discarded.
    while ((before & ~kMask) != kNone) {
      const Ticket found = ptx::add_at_gpu(ticket, 0);
      const bool is_one = (found & ~kMask) == kNone;
      const Ticket counted = (is_one ? found : kNone) + x;
      if (atomicCAS(ticket, found, counted) == found) before = counted - x;
    }
    return before & kMask;
  }

  /// After this call any atomic addition may add counts.
  __device__ __forceinline__ static void prepare(Ticket* ticket) {
    if ((ptx::load_relaxed_at_gpu(ticket) & ~kMask) != kNone) add(ticket, 0);
  }
};

/// Takes one of `count` tickets; true for the last one. Everything that the CTA's threads wrote before a
/// barrier that this thread has passed is visible to the one who takes the last ticket.
__device__ __forceinline__ bool take_ticket(Ticket* ticket, int count) {
  using Taken = Counts<16>;
  const bool last = Taken::add(ticket, 1) == static_cast<Ticket>(count - 1);
  if (last) *ticket = Taken::kNone;
  return last;
}

}  // namespace flashlatent::sm90
