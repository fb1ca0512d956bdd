# Language level, warnings, optimisation, cache and linker: what holds for every target of ours.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

# -g1 keeps line numbers in stack traces for 5 % of compile time (full -g costs 50 % on files that see ATen).
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Base folder and no hash of the build folder: a second clone of the sources is served from what the first one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
    CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM AND NOT CMAKE_CROSSCOMPILING)  # Debian's mold is one for this machine's compiler
  add_link_options(-fuse-ld=mold)
endif()

add_compile_definitions(OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -fno-math-errno -ffp-contract=off)
if(CCACHE_PROGRAM)
  add_compile_options(-fpch-preprocess)
endif()
if(TRIREME_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)  # takes the files of a unit for headers
endif()
if(TRIREME_WERROR)
  add_compile_options(-Werror)
endif()
if(TRIREME_ASSERTIONS)
  # Never _GLIBCXX_DEBUG: its containers differ from LibTorch's.
  add_compile_definitions(TRIREME_ASSERTIONS=1 _GLIBCXX_ASSERTIONS)
endif()
if(TRIREME_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()
if(TRIREME_TSAN)
  if(TRIREME_SANITIZE)
    message(FATAL_ERROR "TRIREME_TSAN and TRIREME_SANITIZE exclude each other")
  endif()
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
endif()
