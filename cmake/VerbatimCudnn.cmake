# Sets VERBATIM_HAS_CUDNN and, with it, the target verbatim::cudnn: headers only, the library is
# opened at run time. `verbatim bench` times it beside ours; nothing else uses it.
include_guard()

set(VERBATIM_HAS_CUDNN OFF)
if(VERBATIM_HAS_CUDA)
  find_path(VERBATIM_CUDNN_FRONTEND_HEADERS cudnn_frontend.h HINTS ${VERBATIM_CUDNN_FRONTEND_DIR})
  find_path(VERBATIM_CUDNN_HEADERS cudnn.h
    HINTS ${VERBATIM_CUDNN_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(VERBATIM_CUDNN_FRONTEND_HEADERS VERBATIM_CUDNN_HEADERS)
  if(NOT VERBATIM_CUDNN_FRONTEND_HEADERS)
    message(STATUS "cuDNN as a peer: no cudnn_frontend.h (set VERBATIM_CUDNN_FRONTEND_DIR)")
  elseif(NOT VERBATIM_CUDNN_HEADERS)
    message(STATUS "cuDNN as a peer: no cudnn.h (set VERBATIM_CUDNN_DIR)")
  else()
    set(VERBATIM_HAS_CUDNN ON)
    add_library(verbatim_cudnn INTERFACE)
    add_library(verbatim::cudnn ALIAS verbatim_cudnn)
    target_include_directories(verbatim_cudnn SYSTEM INTERFACE
      ${VERBATIM_CUDNN_FRONTEND_HEADERS} ${VERBATIM_CUDNN_HEADERS})
    target_compile_definitions(verbatim_cudnn INTERFACE
      NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING CUDNN_FRONTEND_SKIP_JSON_LIB)
    target_link_libraries(verbatim_cudnn INTERFACE CUDA::toolkit ${CMAKE_DL_LIBS})
    message(STATUS "cuDNN as a peer: ${VERBATIM_CUDNN_FRONTEND_HEADERS}, ${VERBATIM_CUDNN_HEADERS}")
  endif()
endif()
