// What the program says beside its results, on stderr.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace flashlatent::tools {

/// Writes to stderr. What cannot be written there (it is closed, or a full disk) is lost, and the work goes
/// on.
void write_message(const std::string& text);

template <class... Values>
void tell(fmt::format_string<Values...> form, Values&&... values) {
  write_message(fmt::format(form, std::forward<Values>(values)...));
}

/// Opens the standard streams that are closed, so that no file which is opened later takes their numbers and
/// gets what is printed. What is written to stdout is still an error then.
void open_standard_streams();

}  // namespace flashlatent::tools
