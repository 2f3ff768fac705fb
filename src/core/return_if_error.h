// Macros that pass errors on.
#pragma once

#include <utility>

#include "flashlatent/status.h"

/// Returns a Status from the enclosing function unless it is ok.
#define FLASHLATENT_RETURN_IF_ERROR(expression)                        \
  do {                                                                 \
    if (::flashlatent::Status status_ = (expression); !status_.ok()) { \
      return status_;                                                  \
    }                                                                  \
  } while (false)

/// Sets `target` (a variable or its declaration) to the value of a Result; returns an error from the
/// enclosing function. Two statements: do not use it as the body of an `if`.
#define FLASHLATENT_ASSIGN_OR_RETURN(target, ...) FLASHLATENT_ASSIGN_AT_LINE(target, __LINE__, (__VA_ARGS__))
#define FLASHLATENT_ASSIGN_AT_LINE(target, line, expression) \
  FLASHLATENT_ASSIGN_BY_NAME(target, result_of_line_, line, expression)
#define FLASHLATENT_ASSIGN_BY_NAME(target, name, line, expression) \
  auto name##line = expression;                                    \
  if (!name##line.ok()) return name##line.status();                \
  target = std::move(name##line).value()  // NOLINT(bugprone-macro-parentheses): it may be a declaration
