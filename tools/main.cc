// The command-line program.
#include <fmt/core.h>

#include <csignal>
#include <exception>
#include <new>

#include "flashlatent/version.h"
#include "tools/command.h"
#include "tools/unknown_word.h"

namespace {

constexpr void (*kCommands[])(CLI::App&, flashlatent::tools::Action&) = {
    flashlatent::tools::add_info,      flashlatent::tools::add_decode,
    flashlatent::tools::add_check,     flashlatent::tools::add_bench,
    flashlatent::tools::add_plan,      flashlatent::tools::add_replay,
    flashlatent::tools::add_make_case, flashlatent::tools::add_make_index_case,
};

int run(int argc, char** argv) {
  CLI::App app{
      "Decode attention for latent (MLA) and paged KV caches.\n"
      "Results go to stdout, progress and errors to stderr.\n"
      "Exit codes: 0 right, 1 wrong result, 2 wrong usage or input."};
  app.name("flashlatent");
  app.set_version_flag("--version", FLASHLATENT_VERSION);
  app.require_subcommand(0, 1);  // 0, so that an unknown subcommand gets a message of its own
  app.get_formatter()->column_width(34);
  flashlatent::tools::Action action;
  for (auto* add : kCommands) add(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    const int code = app.exit(success);
    const flashlatent::Status written = flashlatent::tools::finish_stdout();
    return written.ok() ? code : flashlatent::tools::fail(written);
  } catch (const CLI::ParseError& error) {
    const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                         dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    const auto why = unknown ? flashlatent::tools::explain_unknown_word(app, argc, argv) : std::nullopt;
    flashlatent::tools::tell("flashlatent: {} (try --help)\n", why.value_or(error.what()));
    return flashlatent::tools::kWrongInput;
  }
  if (!action) {
    flashlatent::tools::tell("flashlatent: a subcommand is required (try --help)\n");
    return flashlatent::tools::kWrongInput;
  }
  flashlatent::tools::keep_stdout_for_json(app);
  const int code = action();
  const flashlatent::Status written = flashlatent::tools::finish_stdout();
  return written.ok() ? code : flashlatent::tools::fail(written);
}

}  // namespace

int main(int argc, char** argv) {
  // If the reader of stdout goes away, the program ends without a message, even if a parent ignores SIGPIPE.
  std::signal(SIGPIPE, SIG_DFL);
  flashlatent::tools::open_standard_streams();
  flashlatent::tools::set_command_line(argc, argv);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    flashlatent::tools::tell("flashlatent: out of memory\n");
  } catch (const std::exception& error) {
    flashlatent::tools::tell("flashlatent: {}\n", error.what());
  }
  return flashlatent::tools::kWrongInput;
}
