// Builds without MPI: the same interface, which throws.
#include "comm/mpi/mpi_world.h"
#include "core/check.h"

namespace longnet {

bool mpi_available() { return false; }
MpiWorld::MpiWorld(int*, char***) {
  throw UsageError("this build has no MPI (LONGNET_MPI=OFF); run without mpirun, with --ranks N");
}
MpiWorld::~MpiWorld() = default;
std::string MpiWorld::library_version() const { return "none"; }

}  // namespace longnet
