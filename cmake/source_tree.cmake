# Run at build time: writes the id of the git tree into OUTPUT, and touches it only when the id changes. A source
# distribution is no checkout: it has its id in .source_tree (scripts/wheels). A copy inside a checkout of something
# else does not take that one's id.
set(tree unknown)
execute_process(COMMAND git rev-parse --show-toplevel HEAD^{tree} WORKING_DIRECTORY "${SOURCE_DIR}"
  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
string(REPLACE "\n" ";" found "${found}")
list(LENGTH found count)
if(NOT failed AND count EQUAL 2)
  list(GET found 0 top)
  file(REAL_PATH "${SOURCE_DIR}" source)
  if(top STREQUAL source)
    list(GET found 1 tree)
    execute_process(COMMAND git status --porcelain WORKING_DIRECTORY "${SOURCE_DIR}"
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND tree "-dirty")
    endif()
  endif()
endif()
if(tree STREQUAL "unknown" AND EXISTS "${SOURCE_DIR}/.source_tree")
  file(STRINGS "${SOURCE_DIR}/.source_tree" tree LIMIT_COUNT 1)
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#include \"tools/source_tree.h\"

namespace flashlatent::tools {

const char* source_tree() { return \"${tree}\"; }

}  // namespace flashlatent::tools
")
