# GPU backends. Sets LONGNET_HAS_CUDA, LONGNET_HAS_CUDNN, LONGNET_HAS_CUBLASLT and LONGNET_HAS_NCCL.
#
# nvcc is looked for on the PATH and in /usr/local/cuda. The programs link the CUDA runtime statically
# and open the driver, cuDNN, cuBLASLt, NCCL and NVML when they are needed: they start on machines without any.
set(LONGNET_HAS_CUDA OFF)
set(LONGNET_HAS_CUDNN OFF)
set(LONGNET_HAS_CUBLASLT OFF)
set(LONGNET_HAS_NCCL OFF)
if(LONGNET_CUDA STREQUAL "OFF")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  find_program(LONGNET_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
  if(LONGNET_NVCC)
    set(CMAKE_CUDA_COMPILER ${LONGNET_NVCC})
  endif()
endif()
# Leaves this file: AUTO does without, ON does not.
macro(longnet_without_cuda reason)
  if(LONGNET_CUDA STREQUAL "AUTO")
    message(STATUS "GPU backends: off, ${reason}")
    return()
  endif()
  message(FATAL_ERROR "LONGNET_CUDA=ON, but ${reason}")
endmacro()
if(NOT CMAKE_CUDA_COMPILER)
  longnet_without_cuda("nvcc was not found: set CMAKE_CUDA_COMPILER or CUDA_HOME")
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Machine code for 8.0 and 9.0, and PTX for what comes later and for tests. All from the one PTX: that of compute_90
  # has the same instructions, and the compiler's longest step would be taken twice.
  set(CMAKE_CUDA_ARCHITECTURES 80)
  set(LONGNET_CUDA_ALSO_FOR "--generate-code=arch=compute_80,code=[sm_90]")
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc takes it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)
if(CUDAToolkit_VERSION VERSION_LESS 12.5)  # driver entry points by version
  longnet_without_cuda("CUDA ${CUDAToolkit_VERSION} is older than 12.5")
endif()
set(LONGNET_HAS_CUDA ON)

# Headers alone: the libraries are opened at run time. Python's wheels bring them as well.
foreach(header cudnn cublasLt nccl)
  string(TOUPPER ${header} library)
  find_path(LONGNET_${library}_INCLUDE ${header}.h HINTS $ENV{${library}_HOME}/include
            ${CUDAToolkit_INCLUDE_DIRS})
  if(LONGNET_${library}_INCLUDE)
    set(LONGNET_HAS_${library} ON)
  endif()
endforeach()
message(STATUS "GPU backends: CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES} ${LONGNET_CUDA_ALSO_FOR}, "
               "cuDNN ${LONGNET_HAS_CUDNN}, cuBLASLt ${LONGNET_HAS_CUBLASLT}, NCCL ${LONGNET_HAS_NCCL}")
