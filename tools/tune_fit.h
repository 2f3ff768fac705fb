// From times of calls to a table of costs: what `flashlatent tune` does with what it measured. No device is
// asked.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choose/candidates.h"
#include "cost/table.h"

namespace flashlatent::tools {

/// A call by one kernel. Of sparse prefill each query token is a request.
struct KernelCall {
  DecodeProblem problem = {};
  Purpose purpose = Purpose::kDecode;
  std::string kernel = {};
};

/// What costs say of a call.
struct Predicted {
  schedule::Geometry cut = {};
  double time = 0;     ///< Nanoseconds by which kernels are picked.
  double for_cut = 0;  ///< The estimate by which calls are cut. Of some kernels it is no time.
};

/// What `table` says of a call on these workers; null: what holds there without a table. Empty if the kernel
/// does not take the call or would not be picked for it.
std::optional<Predicted> predict(const KernelCall& call, const schedule::Workers& workers,
                                 const cost::Table* table);

/// Is the same done by both?
bool is_same_cut(const schedule::Geometry& a, const schedule::Geometry& b);

/// A constant of a table: of cost::kPlaces and cost::fields().
struct Entry {
  std::size_t place = 0, field = 0;

  friend bool operator==(const Entry&, const Entry&) = default;
  std::string name() const;  ///< "mla_16 rows16 per_block".
  std::int32_t& in(cost::Table& table) const;
  std::int32_t in(const cost::Table& table) const;
};
/// The constants that the table has.
std::vector<Entry> entries_of(const cost::Table& table);

/// The entries by which a call's time changes.
std::vector<Entry> entries_of_time(const KernelCall& call, const schedule::Workers& workers,
                                   const cost::Table& table);

struct MeasuredCall {
  KernelCall call = {};
  double nanoseconds = 0;
};

/// How a constant of the new table came to be.
enum class Origin {
  kMeasured,  ///< Times of calls depend on it.
  kFollowed,  ///< Only cuts depend on it, which keep to the times.
  kKept,      ///< As it was.
};
const char* to_string(Origin origin);

struct TunedEntry {
  Entry entry = {};
  std::int32_t before = 0, after = 0;
  Origin origin = Origin::kKept;
  int calls = 0;         ///< Measured calls whose time depends on it.
  double deviation = 0;  ///< Nanoseconds: how well the times tell it, the others fitted with it.
};

/// What the old and the new table say of a measured call, nanoseconds; 0: they cut it in another way than it
/// was cut when it was measured.
struct TunedCall {
  double before = 0, after = 0;
};

struct Tuned {
  cost::Table table = {};
  std::vector<TunedEntry> entries = {};
  std::vector<TunedCall> calls = {};  ///< In the order of the measured ones.
};

/// The table that is nearest to the times: the least squares of relative errors, in which an error beyond 5 %
/// counts for less and in proportion to itself. Constants stay near `start`, as far as times do not say
/// otherwise. `workers`: those that measured, with the table that held then, if there was one.
Tuned tune(const cost::Table& start, std::span<const MeasuredCall> calls, const schedule::Workers& workers);

}  // namespace flashlatent::tools
