#include "tools/check_refusals.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "dispatch/former_names.h"

namespace flashlatent::tools {

namespace {

struct Row {
  const char* kernel;  ///< Empty: the library picks.
  int small, quick, full;
};

constexpr std::array kOfCuda = {
    Row{"", 1, 1, 36},
    Row{"mla_16_transposed", 39, 235, 1199},
    Row{"mla_16_team4", 31, 268, 1225},
    Row{"mla_16_team8", 31, 268, 1225},
    Row{"mla_16_team16", 33, 280, 1285},
    Row{"mla_16", 42, 292, 1333},
    Row{"mla_64_pingpong", 6, 146, 748},
    Row{"mla_64_roles", 34, 282, 1355},
    Row{"fp8_32", 41, 316, 1426},
    Row{"fp8_16_team8", 47, 322, 1438},
    Row{"fp8_64", 37, 301, 1297},
    Row{"gqa_16", 48, 200, 898},
    Row{"gqa_128_split", 49, 224, 922},
    Row{"gqa_128", 52, 326, 1446},
};
// cpu_dense takes every case.
constexpr std::array kOfCpu = {
    Row{"reference", 1, 24, 24},
};

/// The row of the kernel, or null.
template <std::size_t kCount>
const Row* find(const std::array<Row, kCount>& rows, std::string_view kernel) {
  const auto* row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.kernel == kernel; });
  return row == rows.end() ? nullptr : row;
}

}  // namespace

int known_refusals(const std::string& suite, Backend backend, const std::string& kernel) {
  const Row* row = backend == Backend::kCpu ? find(kOfCpu, kernel) : find(kOfCuda, current_name(kernel));
  if (row == nullptr) return 0;
  if (suite == "small") return row->small;
  if (suite == "quick") return row->quick;
  return suite == "full" ? row->full : 0;
}

std::string refused_too_many(int cases, int refused, std::optional<int> most, int known) {
  if (refused > most.value_or(known)) {
    return fmt::format("{} of {} cases were refused, and {} may be; --max-refused {} accepts so many",
                       refused, cases, most.value_or(known), refused);
  }
  if (!most && cases > 0 && refused == cases) {
    return fmt::format(
        "all of {} cases were refused, so that nothing was compared; --max-refused {} accepts that", cases,
        refused);
  }
  return "";
}

}  // namespace flashlatent::tools
