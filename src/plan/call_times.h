// What a call takes, as far as shapes say.
#pragma once

#include <cstdint>

namespace flashlatent::schedule {

/// Nanoseconds of a call.
struct CallTimes {
  std::int64_t equal = 0;   ///< All requests are as long as the page table reaches.
  std::int64_t varied = 0;  ///< Lengths vary: the mean is cost::kMeanOfLongest of the longest.
};

}  // namespace flashlatent::schedule
