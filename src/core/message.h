// One-line messages from pieces, without a formatting library.
#pragma once

#include <string>
#include <string_view>

#include "core/return_if_error.h"
#include "flashlatent/status.h"

namespace flashlatent {

void append(std::string& text, const char* piece);
void append(std::string& text, std::string_view piece);
void append(std::string& text, char piece);
void append(std::string& text, int piece);
void append(std::string& text, unsigned piece);
void append(std::string& text, long piece);
void append(std::string& text, unsigned long piece);
void append(std::string& text, long long piece);
void append(std::string& text, unsigned long long piece);
/// Six digits.
void append(std::string& text, double piece);
void append(std::string& text, const void* address);

template <class... Pieces>
std::string message(const Pieces&... pieces) {
  std::string text;
  (append(text, pieces), ...);
  return text;
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
