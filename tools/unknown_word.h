// Finds a word of the command line that the program does not know, and the one that was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace flashlatent::tools {

/// A message about the first word that should be a subcommand or option and is none; empty if all are known.
std::optional<std::string> explain_unknown_word(const CLI::App& app, int argc, const char* const* argv);

}  // namespace flashlatent::tools
