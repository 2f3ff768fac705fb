// Which cases of a suite `flashlatent check` runs.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "flashlatent/status.h"

namespace flashlatent::tools {

struct CaseChoice {
  std::string suite, filter;
  std::size_t first = 0, of = 1;  ///< Every of-th case from the first on.
  std::string after;              ///< Only the cases behind this one; empty: all.
};

/// Numbers names that come again, so that a name is one case's: "NAME (2)".
template <class Spec>
void make_names_unique(std::vector<Spec>& cases) {
  std::map<std::string, int> seen;
  for (Spec& spec : cases) {
    if (const int times = ++seen[spec.name]; times > 1) spec.name += fmt::format(" ({})", times);
  }
}

/// Leaves those of `cases`, specs with a name, that are chosen, under names of their own.
template <class Spec>
Status choose_cases(std::vector<Spec>& cases, const CaseChoice& choice) {
  make_names_unique(cases);
  std::erase_if(cases, [&](const Spec& spec) { return spec.name.find(choice.filter) == std::string::npos; });
  if (cases.empty()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--filter '{}' matches no case of suite {}; --list shows them", choice.filter,
                        choice.suite)};
  }
  if (cases.size() < choice.of) {
    return {StatusCode::kInvalidArgument, fmt::format("--shard is '{}/{}', but there are {} cases",
                                                      choice.first + 1, choice.of, cases.size())};
  }
  std::size_t place = 0;
  std::erase_if(cases, [&](const Spec&) { return place++ % choice.of != choice.first; });
  if (choice.after.empty()) return {};
  const auto last = std::ranges::find(cases, choice.after, &Spec::name);
  if (last == cases.end()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--after is '{}', which is none of the {} cases; --list shows them", choice.after,
                        cases.size())};
  }
  cases.erase(cases.begin(), last + 1);
  return {};
}

}  // namespace flashlatent::tools
