# The example against this build, and as an outside project against an installed copy.
add_executable(example_decode ${PROJECT_SOURCE_DIR}/examples/decode.cc)
target_link_libraries(example_decode PRIVATE flashlatent flashlatent_build_flags)
add_test(NAME example_decode COMMAND example_decode)

# README.md's program, which scripts/check_pages compares with the file.
add_executable(example_first_call ${PROJECT_SOURCE_DIR}/examples/first_call.cc)
target_link_libraries(example_first_call PRIVATE flashlatent flashlatent_build_flags)
add_test(NAME example_first_call COMMAND example_first_call)
set_tests_properties(example_first_call PROPERTIES PASS_REGULAR_EXPRESSION "lse 26\\.0829 and 24\\.9590")
if(FLASHLATENT_CUDA)
  add_executable(example_first_call_cuda ${PROJECT_SOURCE_DIR}/examples/first_call.cc)
  target_compile_definitions(example_first_call_cuda PRIVATE USE_CUDA)
  target_link_libraries(example_first_call_cuda PRIVATE flashlatent flashlatent_build_flags CUDA::cudart_static)
endif()

# A sanitized or carried library would need its flags in the outside project too.
if(NOT FLASHLATENT_SANITIZE AND NOT FLASHLATENT_STATIC_RUNTIME)
  add_test(NAME package COMMAND ${CMAKE_COMMAND}
    -D BUILD_DIR=${PROJECT_BINARY_DIR} -D SOURCE_DIR=${PROJECT_SOURCE_DIR}
    -D WORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/package -D CXX=${CMAKE_CXX_COMPILER}
    -D PROGRAM=$<TARGET_EXISTS:flashlatent_cli>
    -P ${CMAKE_CURRENT_SOURCE_DIR}/package_test.cmake)
  set_tests_properties(package PROPERTIES TIMEOUT 300)
endif()

add_test(NAME source_tree COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR}
  -D WORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/source_tree -P ${CMAKE_CURRENT_SOURCE_DIR}/source_tree_test.cmake)
