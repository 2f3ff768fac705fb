# Installation: see cmake/flashlatentConfig.cmake.in
