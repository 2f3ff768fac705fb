# The program as its users run it: files in, tables and exit codes out.
if(TARGET flashlatent_cli)
  foreach(name tools_test tools_usage_test)
    flashlatent_test(${name} LIBS flashlatent_io nlohmann_json::nlohmann_json)
    add_dependencies(${name} flashlatent_cli)
    target_compile_definitions(${name} PRIVATE
      FLASHLATENT_SHARED_DIR="${FLASHLATENT_SHARED_DIR}" FLASHLATENT_PROGRAM="$<TARGET_FILE:flashlatent_cli>")
  endforeach()
endif()
