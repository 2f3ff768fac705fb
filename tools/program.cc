#include "tools/program.h"

#include <fmt/core.h>

#include <csignal>
#include <exception>
#include <new>

#include "flashlatent/version.h"
#include "tools/command.h"
#include "tools/unknown_word.h"

namespace flashlatent::tools {

namespace {

int run(int argc, char** argv, std::span<const AddCommand> commands) {
  CLI::App app{
      "Decode attention for latent (MLA) and paged KV caches.\n"
      "Results go to stdout, progress and errors to stderr.\n"
      "Exit codes: 0 right, 1 wrong result, 2 wrong usage or input."};
  app.name("flashlatent");
  app.set_version_flag("--version", FLASHLATENT_VERSION);
  app.require_subcommand(0, 1);  // 0, so that an unknown subcommand gets a message of its own
  app.get_formatter()->column_width(34);
  Action action;
  for (AddCommand add : commands) add(app, action);
  take_whole_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    const int code = app.exit(success);
    const Status written = finish_stdout();
    return written.ok() ? code : fail(written);
  } catch (const CLI::ParseError& error) {
    const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                         dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    const auto why = unknown ? explain_unknown_word(app, argc, argv) : std::nullopt;
    tell("flashlatent: {} (try --help)\n", why.value_or(error.what()));
    return kWrongInput;
  }
  if (!action) {
    tell("flashlatent: a subcommand is required (try --help)\n");
    return kWrongInput;
  }
  keep_stdout_for_json(app);
  const int code = action();
  const Status written = finish_stdout();
  return written.ok() ? code : fail(written);
}

}  // namespace

int run_program(int argc, char** argv, std::span<const AddCommand> commands) {
  // If the reader of stdout goes away, the program ends without a message, even if a parent ignores SIGPIPE.
  std::signal(SIGPIPE, SIG_DFL);
  open_standard_streams();
  set_command_line(argc, argv);
  try {
    return run(argc, argv, commands);
  } catch (const std::bad_alloc&) {
    tell("flashlatent: out of memory\n");
  } catch (const std::exception& error) {
    tell("flashlatent: {}\n", error.what());
  }
  return kWrongInput;
}

}  // namespace flashlatent::tools
