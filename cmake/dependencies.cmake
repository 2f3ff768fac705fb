# Libraries come from the distribution first and by FetchContent elsewhere.
include(FetchContent)

# flashlatent_dependency(<package> <target> <git url> <tag>): afterwards <target> exists.
macro(flashlatent_dependency package target url tag)
  find_package(${package} QUIET)
  if(NOT TARGET ${target})
    message(STATUS "${package} is not installed: fetching ${tag} from ${url}")
    FetchContent_Declare(${package} GIT_REPOSITORY ${url} GIT_TAG ${tag} GIT_SHALLOW ON)
    FetchContent_MakeAvailable(${package})
    if(NOT TARGET ${target})  # Highway names its target so only where it is installed
      add_library(${target} ALIAS ${package})
    endif()
  endif()
endmacro()

# Fetched libraries: no tests, and install.cmake installs what is needed.
foreach(option HWY_ENABLE_TESTS HWY_ENABLE_EXAMPLES HWY_ENABLE_CONTRIB HWY_ENABLE_INSTALL FMT_INSTALL INSTALL_GTEST)
  set(${option} OFF CACHE BOOL "")
endforeach()
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(PkgConfig QUIET)
flashlatent_dependency(hwy hwy::hwy https://github.com/google/highway 1.2.0)
if(FLASHLATENT_STATIC_RUNTIME)
  # Distributions have Highway as a shared library only: it travels beside the programs, in lib/.
  get_target_property(hwy_type hwy::hwy TYPE)
  if(hwy_type STREQUAL "SHARED_LIBRARY")
    get_target_property(hwy_file hwy::hwy LOCATION)
    file(REAL_PATH ${hwy_file} hwy_file)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
    file(COPY_FILE ${hwy_file} ${CMAKE_BINARY_DIR}/lib/libhwy.so.1 ONLY_IF_DIFFERENT)
    set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
  endif()
endif()
if(FLASHLATENT_BUILD_TOOLS OR FLASHLATENT_BUILD_TESTS)
  flashlatent_dependency(fmt fmt::fmt https://github.com/fmtlib/fmt 10.2.1)
  # Distributions have fmt as a shared library only, which a carried program would not find.
  set(FLASHLATENT_FMT $<IF:$<BOOL:${FLASHLATENT_STATIC_RUNTIME}>,fmt::fmt-header-only,fmt::fmt>)
  flashlatent_dependency(nlohmann_json nlohmann_json::nlohmann_json https://github.com/nlohmann/json v3.11.3)
  flashlatent_dependency(CLI11 CLI11::CLI11 https://github.com/CLIUtils/CLI11 v2.4.2)
endif()
if(FLASHLATENT_BUILD_TESTS)
  flashlatent_dependency(GTest GTest::gtest_main https://github.com/google/googletest v1.14.0)
endif()
