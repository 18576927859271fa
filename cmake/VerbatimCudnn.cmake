# Sets VERBATIM_HAS_CUDNN and, with it, the target verbatim::cudnn: headers only, the library is
# opened at run time. `verbatim bench` times it beside ours; nothing else uses it.
include_guard()

set(VERBATIM_HAS_CUDNN OFF)
if(VERBATIM_HAS_CUDA)
  find_path(frontend cudnn_frontend.h NO_CACHE)
  find_path(cudnn cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
  if(NOT frontend)
    message(STATUS "cuDNN as a peer: no cudnn_frontend.h in CMAKE_INCLUDE_PATH")
  elseif(NOT cudnn)
    message(STATUS "cuDNN as a peer: no cudnn.h in CMAKE_INCLUDE_PATH")
  else()
    set(VERBATIM_HAS_CUDNN ON)
    add_library(verbatim_cudnn INTERFACE)
    add_library(verbatim::cudnn ALIAS verbatim_cudnn)
    target_include_directories(verbatim_cudnn SYSTEM INTERFACE ${frontend} ${cudnn})
    target_compile_definitions(verbatim_cudnn INTERFACE
      NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING CUDNN_FRONTEND_SKIP_JSON_LIB)
    target_link_libraries(verbatim_cudnn INTERFACE CUDA::toolkit ${CMAKE_DL_LIBS})
    message(STATUS "cuDNN as a peer: ${frontend}, ${cudnn}")
  endif()
endif()
