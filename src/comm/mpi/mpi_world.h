// Ranks as processes of Open MPI. <mpi.h> is included by mpi_world.cpp alone.
#pragma once
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
std::optional<int> launched_world_size();
// This process's rank from the launcher's environment variables, 0 without them: for programs that
// must not initialise MPI only to choose the rank that prints.
int launched_rank();

// Initialises MPI (thread level: funneled) and finalises it at the end of its life. Throws Error
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
  // Ends all processes of the job with this exit code.
  [[noreturn]] void abort(int exit_code);

 private:
  std::unique_ptr<Communicator> communicator_;
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace longnet
