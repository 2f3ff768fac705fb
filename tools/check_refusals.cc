#include "tools/check_refusals.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace flashlatent::tools {

namespace {

struct Row {
  const char* kernel;  ///< Empty: the library picks.
  int small, quick, full, sparse_prefill = 0;
};

constexpr std::array kOfCuda = {
    Row{"", 1, 0, 35},
    Row{"mla_16_transposed", 78, 621, 2079, 317},
    Row{"mla_16_team4", 87, 773, 2329, 380},
    Row{"mla_16_team8", 87, 773, 2329, 380},
    Row{"mla_16_team16", 89, 785, 2389, 380},
    Row{"mla_16", 99, 830, 2395, 305},
    Row{"mla_64_pingpong", 18, 274, 1018, 22},
    Row{"mla_64_roles", 90, 826, 2321, 203},
    Row{"fp8_32", 87, 662, 2280, 380},
    Row{"fp8_16_team8", 87, 756, 2239, 380},
    Row{"mla_64_team", 103, 703, 2524, 380},
    Row{"fp8_64", 80, 597, 2107, 380},
    Row{"mla_64_e4m3", 106, 825, 2609, 380},
    Row{"gqa_16", 105, 684, 1953, 380},
    Row{"gqa_128_split", 107, 743, 2252, 380},
    Row{"gqa_128", 110, 825, 2524, 380},
};
// cpu_dense takes every case.
constexpr std::array kOfCpu = {
    Row{"reference", 1, 27, 27},
};

/// The kernel's row, or null.
template <std::size_t kCount>
const Row* find(const std::array<Row, kCount>& rows, std::string_view kernel) {
  const auto* row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.kernel == kernel; });
  return row == rows.end() ? nullptr : row;
}

}  // namespace

int known_refusals(const std::string& suite, Backend backend, const std::string& kernel) {
  const Row* row = backend == Backend::kCpu ? find(kOfCpu, kernel) : find(kOfCuda, kernel);
  if (row == nullptr) return 0;
  if (suite == "small") return row->small;
  if (suite == "quick") return row->quick;
  if (suite == "sparse_prefill") return row->sparse_prefill;
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
