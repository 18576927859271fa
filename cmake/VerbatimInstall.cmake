# `cmake --install`: the tool, and the C library that find_package(verbatim) finds as verbatim::c.
include_guard()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/verbatim)
install(TARGETS verbatim_c EXPORT verbatim LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/verbatim/c.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/verbatim)
install(EXPORT verbatim NAMESPACE verbatim:: FILE verbatimConfig.cmake DESTINATION ${package})
write_basic_package_version_file(verbatimConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/verbatimConfigVersion.cmake DESTINATION ${package})
if(VERBATIM_TESTS)
  install(TARGETS verbatim_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TARGET verbatim_mpi)  # the tool looks beside itself
    install(TARGETS verbatim_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endif()
