# A CUDA toolkit from pip packages (site-packages/nvidia/cu13): its libraries are in lib, where nvcc looks in lib64, and
# libcudart.so has a version at its end, which FindCUDAToolkit does not expect.

# What a build misses in the toolkit at `root`; empty if nothing.
function(flashlatent_missing_in_toolkit root result)
  set(missing "")
  foreach(file bin/nvcc include/cuda_runtime_api.h lib/libcudart_static.a)
    if(NOT EXISTS ${root}/${file})
      list(APPEND missing ${file})
    endif()
  endforeach()
  set(${result} "${missing}" PARENT_SCOPE)
endfunction()

# Before enable_language(CUDA).
macro(flashlatent_use_pip_toolkit)
  find_program(FLASHLATENT_NVCC NAMES ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX} nvcc
    HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(FLASHLATENT_NVCC)
    file(REAL_PATH ${FLASHLATENT_NVCC} nvcc)
    cmake_path(GET nvcc PARENT_PATH toolkit)
    cmake_path(GET toolkit PARENT_PATH toolkit)
    flashlatent_missing_in_toolkit(${toolkit} missing)
    if(missing STREQUAL "" AND NOT EXISTS ${toolkit}/lib64)
      string(APPEND CMAKE_CUDA_FLAGS " -L${toolkit}/lib")
      file(GLOB cudart ${toolkit}/lib/libcudart.so*)
      if(cudart)
        list(GET cudart 0 cudart)
        set(CUDA_CUDART ${cudart} CACHE FILEPATH "The shared CUDA runtime, which FindCUDAToolkit looks for")
      endif()
    endif()
  endif()
endmacro()
