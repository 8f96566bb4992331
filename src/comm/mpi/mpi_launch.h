// MPI's row of host_transports(), and what its launchers (mpirun, srun) say; for builds with and
// without MPI.
#pragma once
#include <optional>

#include "comm/host_transport.h"

namespace longnet {

inline constexpr std::string_view kMpi = "mpi";

// Does not initialise MPI.
std::optional<Launch> mpi_launch();

// Everything but how processes join, which is the build's.
HostTransport mpi_row();

}  // namespace longnet
