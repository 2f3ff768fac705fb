// Loops on OpenMP threads, which also work in a child made by fork. All parallel regions of the project are
// in these functions.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace flashlatent::cpu {

/// Threads that OpenMP offers to the calling thread.
int hardware_threads();

/// Calls `region(context, threads)` where a team of `threads` OpenMP threads can be made.
///
/// libgomp keeps a thread's team for the thread's next region. fork copies only the calling thread, so in the
/// child its team consists of threads that do not exist, and its next region would wait for them for ever.
/// There, regions run on a stand-in: a thread that the child starts once and that gets a team of its own. If
/// no thread can be started, `threads` is 1, which needs no team.
void with_team(int threads, void (*region)(void* context, int threads), void* context);

namespace detail {

template <class Region>
void with_team(int threads, Region&& region) {
  cpu::with_team(
      threads,
      [](void* context, int team) { (*static_cast<std::remove_reference_t<Region>*>(context))(team); },
      std::addressof(region));
}

}  // namespace detail

/// Calls body(i) for each i of [0, n) on at most `threads` threads; each takes a run of consecutive i. With n
/// <= threads each i has a thread of its own, if the system gives that many.
template <class Body>
void parallel_for(std::int64_t n, int threads, Body&& body) {
  if (threads <= 1 || n <= 1) {
    for (std::int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  detail::with_team(threads, [&](int team) {
#pragma omp parallel for schedule(static) num_threads(team)
    for (std::int64_t i = 0; i < n; ++i) body(i);
  });
}

/// The same for calls that take unequal times: a free thread takes the next i.
template <class Body>
void parallel_for_dynamic(std::int64_t n, int threads, Body&& body) {
  if (threads <= 1 || n <= 1) {
    for (std::int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  detail::with_team(threads, [&](int team) {
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (std::int64_t i = 0; i < n; ++i) body(i);
  });
}

}  // namespace flashlatent::cpu
