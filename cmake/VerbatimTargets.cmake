include_guard()

# Seconds that a test may take; under a thread sanitizer the longest need more than ten minutes.
set(VERBATIM_TEST_TIMEOUT 600)
if(VERBATIM_SANITIZE)
  set(VERBATIM_TEST_TIMEOUT 3600)
endif()

# One library per folder of src/. Bits must not depend on flags: no contraction, no fast math.
# TEXT: sources that read and write text, which takes no time beside compiling them.
function(verbatim_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;TEXT;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES} ${ARG_TEXT})
  if(ARG_TEXT)
    set_source_files_properties(${ARG_TEXT} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
  endif()
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  verbatim_flags(${name})
endfunction()

function(verbatim_flags name)
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -ffp-contract=off -fvisibility=hidden>
    # g++ 12 sees overlaps in std::string that are not there (GCC bug 105651).
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
  if(VERBATIM_SANITIZE)
    # An enum of a C caller may hold any int: what is none of them is refused.
    target_compile_options(${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${VERBATIM_SANITIZE} -fno-sanitize=enum
                                -fno-omit-frame-pointer>)
    target_link_options(${name} PRIVATE -fsanitize=${VERBATIM_SANITIZE})
  else()  # what is built on one Linux machine runs on another
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# TEMPLATE becomes generated/HEADER, with the text of each file in place of @TEXT_NAME@: NAME.json in
# capitals, with underscores for hyphens.
function(verbatim_embed template header)
  foreach(file ${ARGN})
    cmake_path(GET file STEM name)
    string(TOUPPER ${name} name)
    string(REPLACE "-" "_" name ${name})
    file(READ ${file} TEXT_${name})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  configure_file(${template} generated/${header} @ONLY)
endfunction()

# For code that takes no time itself, beside what other libraries do: it compiles in two thirds.
function(verbatim_compile_fast name)
  target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

# One GoogleTest executable, each of its tests a ctest test with the label `fast` or LABEL; with
# `slow` those of SLOW (names as --gtest_filter takes them), which need about five seconds or more.
function(verbatim_test name)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;LIBS;SLOW" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  verbatim_flags(${name})
  verbatim_compile_fast(${name})
  string(JOIN ":" slow ${ARG_SLOW})
  verbatim_discover(${name} ${ARG_LABEL} "*-${slow}")
  if(slow)
    verbatim_discover(${name} slow "${slow}")
  endif()
endfunction()

function(verbatim_discover name label filter)
  include(GoogleTest)
  gtest_discover_tests(${name} ${ARGN} DISCOVERY_TIMEOUT 60 TEST_FILTER "${filter}"
                       PROPERTIES TIMEOUT ${VERBATIM_TEST_TIMEOUT} LABELS ${label})
endfunction()
