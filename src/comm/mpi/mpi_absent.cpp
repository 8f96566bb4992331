// Builds without MPI: its launchers are recognised, and refused.
#include "comm/mpi/mpi_launch.h"
#include "core/check.h"

namespace longnet {

HostTransport mpi_transport() {
  HostTransport row = mpi_row();
  row.join = []() -> std::unique_ptr<RankProcesses> {
    throw UsageError("this build has no MPI (LONGNET_MPI=OFF); run without mpirun, with --ranks N");
  };
  row.is_built_in = false;
  return row;
}

}  // namespace longnet
