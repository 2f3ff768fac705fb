// Status as Python exceptions (flashlatent/_errors.py), with the same message.
#pragma once

#include <string>

#include "core/message.h"
#include "flashlatent/status.h"

namespace flashlatent::python {

/// Raises the exception of status.code().
[[noreturn]] void raise(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

/// The value, or its error raised.
template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

/// Raises ArgumentTypeError, an InvalidArgumentError that is a TypeError too.
[[noreturn]] void raise_type_error(const std::string& message);

/// Raises InvalidArgumentError with a message of these pieces.
template <class... Pieces>
[[noreturn]] void refuse(const Pieces&... pieces) {
  raise(invalid_argument(pieces...));
}

/// The same of an argument whose Python type is wrong: ArgumentTypeError.
template <class... Pieces>
[[noreturn]] void refuse_type(const Pieces&... pieces) {
  raise_type_error(message(pieces...));
}

}  // namespace flashlatent::python
