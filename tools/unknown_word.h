// A word of the command line that the program does not know, and the one that was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace flashlatent::tools {

/// About the first word that is no subcommand, or option, where one must stand; nothing if there is none.
std::optional<std::string> explain_unknown_word(const CLI::App& app, int argc, const char* const* argv);

}  // namespace flashlatent::tools
