// The cases of `flashlatent check`.
#pragma once

#include <string>
#include <vector>

#include "runtime/random_case.h"

namespace flashlatent::tools {

/// `suite` is small, quick or full; each name is unique and tells what is in the case.
std::vector<runtime::CaseSpec> check_cases(const std::string& suite);

}  // namespace flashlatent::tools
