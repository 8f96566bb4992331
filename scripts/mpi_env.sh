# shellcheck shell=bash
# Source it before mpirun: Open MPI refuses to run as root, and eight ranks on two cores, unless told otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
