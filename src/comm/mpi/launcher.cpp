#include <cstdlib>
#include <initializer_list>

#include "comm/mpi/mpi_world.h"

namespace longnet {

std::optional<int> launched_world_size() {
  // Open MPI, MPICH and Intel MPI (PMI), and srun, in the order in which they are trusted.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"})
    if (const char* value = std::getenv(name); value != nullptr && std::atoi(value) > 0)
      return std::atoi(value);
  // srun sets SLURM_NTASKS in batch scripts too; only a step has a process id of its own.
  if (std::getenv("SLURM_STEP_ID") != nullptr && std::getenv("PMIX_RANK") != nullptr)
    if (const char* tasks = std::getenv("SLURM_NTASKS"); tasks != nullptr) return std::atoi(tasks);
  return std::nullopt;
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  return 0;
}

}  // namespace longnet
