# LibTorch from its Python wheel, or any other by TRIREME_TORCH_ROOT, through imported targets of our own:
# find_package(Torch) of a CUDA wheel needs nvcc even for a CPU build.
#   torch::cpu   what every module links: libtorch_cpu, libc10
#   torch::gpu   the GPU link variant: + libtorch_cuda, libc10_cuda (defined in TriremeCuda.cmake when CUDA is on)
set(_trireme_cache $ENV{XDG_CACHE_HOME})
if(NOT _trireme_cache)
  set(_trireme_cache $ENV{HOME}/.cache)
endif()
set(TRIREME_TORCH_ROOT "" CACHE PATH "Folder with LibTorch's include/ and lib/ (bootstrap.sh puts the wheel into the user's cache)")
if(NOT TRIREME_TORCH_ROOT)
  find_path(_torch_core ATen/core/Tensor.h
    HINTS $ENV{TRIREME_TORCH_ROOT}/include ${_trireme_cache}/trireme/python/torch/include NO_DEFAULT_PATH)
  if(NOT _torch_core)
    message(FATAL_ERROR "LibTorch was not found: run ./bootstrap.sh deps, or set TRIREME_TORCH_ROOT to the folder that holds its include/ and lib/")
  endif()
  get_filename_component(_root ${_torch_core} DIRECTORY)
  set(TRIREME_TORCH_ROOT ${_root} CACHE PATH "" FORCE)
endif()
get_filename_component(TRIREME_WHEEL_ROOT ${TRIREME_TORCH_ROOT} DIRECTORY)

if(EXISTS ${TRIREME_TORCH_ROOT}/version.py)
  file(STRINGS ${TRIREME_TORCH_ROOT}/version.py _version REGEX "^__version__")
  string(REGEX REPLACE ".*'(.*)'.*" "\\1" TRIREME_TORCH_VERSION "${_version}")
elseif(EXISTS ${TRIREME_TORCH_ROOT}/build-version)
  file(STRINGS ${TRIREME_TORCH_ROOT}/build-version TRIREME_TORCH_VERSION)
else()
  set(TRIREME_TORCH_VERSION unknown)
endif()

# CUDA's major version that a LibTorch of the wheels is made for (2.11.0+cu130), else empty.
set(TRIREME_TORCH_CUDA "")
if(TRIREME_TORCH_VERSION MATCHES "\\+cu([0-9]+)[0-9]$")
  set(TRIREME_TORCH_CUDA ${CMAKE_MATCH_1})
endif()

foreach(_lib c10 torch_cpu torch)
  add_library(torch::${_lib} SHARED IMPORTED)
  set_target_properties(torch::${_lib} PROPERTIES IMPORTED_LOCATION ${TRIREME_TORCH_ROOT}/lib/lib${_lib}.so)
endforeach()

# The OpenMP runtime that libtorch_cpu loads: the wheel brings its own, other builds of LibTorch take the compiler's.
if(EXISTS ${TRIREME_TORCH_ROOT}/lib/libgomp.so.1)
  add_library(torch::openmp SHARED IMPORTED)
  set_target_properties(torch::openmp PROPERTIES IMPORTED_LOCATION ${TRIREME_TORCH_ROOT}/lib/libgomp.so.1)
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  add_library(torch::openmp INTERFACE IMPORTED)
  target_link_libraries(torch::openmp INTERFACE ${OpenMP_CXX_LIBRARIES})
endif()

# libtorch_cpu of a CUDA wheel needs libcudart and libcupti even without a GPU; they come from the toolkit or from two small wheels.
set(TRIREME_TORCH_RPATH ${TRIREME_TORCH_ROOT}/lib)
set(_cuda12 "")
if("${TRIREME_TORCH_CUDA}" STREQUAL 12)  # a wheel for each of CUDA's libraries, where 13 has one for most of them
  file(GLOB _cuda12 ${TRIREME_WHEEL_ROOT}/nvidia/*/lib)
endif()
foreach(_dir ${_cuda12} ${TRIREME_WHEEL_ROOT}/nvidia/cu13/lib ${TRIREME_WHEEL_ROOT}/nvidia/cudnn/lib ${TRIREME_WHEEL_ROOT}/nvidia/nccl/lib
        /usr/local/cuda/lib64 ${TRIREME_WHEEL_ROOT}/nvidia/cusparselt/lib
        ${TRIREME_WHEEL_ROOT}/nvidia/nvshmem/lib)
  if(EXISTS ${_dir})
    list(APPEND TRIREME_TORCH_RPATH ${_dir})
  endif()
endforeach()
list(JOIN TRIREME_TORCH_RPATH ":" _rpath)

add_library(torch::cpu INTERFACE IMPORTED)
target_include_directories(torch::cpu SYSTEM INTERFACE
  ${TRIREME_TORCH_ROOT}/include ${TRIREME_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(torch::cpu INTERFACE torch::torch_cpu torch::c10)
# DT_RPATH (not RUNPATH) also serves the libraries of libraries.
target_link_options(torch::cpu INTERFACE -Wl,--disable-new-dtags -Wl,-rpath,${_rpath} -Wl,-rpath-link,${_rpath})
