# cmake --install BUILD --prefix DIR: a tree that can be moved.
#
#   DIR/bin/lnbench                       finds the folder below from where it stands (src/run/shipped.cpp)
#   DIR/share/longnet-bench/              pages, docs, configs, plots, scripts/report with scripts/python_env.sh, which it needs,
#                                         scripts/slurm with scripts/help.sh, which it sources, and scripts/mpi_env.sh
install(TARGETS lnbench RUNTIME DESTINATION bin)
set_target_properties(lnbench PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # an MPI that stands elsewhere
if(TARGET simgrid_oracle)  # `lnbench validate` asks it
  install(TARGETS simgrid_oracle RUNTIME DESTINATION bin OPTIONAL)
endif()

set(share share/longnet-bench)
install(DIRECTORY configs docs plots DESTINATION ${share})
install(DIRECTORY results/h100 results/h200 DESTINATION ${share}/results)
install(DIRECTORY scripts/report DESTINATION ${share}/scripts
        PATTERN "*_test.py" EXCLUDE PATTERN "*_fixture.py" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY scripts/slurm DESTINATION ${share}/scripts USE_SOURCE_PERMISSIONS
        PATTERN "*_test.py" EXCLUDE PATTERN "one_node.sh" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(PROGRAMS scripts/python_env.sh DESTINATION ${share}/scripts)
install(FILES scripts/help.sh scripts/mpi_env.sh scripts/requirements.txt DESTINATION ${share}/scripts)
install(FILES README.md LICENSE CHANGELOG.md CITATION.cff CONTRIBUTING.md DESTINATION ${share})
file(GLOB linked RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS bench/README.md scripts/README.md src/README.md src/*/README.md
     results/README.md results/reference/*.md results/reference/values.json)
foreach(page ${linked})  # README.md and docs link them, or they each other
  cmake_path(GET page PARENT_PATH folder)
  install(FILES ${page} DESTINATION ${share}/${folder})
endforeach()

# Where bash-completion looks for it by the command's name.
install(CODE "execute_process(COMMAND $<TARGET_FILE:lnbench> completion OUTPUT_FILE ${CMAKE_BINARY_DIR}/lnbench.bash
              COMMAND_ERROR_IS_FATAL ANY)")
install(FILES ${CMAKE_BINARY_DIR}/lnbench.bash DESTINATION share/bash-completion/completions RENAME lnbench)
