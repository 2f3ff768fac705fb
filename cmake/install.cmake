# cmake --install: the library, its headers, the program, and a package for find_package(flashlatent).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(FLASHLATENT_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/flashlatent)

install(TARGETS flashlatent EXPORT flashlatentTargets)
install(DIRECTORY include/flashlatent TYPE INCLUDE)
install(FILES LICENSE README.md TYPE DOC)
install(EXPORT flashlatentTargets NAMESPACE flashlatent:: DESTINATION ${FLASHLATENT_PACKAGE_DIR})
if(TARGET flashlatent_cli)
  set_target_properties(flashlatent_cli PROPERTIES INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
  install(TARGETS flashlatent_cli)
endif()

# A static library leaves its own libraries to the program that links it; Highway comes along if it was fetched.
get_target_property(FLASHLATENT_LIBRARY_TYPE flashlatent TYPE)
set(FLASHLATENT_NEEDS_HWY ON)
get_target_property(fetched_hwy hwy::hwy ALIASED_TARGET)
if(fetched_hwy)
  install(TARGETS ${fetched_hwy} EXPORT flashlatentTargets)
  set(FLASHLATENT_NEEDS_HWY OFF)
endif()
configure_package_config_file(cmake/flashlatentConfig.cmake.in flashlatentConfig.cmake
  INSTALL_DESTINATION ${FLASHLATENT_PACKAGE_DIR})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(flashlatentConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashlatentConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/flashlatentConfigVersion.cmake
        DESTINATION ${FLASHLATENT_PACKAGE_DIR})
