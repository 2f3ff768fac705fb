#include "core/environment.h"

#include <cstdlib>

#include "core/message.h"

namespace flashlatent::environment {

namespace {

std::string_view value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

}  // namespace

std::string_view backend() {
  return value_of("FLASHLATENT_BACKEND");
}

std::string_view costs() {
  return value_of("FLASHLATENT_COSTS");
}

Result<bool> checks_inputs(std::string_view value) {
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  return invalid_argument("FLASHLATENT_CHECK_INPUTS is '", value, "'; 0 and 1 are accepted");
}

Result<bool> checks_inputs() {
  static const Result<bool> kOnce = checks_inputs(value_of("FLASHLATENT_CHECK_INPUTS"));
  return kOnce;
}

}  // namespace flashlatent::environment
