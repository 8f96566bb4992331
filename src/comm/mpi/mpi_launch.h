// The words of MPI's launchers (mpirun, srun), for builds with MPI and without.
#pragma once
#include <optional>

#include "comm/host_transport.h"

namespace longnet {

// Does not initialise MPI.
std::optional<Launch> mpi_launch();

}  // namespace longnet
