// The workers that do a plan's parts: how many they are, and how fast.
#pragma once

namespace flashlatent::schedule {

/// Multiprocessors of a device, or CPU threads. Costs are those of an H200's multiprocessors; each factor
/// says how much longer these workers take (cost/device.h).
struct Workers {
  int count = 1;
  float memory = 1;    ///< For bytes at a multiprocessor's share of the memory bandwidth.
  float clock = 1;     ///< For everything that takes clocks.
  float products = 1;  ///< For matrix products.

  /// `number` multiprocessors of an H200. Conversions both ways are implicit, since most code needs only the
  /// number.
  Workers(int number) : count(number) {}  // NOLINT(google-explicit-constructor)
  operator int() const { return count; }  // NOLINT(google-explicit-constructor)

  /// `number` of these workers.
  Workers some(int number) const {
    Workers workers = *this;
    workers.count = number;
    return workers;
  }
};

}  // namespace flashlatent::schedule
