// What does the parts of a plan: how many there are, and how fast they are.
#pragma once

namespace flashlatent::schedule {

/// A device's multiprocessors, or CPU threads. Costs are those of an H200's multiprocessors; the factors say
/// how much longer these take for the same (cost/device.h).
struct Workers {
  int count = 1;
  float memory = 1;    ///< For bytes, at a multiprocessor's share of the memory bandwidth.
  float clock = 1;     ///< For what takes clocks.
  float products = 1;  ///< For matrix products.

  /// So many of an H200. Most arithmetic on workers is on their number, so that both ways are implicit.
  Workers(int number) : count(number) {}  // NOLINT(google-explicit-constructor)
  operator int() const { return count; }  // NOLINT(google-explicit-constructor)

  /// So many of these.
  Workers some(int number) const {
    Workers workers = *this;
    workers.count = number;
    return workers;
  }
};

}  // namespace flashlatent::schedule
