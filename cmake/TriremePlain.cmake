# TRIREME_PLAIN_ONLY: `base`, the kernels without tensors and their unit tests that need neither MPI nor LibTorch. Needs of third
# parties only headers (fmt, spdlog) and GoogleTest's sources (Debian: googletest), so that a cross compiler is enough.
find_package(Threads REQUIRED)
function(trireme_header_library NAME HEADER)
  # This machine's include folder as a whole would hide the other processor's own headers: one link into it does not.
  find_path(TRIREME_HEADERS_${NAME} ${HEADER} PATHS /usr/include REQUIRED NO_CMAKE_FIND_ROOT_PATH)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/headers)
  file(CREATE_LINK ${TRIREME_HEADERS_${NAME}}/${NAME} ${PROJECT_BINARY_DIR}/headers/${NAME} SYMBOLIC)
  add_library(trireme_headers_${NAME} INTERFACE)
  target_include_directories(trireme_headers_${NAME} SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/headers)
  add_library(${NAME}::${NAME} ALIAS trireme_headers_${NAME})
endfunction()
trireme_header_library(fmt fmt/format.h)
target_compile_definitions(trireme_headers_fmt INTERFACE FMT_HEADER_ONLY)
trireme_header_library(spdlog spdlog/spdlog.h)
target_compile_definitions(trireme_headers_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(trireme_headers_spdlog INTERFACE fmt::fmt)

add_subdirectory(src/base)
add_subdirectory(src/kernels)
if(NOT TRIREME_TESTS)
  return()
endif()

set(TRIREME_GOOGLETEST /usr/src/googletest CACHE PATH "GoogleTest's sources")
set(INSTALL_GTEST OFF)
add_subdirectory(${TRIREME_GOOGLETEST} ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
foreach(_target gtest gmock gmock_main)
  target_compile_options(${_target} PRIVATE -w)
endforeach()
# Not command_test.cpp and files_test.cpp: what they look at is the machine's shell and file system, which an emulator hands through.
set(_tests base/isa_test.cpp base/layout_test.cpp base/log_test.cpp base/numbers_test.cpp base/philox_test.cpp base/samples_test.cpp
  base/text_test.cpp kernels/decode_plain_test.cpp kernels/isa_test.cpp kernels/log_sum_exp_test.cpp kernels/sampling_edges_test.cpp
  kernels/vector16_test.cpp)
list(TRANSFORM _tests PREPEND ${PROJECT_SOURCE_DIR}/tests/unit/)
add_executable(plain_unit ${_tests})
target_include_directories(plain_unit PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(plain_unit PRIVATE trireme_kernels_plain trireme_base gmock_main)
enable_testing()
add_test(NAME plain_unit COMMAND plain_unit)
