# `cmake --install` by components: `program` (program, decks, batch scripts, documents, a modulefile), `gpu` (trireme-gpu), `development` (static
# libraries, headers, CMake package) and `bundle`, the libraries of the program for machines without them, which is installed only by name.
# `cpack` makes a relocatable archive of `program` and `bundle`. docs/user/install.md describes all of them.
include(CMakePackageConfigHelpers)
set(_share share/trireme)
set(_package lib/cmake/Trireme)

# The program looks for libraries beside itself first, then where those of the build are; beside itself alone where it was bundled with them.
# Set here, since linker options of LibTorch's targets come before what INSTALL_RPATH names.
list(JOIN TRIREME_TORCH_RPATH ":" _torch_rpath)
string(CONFIGURE [[
  set(_bin "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
  foreach(_program trireme trireme-gpu)
    if(EXISTS "${_bin}/bin/${_program}")
      set(_rpath "\$ORIGIN/../lib/trireme")
      if(_program STREQUAL "trireme-gpu" OR NOT EXISTS "${_bin}/lib/trireme/libtorch_cpu.so")
        string(APPEND _rpath ":@_torch_rpath@")
      endif()
      file(RPATH_SET FILE "${_bin}/bin/${_program}" NEW_RPATH "${_rpath}")
    endif()
  endforeach()
]] _set_rpath @ONLY)
install(TARGETS trireme RUNTIME DESTINATION bin COMPONENT program)
install(CODE "${_set_rpath}" COMPONENT program)
if(TARGET trireme_gpu_program)  # not in the archive, which has not the libraries that it needs
  install(TARGETS trireme_gpu_program RUNTIME DESTINATION bin COMPONENT gpu)
  install(CODE "${_set_rpath}" COMPONENT gpu)
endif()
install(DIRECTORY inputs slurm pbs DESTINATION ${_share} COMPONENT program USE_SOURCE_PERMISSIONS
  PATTERN __pycache__ EXCLUDE)
install(DIRECTORY docs DESTINATION ${_share} COMPONENT program)
install(FILES README.md CHANGELOG.md LICENSE CITATION.cff DESTINATION ${_share} COMPONENT program)
configure_file(cmake/modulefile.in ${PROJECT_BINARY_DIR}/modulefile @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/modulefile DESTINATION share/modulefiles/trireme RENAME ${PROJECT_VERSION} COMPONENT program)

get_property(_modules GLOBAL PROPERTY trireme_modules)
# What the headers expect of every file of this build.
target_compile_features(trireme_base INTERFACE $<INSTALL_INTERFACE:cxx_std_20>)
target_compile_definitions(trireme_base INTERFACE $<INSTALL_INTERFACE:OMPI_SKIP_MPICXX> $<INSTALL_INTERFACE:MPICH_SKIP_MPICXX>)
if(TRIREME_ASSERTIONS)
  target_compile_definitions(trireme_base INTERFACE $<INSTALL_INTERFACE:TRIREME_ASSERTIONS=1> $<INSTALL_INTERFACE:_GLIBCXX_ASSERTIONS>)
endif()
install(TARGETS ${_modules} EXPORT TriremeTargets ARCHIVE DESTINATION lib/trireme COMPONENT development)
install(EXPORT TriremeTargets NAMESPACE trireme:: DESTINATION ${_package} COMPONENT development)
install(DIRECTORY include/trireme DESTINATION include COMPONENT development)
configure_package_config_file(cmake/TriremeConfig.cmake.in ${PROJECT_BINARY_DIR}/TriremeConfig.cmake INSTALL_DESTINATION ${_package}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TriremeConfig.cmake ${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake cmake/TriremeDependencies.cmake
  cmake/TriremeTorch.cmake cmake/TriremeCuda.cmake DESTINATION ${_package} COMPONENT development)

# All libraries that the program loads but the C and C++ run time (older ones cannot stand for newer ones) and MPI, which must be the launcher's.
set(_of_the_system "^ld-linux" "^lib(c|m|dl|pthread|rt|resolv|util|gcc_s|stdc\\\\+\\\\+)\\\\.so" "^lib(mpi|open-rte|open-pal|pmix|prrte|mpich|fabric|ucp)"
  "^lib(cuda|nvidia-ml)\\\\.so")
list(JOIN _of_the_system "\" \"" _of_the_system)
install(CODE "
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES \"$<TARGET_FILE:trireme>\" DIRECTORIES ${TRIREME_TORCH_RPATH}
    PRE_EXCLUDE_REGEXES \"${_of_the_system}\" RESOLVED_DEPENDENCIES_VAR _libraries UNRESOLVED_DEPENDENCIES_VAR _unresolved)
  if(_unresolved)
    message(FATAL_ERROR \"libraries of the program were not found: \${_unresolved}\")
  endif()
  file(INSTALL \${_libraries} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/trireme\" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN)
  include(\"${PROJECT_SOURCE_DIR}/cmake/BundleLicenses.cmake\")
  trireme_bundle_licenses(\"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/trireme/licenses\" \"${TRIREME_WHEEL_ROOT}\" \${_libraries})
  ${_set_rpath}"
  COMPONENT bundle EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME trireme)
set(CPACK_PACKAGE_FILE_NAME trireme-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENTS_ALL program bundle)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
