// How many cases of a suite may be refused before `flashlatent check` fails.
#pragma once

#include <optional>
#include <string>

#include "flashlatent/backend.h"

namespace flashlatent::tools {

/// The number of cases of the suite that the backend refuses, or its kernel of that name (empty: the picked
/// kernel); 0 for suites that are not fixed. tests/check_refusals_test.cc compares with the kernels' own
/// answers.
int known_refusals(const std::string& suite, Backend backend, const std::string& kernel);

/// Why a run fails in which `refused` of `cases` cases were refused; empty if it does not. `most`:
/// --max-refused, if given; otherwise `known` cases may be refused, but not all cases of the run.
std::string refused_too_many(int cases, int refused, std::optional<int> most, int known);

}  // namespace flashlatent::tools
