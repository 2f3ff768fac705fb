// The workers of a plan's parts: how many there are, and how fast they are.
#pragma once

#include <array>
#include <cstdint>

namespace flashlatent::cost {
struct Table;
}  // namespace flashlatent::cost

namespace flashlatent::schedule {

/// How many clusters of 1, 2, ... CTAs a device holds at once, if each CTA has a multiprocessor of its own. A
/// cluster lies within a GPC; slices of a GPU and smaller chips have smaller GPCs.
class ClusterRoom {
 public:
  static constexpr int kMostCtas = 16;  // of a cluster

  /// No device has been asked: as on an H200.
  ClusterRoom() = default;
  /// What the device says, for 1, 2, ... CTAs. 0: such a cluster cannot be launched.
  explicit ClusterRoom(const std::array<std::int16_t, kMostCtas>& counts) : known_(true), counts_(counts) {}

  bool is_known() const { return known_; }
  /// If it is known.
  int clusters_of(int ctas) const { return ctas <= kMostCtas ? counts_[ctas - 1] : 0; }
  /// Can a cluster of so many CTAs be launched?
  bool fits(int ctas) const { return !known_ || clusters_of(ctas) > 0; }
  /// CTAs of the largest cluster that can be launched.
  int most_ctas() const {
    int ctas = kMostCtas;
    while (ctas > 1 && !fits(ctas)) --ctas;
    return ctas;
  }

 private:
  bool known_ = false;
  std::array<std::int16_t, kMostCtas> counts_ = {};
};

/// Multiprocessors of a device, or CPU threads. Costs are those of an H200's multiprocessors; each factor
/// says how much longer these workers take (cost/device.h).
struct Workers {
  int count = 1;
  float memory = 1;    ///< For bytes at a multiprocessor's share of the memory bandwidth.
  float clock = 1;     ///< For everything that takes clocks.
  float products = 1;  ///< For matrix products.
  ClusterRoom room = {};
  const cost::Table* costs = nullptr;  ///< The device's own table; null: the H200's, scaled by the factors.

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
