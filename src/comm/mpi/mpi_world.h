// Ranks as processes of Open MPI. <mpi.h> is included by mpi_world.cpp alone.
#pragma once
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"

namespace longnet {

// True in builds with MPI.
bool mpi_available();

// Number of ranks that a launcher (mpirun, srun) says it has started, from its environment
// variables; none when this process was not launched by one. Does not initialise MPI.
inline std::optional<int> launched_world_size() {
  // Open MPI, MPICH and Intel MPI (PMI), and srun, in the order in which they are trusted.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"})
    if (const char* value = std::getenv(name); value != nullptr && std::atoi(value) > 0)
      return std::atoi(value);
  // srun sets SLURM_NTASKS in batch scripts too; only a step has a process id of its own.
  if (std::getenv("SLURM_STEP_ID") != nullptr && std::getenv("PMIX_RANK") != nullptr)
    if (const char* tasks = std::getenv("SLURM_NTASKS"); tasks != nullptr) return std::atoi(tasks);
  return std::nullopt;
}
// This process's rank from the launcher's environment variables, 0 without them: for programs that
// must not initialise MPI only to choose the rank that prints.
inline int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  return 0;
}
// The launcher's name of the job that this process is a rank of; "" where it has none.
inline std::string launched_job() {
  const char* name = launched_world_size() ? std::getenv("PMIX_NAMESPACE") : nullptr;
  return name != nullptr && std::strchr(name, '/') == nullptr ? name : "";
}
// True when the launcher says that all ranks are on this machine.
inline bool launched_on_one_machine() {
  const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return here != nullptr && std::atoi(here) == launched_world_size();
}

// Initialises MPI (thread level: funneled) and finalises it when destroyed. Throws Error
// when MPI sees another world than the launcher announced: the sign of a program linked with
// another MPI.
class MpiWorld {
 public:
  MpiWorld(int* argc, char*** argv);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  Communicator& communicator() { return *communicator_; }
  std::string library_version() const;

 private:
  std::unique_ptr<Communicator> communicator_;
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace longnet
