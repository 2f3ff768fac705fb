#include "tools/check_refusals.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "kernel/former_names.h"

namespace flashlatent::tools {

namespace {

struct Row {
  const char* kernel;  ///< Empty: the library picks.
  int small, quick, full, sparse_prefill = 0;
};

constexpr std::array kOfCuda = {
    Row{"", 1, 0, 35},
    Row{"mla_16_transposed", 71, 562, 1992, 317},
    Row{"mla_16_team4", 74, 688, 2212, 377},
    Row{"mla_16_team8", 74, 688, 2212, 377},
    Row{"mla_16_team16", 76, 700, 2272, 377},
    Row{"mla_16", 86, 745, 2278, 302},
    Row{"mla_64_pingpong", 18, 258, 974, 22},
    Row{"mla_64_roles", 77, 741, 2204, 200},
    Row{"fp8_32", 79, 700, 2287, 377},
    Row{"fp8_16_team8", 90, 763, 2401, 377},
    Row{"mla_64_team", 96, 747, 2536, 377},
    Row{"fp8_64", 74, 641, 2120, 377},
    Row{"mla_64_e4m3", 92, 740, 2492, 377},
    Row{"gqa_16", 91, 615, 1880, 377},
    Row{"gqa_128_split", 94, 680, 2252, 377},
    Row{"gqa_128", 96, 756, 2443, 377},
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
  const Row* row = backend == Backend::kCpu ? find(kOfCpu, kernel) : find(kOfCuda, current_name(kernel));
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
