// Times that `flashlatent tune --json` kept.
#pragma once

#include <map>
#include <string>

#include "flashlatent/status.h"

namespace flashlatent::tools {

struct KeptTimes {
  std::string gpu;                   ///< As its table is called.
  std::map<std::string, double> ms;  ///< By the call's name.
};
Result<KeptTimes> read_times(const std::string& path);

}  // namespace flashlatent::tools
