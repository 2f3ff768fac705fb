// How many cases of a suite may be refused before `flashlatent check` fails.
#pragma once

#include <optional>
#include <string>

#include "flashlatent/backend.h"

namespace flashlatent::tools {

/// So many cases of the suite the backend refuses, or its kernel of that name (empty: the library picks).
/// 0 for suites that are not fixed. tests/check_refusals_test.cc compares with what kernels say.
int known_refusals(const std::string& suite, Backend backend, const std::string& kernel);

/// Why a run fails of whose `cases` so many were `refused`; empty if it does not. `most`: --max-refused, if
/// it was given; otherwise `known` cases may be refused, but not all there are.
std::string refused_too_many(int cases, int refused, std::optional<int> most, int known);

}  // namespace flashlatent::tools
