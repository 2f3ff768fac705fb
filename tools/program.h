// A command-line program of subcommands.
#pragma once

#include <span>

#include "tools/command.h"

namespace flashlatent::tools {

using AddCommand = void (*)(CLI::App&, Action&);

/// main() of a program with these subcommands.
int run_program(int argc, char** argv, std::span<const AddCommand> commands);

}  // namespace flashlatent::tools
