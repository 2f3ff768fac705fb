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
  int small, quick, full, sparse_prefill = 0;
};

constexpr std::array kOfCuda = {
    Row{"", 1, 1, 36},
    Row{"mla_16_transposed", 62, 431, 1726, 227},
    Row{"mla_16_team4", 54, 446, 1765, 242},
    Row{"mla_16_team8", 54, 446, 1765, 242},
    Row{"mla_16_team16", 56, 458, 1825, 242},
    Row{"mla_16", 66, 503, 1831, 167},
    Row{"mla_64_pingpong", 16, 247, 938, 9},
    Row{"mla_64_roles", 58, 499, 1833, 141},
    Row{"fp8_32", 66, 521, 1993, 242},
    Row{"fp8_16_team8", 73, 533, 2011, 242},
    Row{"fp8_64", 61, 479, 1837, 242},
    Row{"mla_64_e4m3", 72, 504, 2051, 242},
    Row{"gqa_16", 72, 375, 1435, 242},
    Row{"gqa_128_split", 75, 440, 1807, 242},
    Row{"gqa_128", 77, 516, 1998, 242},
};
// cpu_dense takes every case.
constexpr std::array kOfCpu = {
    Row{"reference", 1, 27, 27},
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
