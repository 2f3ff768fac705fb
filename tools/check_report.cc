#include "tools/check_report.h"

#include <fmt/core.h>

#include <cstdio>
#include <utility>

#include "tools/check_refusals.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

const char* to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kRight:
      return "right";
    case Outcome::kWrong:
      return "wrong";
    case Outcome::kRefused:
      break;
  }
  return "refused";
}

void CheckReport::announce(const std::string& name) {
  progress_.clear();
  fmt::print("case {}\n", name);
  std::fflush(stdout);
}

void CheckReport::add(Outcome outcome, const std::string& shown, const std::string& detail,
                      const std::string& again, nlohmann::ordered_json row) {
  if (outcome != Outcome::kRight) progress_.clear();
  if (outcome == Outcome::kWrong) fmt::print("WRONG {}: {}\n  again: {}\n", shown, detail, again);
  if (outcome == Outcome::kRefused) fmt::print("refused {}: {}\n", shown, detail);
  right_ += outcome == Outcome::kRight;
  wrong_ += outcome == Outcome::kWrong;
  refused_ += outcome == Outcome::kRefused;
  rows_.push_back(std::move(row));
  progress_.update(right_ + wrong_ + refused_);
}

int CheckReport::finish(const CheckedSuite& suite, const Executor& executor, const std::string& more) {
  progress_.clear();
  fmt::print("check {} on {}: {} right, {} wrong, {} refused{}\n", suite.suite, to_string(executor.backend),
             right_, wrong_, refused_, more);
  const int most = suite.max_refused.value_or(suite.known_refusals);
  const std::string too_many =
      refused_too_many(static_cast<int>(cases_), static_cast<int>(refused_), suite.max_refused, most);
  if (!too_many.empty()) fmt::print("FAILED: {}\n", too_many);
  const nlohmann::ordered_json document = {{"machine", describe_machine(executor)},
                                           {"source_tree", source_tree()},
                                           {"command", command_line()},
                                           {"suite", suite.suite},
                                           {"backend", to_string(executor.backend)},
                                           {"seed", suite.seed},
                                           {"right", right_},
                                           {"wrong", wrong_},
                                           {"refused", refused_},
                                           {"max_refused", most},
                                           {"results", rows_}};
  if (Status status = write_json(suite.json, document); !status.ok()) return fail(status);
  return wrong_ == 0 && too_many.empty() ? kRight : kWrongResult;
}

}  // namespace flashlatent::tools
