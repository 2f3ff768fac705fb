#include "core/message.h"

#include <array>
#include <charconv>
#include <cstdint>

namespace flashlatent {

namespace {

template <class Number, class... Format>
void append_number(std::string& text, Number number, Format... format) {
  std::array<char, 32> digits;
  const std::to_chars_result end =
      std::to_chars(digits.data(), digits.data() + digits.size(), number, format...);
  text.append(digits.data(), end.ptr);
}

}  // namespace

void append(std::string& text, const char* piece) {
  text += piece;
}

void append(std::string& text, std::string_view piece) {
  text += piece;
}

void append(std::string& text, char piece) {
  text += piece;
}

void append(std::string& text, int piece) {
  append_number(text, piece);
}

void append(std::string& text, unsigned piece) {
  append_number(text, piece);
}

void append(std::string& text, long piece) {
  append_number(text, piece);
}

void append(std::string& text, unsigned long piece) {
  append_number(text, piece);
}

void append(std::string& text, long long piece) {
  append_number(text, piece);
}

void append(std::string& text, unsigned long long piece) {
  append_number(text, piece);
}

void append(std::string& text, double piece) {
  append_number(text, piece, std::chars_format::general, 6);
}

void append(std::string& text, const void* address) {
  text += "0x";
  append_number(text, reinterpret_cast<std::uintptr_t>(address), 16);
}

}  // namespace flashlatent
