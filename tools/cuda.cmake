# SPDX-License-Identifier: Apache-2.0
# libprezero_cuda.so: the kernels for NVIDIA GPUs and the backend that runs them. The library and the command line do not
# link it; src/backend/cuda_module.c loads it when a GPU is asked for, so one build serves machines with and without.
if(NOT PZ_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "PZ_CUDA is ${PZ_CUDA}: must be AUTO, ON or OFF")
endif()
set(PZ_HAVE_CUDA OFF)
if(PZ_CUDA STREQUAL "AUTO" AND (PZ_SANITIZE OR PZ_COVERAGE OR PZ_FUZZ OR NOT CMAKE_C_COMPILER_ID STREQUAL "GNU"))
  return() # the kernels' host side is built by gcc alone and without instrumentation
endif()
if(PZ_CUDA STREQUAL "OFF")
  return()
endif()

# nvcc of the system, or the one that `tools/deps.sh cuda` fetched.
find_program(PZ_NVCC nvcc PATHS /usr/local/cuda/bin "$ENV{HOME}/.cache/prezero/cuda/bin" NO_DEFAULT_PATH)
find_program(PZ_NVCC nvcc)
if(NOT PZ_NVCC)
  if(PZ_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PZ_CUDA is ON, but there is no nvcc; tools/deps.sh cuda fetches one")
  endif()
  message(STATUS "no nvcc: built without GPU support")
  return()
endif()
foreach(arch IN LISTS PZ_CUDA_ARCHITECTURES)
  if(NOT arch MATCHES "^([89][0-9]|1[0-9][0-9])[af]?$")
    message(FATAL_ERROR "PZ_CUDA_ARCHITECTURES has ${arch}: must be 80 or more, such as 80, 89 or 90a")
  endif()
endforeach()

set(CMAKE_CUDA_COMPILER ${PZ_NVCC})
set(CMAKE_CUDA_ARCHITECTURES 80) # for CMake's own checks; ours are below
enable_language(CXX)
enable_language(CUDA)
set(PZ_HAVE_CUDA ON)

# ---- flags ----
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo")
set(PZ_CUDA_FLAGS "$<$<BOOL:${PZ_WERROR}>:--Werror=all-warnings>" -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-rtti)
foreach(arch IN LISTS PZ_CUDA_ARCHITECTURES)
  list(APPEND PZ_CUDA_FLAGS -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
list(JOIN PZ_CUDA_ARCHITECTURES "," PZ_CUDA_ARCH_TEXT)

# ---- the module ----
file(GLOB_RECURSE PZ_CUDA_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.c src/backend/cuda/*.cu)
add_library(prezero_cuda MODULE ${PZ_CUDA_SOURCES})
set(PZ_CUDA_EXPORTS ${PROJECT_SOURCE_DIR}/src/backend/cuda/exports.map)
set_target_properties(prezero_cuda PROPERTIES CUDA_ARCHITECTURES OFF CUDA_RUNTIME_LIBRARY Static
  CUDA_VISIBILITY_PRESET hidden LINKER_LANGUAGE C LINK_DEPENDS ${PZ_CUDA_EXPORTS} INSTALL_RPATH_USE_LINK_PATH ON)
target_compile_options(prezero_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${PZ_CUDA_FLAGS}>")
target_compile_definitions(prezero_cuda PRIVATE PZ_CUDA_ARCHITECTURES="${PZ_CUDA_ARCH_TEXT}")
target_include_directories(prezero_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_link_libraries(prezero_cuda PRIVATE prezero_static)
target_link_options(prezero_cuda PRIVATE -Wl,--no-undefined -Wl,--as-needed -Wl,--version-script=${PZ_CUDA_EXPORTS} -Wl,-z,nodelete)
find_path(PZ_CUBLASLT_INCLUDE cublasLt.h PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} NO_DEFAULT_PATH)
find_library(PZ_CUBLASLT cublasLt PATHS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} NO_DEFAULT_PATH)
if(PZ_CUBLASLT_INCLUDE AND PZ_CUBLASLT)
  target_compile_definitions(prezero_cuda PRIVATE PZ_HAVE_CUBLASLT=1)
  target_link_libraries(prezero_cuda PRIVATE ${PZ_CUBLASLT})
endif()
find_path(PZ_NVTX_INCLUDE nvtx3/nvToolsExt.h PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} NO_DEFAULT_PATH)
if(PZ_NVTX_INCLUDE)
  target_compile_definitions(prezero_cuda PRIVATE PZ_HAVE_NVTX=1)
endif()
install(TARGETS prezero_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
message(STATUS "GPU support: ${PZ_NVCC}, architectures ${PZ_CUDA_ARCH_TEXT}, cuBLASLt: ${PZ_CUBLASLT}")
