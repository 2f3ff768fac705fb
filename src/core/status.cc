#include "flashlatent/status.h"

namespace flashlatent {

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kExhausted:
      return "exhausted";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

}  // namespace flashlatent
