// Tickets: of several who each leave a part of a result in memory, the last one adds all of them up, whoever
// that is. Nobody waits for anybody.
//
// A ticket is a count below a word that says that it is one. The workspace may hold anything before a call,
// and any call leaves its tickets at 0: only where that word does not stand is a ticket begun anew.
#pragma once

#include "cuda/ptx/copy.cuh"

namespace flashlatent::parts {

using Ticket = unsigned long long;

/// Takes one of `count` tickets; true for the last of them. Everything that the CTA's threads wrote before a
/// barrier that this thread passed is there for who reads after the last ticket.
__device__ __forceinline__ bool take_ticket(Ticket* ticket, int count) {
  constexpr Ticket kName = 0x7E4A5C0D1F3B0000;  // the count is below it
  Ticket before = ptx::add_at_gpu(ticket, 1);
  // Not a ticket yet. What was added to it until it is one counts for nothing.
  while ((before & ~0xFFFFULL) != kName) {
    const Ticket found = ptx::add_at_gpu(ticket, 0);
    const bool is_one = (found & ~0xFFFFULL) == kName;
    const Ticket counted = (is_one ? found : kName) + 1;
    if (atomicCAS(ticket, found, counted) == found) before = counted - 1;
  }
  const bool last = before - kName == static_cast<Ticket>(count - 1);
  if (last) *ticket = kName;
  return last;
}

}  // namespace flashlatent::parts
