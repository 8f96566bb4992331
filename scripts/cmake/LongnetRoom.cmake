# longnet_room(NAME [HOT|COLD] [ROWS] [DEPS rooms...] [LIBS libraries...] [EXCLUDE files...]
#              [SEPARATE regexes...] [DEVICE regexes...])
# One room of src/: every *.cpp of its folder and below becomes the library
# longnet_NAME, every *_test.cpp one test program NAME_tests, and the sources in testing/ the library
# longnet_NAME_testing, for tests and bench. The link graph is the layering.
# Libraries and tests are compiled sixteen files at a time: most of the time goes into the same headers. Files that match
# SEPARATE are compiled alone: their unnamed namespaces hold the same names, they include themselves, they hold inner
# loops, or programs have emulated ones in their place. Files that match DEVICE call a device; they are compiled together,
# and programs without one leave this object in the library. HOT: what is timed, or computes for long, is here; such a
# library is optimised under the sanitizers, too. COLD: reads, writes and arranges; the compiler's best takes longer than it
# ever saves. ROWS: holds rows of bytes, by pointers.
add_library(longnet_options INTERFACE)
target_compile_options(longnet_options INTERFACE
                       $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # In unity builds, types of an unnamed namespace are not in the file that is compiled, but in one it includes.
  target_compile_options(longnet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 warns of overlaps in std::string's operator+ that cannot be (GCC bug 105329).
    target_compile_options(longnet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
else()
  # Clang wants two pairs of braces around the elements of a std::array.
  target_compile_options(longnet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-braces>)
endif()
# Errors name "src/io/x.cpp:17" wherever the source tree stands.
target_compile_options(longnet_options INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(LONGNET_WERROR)
  target_compile_options(longnet_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LONGNET_SANITIZE)
  # Null pointers and accesses beyond an object stop at the address sanitizer; looking twice takes long.
  target_compile_options(longnet_options INTERFACE -fsanitize=${LONGNET_SANITIZE}
                         -fno-sanitize=null,object-size -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # Casts and arithmetic of pointers are for code that holds rows of bytes; elsewhere they are a third of the build.
  target_compile_options(longnet_options INTERFACE
                         $<$<NOT:$<BOOL:$<TARGET_PROPERTY:LONGNET_ROWS>>>:-fno-sanitize=alignment,pointer-overflow>)
  target_link_options(longnet_options INTERFACE -fsanitize=${LONGNET_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND LONGNET_SANITIZE MATCHES "address")
    # No second stack, on which locals would outlive their function to catch pointers to them.
    target_compile_options(longnet_options INTERFACE -fsanitize-address-use-after-return=never)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND LONGNET_SANITIZE MATCHES "thread")
    # The runtime as a shared library: the static one does not let tests that count allocations define operator new.
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-runtime-dir OUTPUT_VARIABLE CMAKE_BUILD_RPATH
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    target_link_options(longnet_options INTERFACE -shared-libsan)
  endif()
  # Tests that are trimmed or left out ask for these; compilers have no macro in common.
  foreach(sanitizer address thread)
    if(LONGNET_SANITIZE MATCHES ${sanitizer})
      string(TOUPPER ${sanitizer} sanitizer)
      target_compile_definitions(longnet_options INTERFACE LONGNET_${sanitizer}_SANITIZER)
    endif()
  endforeach()
endif()
target_include_directories(longnet_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(longnet_options INTERFACE Threads::Threads)

# longnet_test_options(TARGET LEVEL): tests run for seconds and take minutes to compile. A failure names its line by itself.
# GoogleTest's headers, and those that most tests include, are compiled once for all tests of a level of optimisation.
function(longnet_test_options target level)
  set(headers longnet_test_headers)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    string(APPEND headers ${level})
  endif()
  if(NOT TARGET ${headers})
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/empty.cpp CONTENT "")
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/empty.cpp)
    # Compiled as executables are: an object library would get -fPIC.
    set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_link_libraries(${headers} PRIVATE longnet_options GTest::gmock)
    target_compile_options(${headers} PRIVATE -fPIE $<$<CONFIG:Release>:${level}> $<$<CONFIG:Sanitizer>:-g0>)
    target_precompile_headers(${headers} PRIVATE <algorithm> <functional> <map> <memory> <optional> <ranges> <span>
                              <sstream> <string> <variant> <vector> <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${level}> $<$<CONFIG:Sanitizer>:-g0>)
endfunction()

function(longnet_room name)
  cmake_parse_arguments(ARG "HOT;COLD;ROWS" "" "DEPS;LIBS;EXCLUDE;SEPARATE;DEVICE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${excluded})
  endforeach()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  set(testing ${sources})
  list(FILTER sources EXCLUDE REGEX "/testing/[^/]+$")
  list(FILTER testing INCLUDE REGEX "/testing/[^/]+$")
  list(TRANSFORM ARG_DEPS PREPEND longnet_)
  foreach(list sources tests)  # a file without a group is compiled alone
    set(together ${${list}})
    foreach(regex IN LISTS ARG_SEPARATE ARG_DEVICE)
      list(FILTER together EXCLUDE REGEX "/${regex}$")
    endforeach()
    set(place 0)
    foreach(source IN LISTS together)
      math(EXPR group "${place} / 16")
      math(EXPR place "${place} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endforeach()
  endforeach()
  foreach(regex IN LISTS ARG_DEVICE)
    set(device ${sources})
    list(FILTER device INCLUDE REGEX "/${regex}$")
    set_source_files_properties(${device} PROPERTIES UNITY_GROUP device)
  endforeach()

  add_library(longnet_${name} STATIC ${sources})
  set_target_properties(longnet_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP LONGNET_ROWS ${ARG_ROWS})
  target_link_libraries(longnet_${name} PUBLIC longnet_options ${ARG_DEPS} PRIVATE ${ARG_LIBS})
  if(ARG_HOT)
    target_compile_options(longnet_${name} PRIVATE $<$<CONFIG:Sanitizer>:-O1>)
    set(tests_optimised -O1)
  else()
    if(ARG_COLD)
      target_compile_options(longnet_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    set(tests_optimised -O0)
  endif()

  if(testing)
    add_library(longnet_${name}_testing STATIC EXCLUDE_FROM_ALL ${testing})
    target_link_libraries(longnet_${name}_testing PUBLIC longnet_${name})
  endif()

  if(tests AND NOT LONGNET_GPU_ONLY)
    add_executable(${name}_tests EXCLUDE_FROM_ALL ${tests})
    add_dependencies(unit_tests ${name}_tests)
    target_link_libraries(${name}_tests PRIVATE $<TARGET_NAME_IF_EXISTS:longnet_${name}_testing> longnet_${name}
                          GTest::gmock_main)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # GCC 12 takes vectors in nested designated initialisers, which tests are full of, for uninitialised.
      target_compile_options(${name}_tests PRIVATE -Wno-maybe-uninitialized)
    endif()
    longnet_test_options(${name}_tests ${tests_optimised})
    set_target_properties(${name}_tests PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    gtest_discover_tests(${name}_tests TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
                         PROPERTIES TIMEOUT 1200)
  endif()
endfunction()
