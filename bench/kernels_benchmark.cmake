find_package(benchmark 1.7 REQUIRED)
add_executable(kernels_benchmark ${CMAKE_CURRENT_LIST_DIR}/kernels_benchmark.cpp
               ${CMAKE_CURRENT_LIST_DIR}/model_kernels_benchmark.cpp)
target_link_libraries(kernels_benchmark PRIVATE longnet_kernels benchmark::benchmark)
