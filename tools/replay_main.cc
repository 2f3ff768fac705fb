// The program with `replay` only, for scripts/run: it compiles in a fraction of the time.
#include "tools/program.h"

int main(int argc, char** argv) {
  constexpr flashlatent::tools::AddCommand kCommands[] = {flashlatent::tools::add_replay};
  return flashlatent::tools::run_program(argc, argv, kCommands);
}
