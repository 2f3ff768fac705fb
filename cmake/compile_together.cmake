# Sources compiled as one: for CUDA's headers nvcc takes 2 to 3 s a file, longer than for many kernels.

# Adds a generated NAME to the target, which includes the sources. Paths are relative to the current folder.
function(flashlatent_compile_together target name)
  set(includes "")
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src)
    string(APPEND includes "#include \"${source}\"\n")
  endforeach()
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name})
  file(CONFIGURE OUTPUT ${file} CONTENT "${includes}" @ONLY)  # leaves a file of the same text as it is
  target_sources(${target} PRIVATE ${file})
endfunction()
