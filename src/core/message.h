// One-line messages from pieces, without a formatting library.
#pragma once

#include <sstream>
#include <string>

#include "core/return_if_error.h"
#include "flashlatent/status.h"

namespace flashlatent {

template <class... Pieces>
std::string message(const Pieces&... pieces) {
  std::ostringstream stream;
  (stream << ... << pieces);
  return stream.str();
}

template <class... Pieces>
Status invalid_argument(const Pieces&... pieces) {
  return {StatusCode::kInvalidArgument, message(pieces...)};
}

template <class... Pieces>
Status unsupported(const Pieces&... pieces) {
  return {StatusCode::kUnsupported, message(pieces...)};
}

}  // namespace flashlatent
