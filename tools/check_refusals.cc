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
  int small, quick, full, prefill = 0;
};

constexpr std::array kOfCuda = {
    Row{"", 1, 1, 36},
    Row{"mla_16_transposed", 49, 305, 1373},
    Row{"mla_16_team4", 43, 344, 1421},
    Row{"mla_16_team8", 43, 344, 1421},
    Row{"mla_16_team16", 45, 356, 1481},
    Row{"mla_16", 54, 368, 1529},
    Row{"mla_64_pingpong", 14, 205, 887},
    Row{"mla_64_roles", 46, 358, 1551},
    Row{"fp8_32", 53, 392, 1622},
    Row{"fp8_16_team8", 59, 398, 1634},
    Row{"fp8_64", 49, 377, 1493},
    Row{"mla_64_e4m3", 58, 363, 1668},
    Row{"gqa_16", 60, 276, 1094},
    Row{"gqa_128_split", 63, 338, 1463},
    Row{"gqa_128", 64, 402, 1642},
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
  if (suite == "sparse_prefill") return row->prefill;
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
