// The transports between hosts: how the ranks that a command runs on come to be.
//
//   threads   without a launcher: ranks are threads of this process (threads/thread_world.h)
//   mpi       ranks are processes of MPI, which mpirun or srun has started
//
// A transport whose ranks are processes is one row of host_transports(); see README.md.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace longnet {

inline constexpr std::string_view kThreadTransport = "threads";
inline constexpr std::string_view kAboutThreads =
    "ranks are threads of one process: what runs without a launcher";

// This process among those that a launcher has started, by its environment variables.
struct Launch {
  int ranks = 1;  // processes, each of which is a rank
  int rank = 0;
  std::string job{};            // the launcher's name of it; "" where it has none
  bool on_one_machine = false;  // the launcher says that all ranks are on this machine
};

// The processes of a launch that have found each other.
class RankProcesses {
 public:
  virtual ~RankProcesses() = default;
  virtual Communicator& communicator() = 0;  // all processes
  virtual std::string library_version() const = 0;
};

struct HostTransport {
  std::string_view name;
  std::string_view about{};     // one line for `lnbench list`
  std::string_view launcher{};  // "mpirun -np": starts as many ranks as the number after it says
  // Nothing where this process was not launched for it. Joins nobody: programs ask before they
  // start, and those that only choose the rank that prints never join.
  std::function<std::optional<Launch>()> launch{};
  // Collective. Throws UsageError in builds without the transport.
  std::function<std::unique_ptr<RankProcesses>()> join{};
  bool is_built_in = true;
};
// Those whose ranks are processes, in the order in which they are asked for a launch.
std::span<const HostTransport> host_transports();
HostTransport mpi_transport();

// The transport that this process was launched for; null: its ranks are threads.
const HostTransport* launched_transport();
std::optional<Launch> launched();
int launched_rank();  // 0 without a launcher
// "mpirun -np 4": what a user types before a command to start 4 ranks by `transport`, or without
// one (null) by the first of the list.
std::string launcher_words(const HostTransport* transport, int ranks);

inline std::string name_of(const HostTransport* launched) {
  return std::string(launched ? launched->name : kThreadTransport);
}

}  // namespace longnet
