#include "comm/mpi/mpi_launch.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace longnet {
namespace {

// Open MPI, MPICH and Intel MPI (PMI), and srun, in the order in which they are trusted; 0: none.
int launched_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"})
    if (const char* value = std::getenv(name); value != nullptr && std::atoi(value) > 0)
      return std::atoi(value);
  // srun sets SLURM_NTASKS in batch scripts too; only a step has a process id of its own.
  if (std::getenv("SLURM_STEP_ID") != nullptr && std::getenv("PMIX_RANK") != nullptr)
    if (const char* tasks = std::getenv("SLURM_NTASKS"); tasks != nullptr) return std::atoi(tasks);
  return 0;
}

}  // namespace

std::optional<Launch> mpi_launch() {
  Launch launch{.ranks = launched_ranks()};
  if (launch.ranks == 0) return std::nullopt;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* value = std::getenv(name); value != nullptr) {
      launch.rank = std::atoi(value);
      break;
    }
  if (const char* job = std::getenv("PMIX_NAMESPACE"); job != nullptr && !std::strchr(job, '/'))
    launch.job = job;
  const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  launch.on_one_machine = here != nullptr && std::atoi(here) == launch.ranks;
  return launch;
}

HostTransport mpi_row() {
  return {.name = kMpi,
          .about = "ranks are processes of MPI, which mpirun or srun starts",
          .launcher = "mpirun -np",
          .launch = mpi_launch};
}

}  // namespace longnet
