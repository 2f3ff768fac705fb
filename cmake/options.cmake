# What is built, and with which flags.
option(FLASHLATENT_CUDA "Build the CUDA backend (sm_90a)" OFF)
option(FLASHLATENT_BUILD_TOOLS "Build the command-line program" ${PROJECT_IS_TOP_LEVEL})
option(FLASHLATENT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(FLASHLATENT_INSTALL "Install the library, its headers and its CMake package" ${PROJECT_IS_TOP_LEVEL})
option(FLASHLATENT_BUILD_PYTHON "Build the Python package's extension (pip install . does)" OFF)
option(FLASHLATENT_FUZZ "Build the fuzz targets (clang)" OFF)
option(FLASHLATENT_DEVICE_CHECKS "Check indices and bound waits inside kernels; slow" OFF)
option(FLASHLATENT_STATIC_RUNTIME "Link programs so that they run on another machine" OFF)
# Not beside ccache, which takes such compilations for uncacheable, nor in a CPU build, whose commands clang-tidy reads.
find_program(FLASHLATENT_CCACHE ccache)
set(precompile OFF)
if(FLASHLATENT_CUDA AND NOT FLASHLATENT_CCACHE)
  set(precompile ON)
endif()
option(FLASHLATENT_PRECOMPILE "Precompile the standard headers of the library's C++ files" ${precompile})
set(FLASHLATENT_CUDA_ADVICE "configure with -DFLASHLATENT_CUDA=ON" CACHE INTERNAL
  "What a build without CUDA says to a caller who wants it")
set(FLASHLATENT_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(FLASHLATENT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FLASHLATENT_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${FLASHLATENT_CCACHE})
endif()

add_library(flashlatent_build_flags INTERFACE)
target_compile_options(flashlatent_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>)
# For files whose time does not matter, and that take longest to compile, for the headers of CLI11 and JSON: -O1 takes a
# fifth off.
add_library(flashlatent_cold_flags INTERFACE)
target_link_libraries(flashlatent_cold_flags INTERFACE flashlatent_build_flags)
target_compile_options(flashlatent_cold_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-O1>)
if(FLASHLATENT_SANITIZE)
  target_compile_options(flashlatent_build_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FLASHLATENT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(flashlatent_build_flags INTERFACE -fsanitize=${FLASHLATENT_SANITIZE})
endif()
if(FLASHLATENT_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  # Named outright: CMake 3.25 knows no option of nvcc 13 for C++20.
  string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")
  # A call of a host function on the device is but a warning, and leaves a kernel without code.
  string(APPEND CMAKE_CUDA_FLAGS " -diag-error 20011,20013,20014")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  include(cuda_toolkit)
  flashlatent_use_pip_toolkit()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()

if(FLASHLATENT_STATIC_RUNTIME)
  # A carried program finds no GoogleTest, fmt, hwy or new libstdc++ on the GPU machine. (Set after
  # CUDAToolkit was found, which insists on seeing the shared runtime.)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(BUILD_SHARED_LIBS OFF)
  target_link_options(flashlatent_build_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()

# Backtraces name lines; all else that -g writes takes up to a third of a file's time.
foreach(language CXX CUDA)
  string(REGEX REPLACE "-g( |$)" "-g1\\1" CMAKE_${language}_FLAGS_RELWITHDEBINFO "${CMAKE_${language}_FLAGS_RELWITHDEBINFO}")
endforeach()
