# The program as its users run it: files in, tables and exit codes out.
if(TARGET flashlatent_cli)
  foreach(name tools_test tools_shapes_test tools_usage_test)
    flashlatent_test(${name} LIBS flashlatent_io nlohmann_json::nlohmann_json)
    add_dependencies(${name} flashlatent_cli)
    target_compile_definitions(${name} PRIVATE
      FLASHLATENT_SHARED_DIR="${FLASHLATENT_SHARED_DIR}" FLASHLATENT_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
      FLASHLATENT_PROGRAM="$<TARGET_FILE:flashlatent_cli>")
  endforeach()

  # The table of what `check` may see refused, without a device.
  flashlatent_test(check_refusals_test LIBS flashlatent_runtime ${FLASHLATENT_FMT}
    SOURCES check_refusals_test.cc
            ${PROJECT_SOURCE_DIR}/tools/check_cases.cc ${PROJECT_SOURCE_DIR}/tools/check_cases_fp8.cc
            ${PROJECT_SOURCE_DIR}/tools/check_cases_e4m3.cc ${PROJECT_SOURCE_DIR}/tools/check_cases_paged.cc ${PROJECT_SOURCE_DIR}/tools/check_cases_prefill.cc
            ${PROJECT_SOURCE_DIR}/tools/check_cases_random.cc ${PROJECT_SOURCE_DIR}/tools/check_cases_shards.cc
            ${PROJECT_SOURCE_DIR}/tools/check_cases_two_caches.cc
            ${PROJECT_SOURCE_DIR}/tools/check_refusals.cc)
  target_include_directories(check_refusals_test PRIVATE ${PROJECT_SOURCE_DIR})

  # What `tune` makes of times, without a device.
  flashlatent_test(tune_test LIBS flashlatent_io flashlatent_runtime ${FLASHLATENT_FMT} nlohmann_json::nlohmann_json
    SOURCES tune_test.cc ${PROJECT_SOURCE_DIR}/tools/bench_case.cc ${PROJECT_SOURCE_DIR}/tools/read_json.cc
            ${PROJECT_SOURCE_DIR}/tools/shape.cc ${PROJECT_SOURCE_DIR}/tools/tune_cases.cc ${PROJECT_SOURCE_DIR}/tools/tune_fit.cc)
  target_include_directories(tune_test PRIVATE ${PROJECT_SOURCE_DIR})
endif()
