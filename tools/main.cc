// The command-line program.
#include "tools/program.h"

int main(int argc, char** argv) {
  namespace tools = flashlatent::tools;
  constexpr tools::AddCommand kCommands[] = {
      tools::add_info,      tools::add_decode,          tools::add_check, tools::add_bench,
      tools::add_plan,      tools::add_costs,           tools::add_tune,  tools::add_replay,
      tools::add_make_case, tools::add_make_index_case,
  };
  return tools::run_program(argc, argv, kCommands);
}
