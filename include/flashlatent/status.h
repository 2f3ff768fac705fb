// Errors are values: every public function returns a Status, or a Result that holds one.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace flashlatent {

enum class StatusCode {
  kOk,
  kInvalidArgument,  ///< The call is wrong; the message names the argument, its value and what would do.
  kUnsupported,      ///< The call is right, but no kernel of this backend takes it; the message says why.
  kUnavailable,      ///< The backend or the device is not present.
  kExhausted,        ///< A pool or a caller's buffer is too small.
  kInternal,         ///< A CUDA call failed.
};

/// "ok", "invalid argument", ...
const char* to_string(StatusCode code);

/// A code and a one-line message. Cheap to return when ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A T, or a Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  /// Precondition: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace flashlatent
