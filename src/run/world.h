// The ranks that a command runs on: processes of MPI under a launcher, else threads of this
// process.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace longnet {

class MpiWorld;

class World {
 public:
  // `thread_ranks`: ranks of the threads transport; ignored under a launcher. Throws when the
  // launcher's world is not MPI's.
  explicit World(int thread_ranks);
  ~World();

  bool is_root() const;
  int size() const;                 // most ranks a point may have
  std::string transport() const;    // "mpi" or "threads"
  std::string mpi_version() const;  // "" without MPI
  int threads_per_rank() const;     // cores of this process over its ranks on this machine

  // Runs `rank_main` on the first `ranks` ranks; returns on every process when all have ended. What
  // a rank throws is thrown again (threads), or ends the job (MPI).
  void run(int ranks, const std::function<void(Communicator&)>& rank_main);
  // Rank 0's flag, on every process.
  bool agree(bool root_flag);
  // The smallest value of all processes, and rank 0's text, on every process.
  double smallest(double value);
  std::string root_text(const std::string& text);
  int rank() const;
  // One text per rank: host name and cores.
  std::vector<std::string> all_texts(const std::string& mine);
  int ranks_on_this_machine() const { return local_ranks_; }

 private:
  Communicator* mpi() const;  // null without a launcher
  std::unique_ptr<MpiWorld> mpi_;
  int thread_ranks_, local_ranks_ = 1;
};

}  // namespace longnet
