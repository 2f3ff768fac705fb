# Run at build time: writes the id of the git tree into OUTPUT, and touches it only when the id changes.
execute_process(COMMAND git rev-parse HEAD^{tree} WORKING_DIRECTORY ${SOURCE_DIR}
  OUTPUT_VARIABLE tree OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(tree unknown)
else()
  execute_process(COMMAND git status --porcelain WORKING_DIRECTORY ${SOURCE_DIR}
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND tree "-dirty")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#include \"tools/source_tree.h\"

namespace flashlatent::tools {

const char* source_tree() { return \"${tree}\"; }

}  // namespace flashlatent::tools
")
