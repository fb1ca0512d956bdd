# Cross compiler for 64-bit ARM and its emulator, as Debian's packages g++-aarch64-linux-gnu and qemu-user(-static) install them:
#   cmake -S . -B build/aarch64 --toolchain cmake/toolchains/aarch64.cmake -DTRIREME_PLAIN_ONLY=ON
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
find_program(TRIREME_QEMU_AARCH64 NAMES qemu-aarch64-static qemu-aarch64)
if(TRIREME_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${TRIREME_QEMU_AARCH64} -L /usr/aarch64-linux-gnu)
endif()
