# The program as its users run it: files in, tables and exit codes out.
if(TARGET flashlatent_cli)
  flashlatent_test(tools_test LIBS flashlatent_io nlohmann_json::nlohmann_json)
  add_dependencies(tools_test flashlatent_cli)
  target_compile_definitions(tools_test PRIVATE
    FLASHLATENT_SHARED_DIR="${FLASHLATENT_SHARED_DIR}" FLASHLATENT_PROGRAM="$<TARGET_FILE:flashlatent_cli>")
endif()
