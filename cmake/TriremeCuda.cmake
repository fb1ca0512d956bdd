# CUDA and NCCL: AUTO takes them where nvcc is found. Sets TRIREME_WITH_CUDA (the CUDA parts are compiled) and TRIREME_GPU_VARIANT
# (the program's GPU variant and the tests of label gpu are linked: that also needs all that libtorch_cuda needs).
set(TRIREME_WITH_CUDA OFF)
set(TRIREME_GPU_VARIANT OFF)

# Of the devices of 2020, 2022 and 2024 (A100, H100, B200) those that this nvcc knows, the last one also as PTX for newer ones. A device
# finds code of its own generation only: an 8.6 takes that of 8.0, but no H100 runs it.
function(trireme_default_architectures NVCC RESULT)
  execute_process(COMMAND ${NVCC} --list-gpu-arch OUTPUT_VARIABLE _known ERROR_QUIET)
  set(_chosen "")
  foreach(_architecture 80 90 100)
    if("${_known}\n" MATCHES "compute_${_architecture}[\r\n]")
      list(APPEND _chosen ${_architecture}-real)
    endif()
  endforeach()
  if(NOT _chosen)
    set(_chosen 80-real)
  endif()
  list(POP_BACK _chosen _last)
  string(REPLACE "-real" "" _last ${_last})
  list(APPEND _chosen ${_last})
  set(${RESULT} "${_chosen}" PARENT_SCOPE)
endfunction()

if(NOT TRIREME_CUDA STREQUAL "OFF")
  find_program(TRIREME_NVCC nvcc PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)  # a loaded module's first, by PATH
  if(TRIREME_NVCC)
    set(CMAKE_CUDA_COMPILER ${TRIREME_NVCC})
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      trireme_default_architectures(${TRIREME_NVCC} CMAKE_CUDA_ARCHITECTURES)
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the static runtime would be a second one beside LibTorch's
    enable_language(CUDA)
    foreach(_kind STANDARD EXTENSION)  # CMake 3.25 does not know the word for it
      if(NOT CMAKE_CUDA20_${_kind}_COMPILE_OPTION)
        set(CMAKE_CUDA20_${_kind}_COMPILE_OPTION -std=c++20)
      endif()
    endforeach()
    set(CMAKE_CUDA_STANDARD 20)
    find_package(CUDAToolkit REQUIRED)
    # A device library of one CUDA beside a LibTorch of another one brings two run times into a process.
    string(REGEX REPLACE "\\..*" "" _nvcc_cuda ${CMAKE_CUDA_COMPILER_VERSION})
    set(_other_cuda "")
    if(TRIREME_TORCH_CUDA AND NOT TRIREME_TORCH_CUDA EQUAL _nvcc_cuda)
      set(_other_cuda "${TRIREME_NVCC} is of CUDA ${_nvcc_cuda}, LibTorch ${TRIREME_TORCH_VERSION} of CUDA ${TRIREME_TORCH_CUDA}: load a module with CUDA ${TRIREME_TORCH_CUDA}, or TRIREME_GPU=12 ./bootstrap.sh build for a LibTorch of CUDA 12")
    endif()
    # The wheel is only there when something was missing: then header and library come from it.
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${TRIREME_WHEEL_ROOT}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS})
    find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl
      HINTS ${TRIREME_WHEEL_ROOT}/nvidia/nccl/lib ${CUDAToolkit_LIBRARY_DIR} ENV LD_LIBRARY_PATH)
    if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY AND NOT _other_cuda)
      set(TRIREME_WITH_CUDA ON)
    endif()
  endif()
  if(_other_cuda AND TRIREME_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRIREME_CUDA=ON, but ${_other_cuda}")
  elseif(_other_cuda)
    message(STATUS "no CUDA: ${_other_cuda}")
  elseif(TRIREME_CUDA STREQUAL "ON" AND NOT TRIREME_WITH_CUDA)
    message(FATAL_ERROR "TRIREME_CUDA=ON, but nvcc (${TRIREME_NVCC}) or NCCL (${NCCL_LIBRARY}, ${NCCL_INCLUDE_DIR}) was not found: load a module with CUDA 13, or TRIREME_GPU=1 ./bootstrap.sh deps, which fetches NCCL")
  endif()
endif()

if(TRIREME_WITH_CUDA)
  add_library(trireme_nccl INTERFACE)
  target_include_directories(trireme_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(trireme_nccl INTERFACE ${NCCL_LIBRARY} CUDA::cudart)
  message(STATUS "CUDA architectures: ${CMAKE_CUDA_ARCHITECTURES} (CMAKE_CUDA_ARCHITECTURES)")
  # libtorch_cuda is linked with these, which a plain CUDA toolkit lacks: library, folder of the wheel, wheel.
  set(_missing "")
  if(_nvcc_cuda EQUAL 12)
    set(_libraries "libcudnn.so.9|cudnn|nvidia-cudnn-cu12==9.10.2.21" "libnccl.so.2|nccl|nvidia-nccl-cu12==2.27.5"
      "libcusparseLt.so.0|cusparselt|nvidia-cusparselt-cu12==0.7.1" "libnvshmem_host.so.3|nvshmem|nvidia-nvshmem-cu12==3.4.5"
      "libcufile.so.0|cufile|nvidia-cufile-cu12==1.13.1.3")
  else()
    set(_libraries "libcudnn.so.9|cudnn|nvidia-cudnn-cu13==9.19.0.56" "libnccl.so.2|nccl|nvidia-nccl-cu13==2.28.9"
      "libcusparseLt.so.0|cusparselt|nvidia-cusparselt-cu13==0.8.0" "libnvshmem_host.so.3|nvshmem|nvidia-nvshmem-cu13==3.4.5"
      "libcufile.so.0|cu13|nvidia-cufile==1.15.1.6")
  endif()
  foreach(_entry ${_libraries})
    string(REPLACE "|" ";" _entry "${_entry}")
    list(GET _entry 0 _name)
    list(GET _entry 1 _folder)
    list(GET _entry 2 _wheel)
    find_library(TRIREME_GPU_${_name} NAMES ${_name}
      HINTS ${TRIREME_WHEEL_ROOT}/nvidia/${_folder}/lib ${CUDAToolkit_LIBRARY_DIR} ENV LD_LIBRARY_PATH)
    mark_as_advanced(TRIREME_GPU_${_name})
    if(NOT TRIREME_GPU_${_name})
      list(APPEND _missing ${_wheel})
    endif()
  endforeach()
  if(NOT EXISTS ${TRIREME_TORCH_ROOT}/lib/libtorch_cuda.so)
    message(STATUS "no GPU variant of the program: ${TRIREME_TORCH_ROOT} is a LibTorch without CUDA")
  elseif(_missing)
    list(JOIN _missing " " _missing)
    message(STATUS "no GPU variant of the program: the wheels ${_missing} are missing (TRIREME_GPU=1 ./bootstrap.sh deps, or TRIREME_GPU=12, fetches them)")
  else()
    set(TRIREME_GPU_VARIANT ON)
    # libtorch_cuda registers its kernels at load time and no symbol of ours names it: keep it against --as-needed.
    foreach(_lib torch_cuda c10_cuda)
      add_library(torch::${_lib} SHARED IMPORTED)
      set_target_properties(torch::${_lib} PROPERTIES IMPORTED_LOCATION ${TRIREME_TORCH_ROOT}/lib/lib${_lib}.so)
    endforeach()
    add_library(torch::gpu INTERFACE IMPORTED)
    target_link_libraries(torch::gpu INTERFACE torch::cpu
      -Wl,--no-as-needed torch::torch_cuda torch::c10_cuda -Wl,--as-needed CUDA::cudart)
    target_link_options(torch::gpu INTERFACE -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR} -Wl,-rpath-link,${CUDAToolkit_LIBRARY_DIR})
  endif()
endif()
