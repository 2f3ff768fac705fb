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
    Row{"mla_16_transposed", 80, 621, 2099, 337},
    Row{"mla_16_team4", 89, 773, 2349, 400},
    Row{"mla_16_team8", 89, 773, 2349, 400},
    Row{"mla_16_team16", 91, 785, 2409, 400},
    Row{"mla_16", 101, 830, 2415, 325},
    Row{"mla_64_pingpong", 20, 274, 1038, 42},
    Row{"mla_64_roles", 92, 826, 2341, 223},
    Row{"fp8_32", 82, 662, 2224, 324},
    Row{"fp8_16_team8", 89, 756, 2259, 400},
    Row{"mla_64_team", 105, 703, 2544, 400},
    Row{"fp8_64", 72, 597, 2027, 300},
    Row{"mla_64_e4m3", 106, 825, 2609, 380},
    Row{"gqa_16", 107, 684, 1973, 400},
    Row{"gqa_128_split", 109, 743, 2272, 400},
    Row{"gqa_128", 112, 825, 2544, 400},
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
