# The Python package's build: one static library inside the extension, CUDA code if there is a compiler for it.
set(BUILD_SHARED_LIBS OFF)
set(FLASHLATENT_BUILD_TOOLS OFF)
set(FLASHLATENT_BUILD_TESTS OFF)

if(NOT DEFINED FLASHLATENT_CUDA)
  find_program(FLASHLATENT_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(FLASHLATENT_NVCC)
    message(STATUS "flashlatent: CUDA and CPU backends, by ${FLASHLATENT_NVCC}; "
      "-C cmake.define.FLASHLATENT_CUDA=OFF leaves CUDA out")
    set(FLASHLATENT_CUDA ON)
    set(CMAKE_CUDA_COMPILER ${FLASHLATENT_NVCC})
  else()
    message(STATUS "flashlatent: the CPU backend only: nvcc is neither in PATH nor in /usr/local/cuda/bin")
    set(FLASHLATENT_CUDA OFF)
  endif()
endif()
