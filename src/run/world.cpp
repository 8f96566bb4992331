#include "run/world.h"

#include <unistd.h>

#include <algorithm>

#include "comm/mpi/mpi_world.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "io/environment.h"

namespace longnet {

namespace {
std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}
}  // namespace

World::World(int thread_ranks) : thread_ranks_(thread_ranks), local_ranks_(thread_ranks) {
  if (!launched_world_size()) return;
  mpi_ = std::make_unique<MpiWorld>(nullptr, nullptr);
  const auto hosts = mpi()->all_texts(host_name());
  local_ranks_ = int(std::count(hosts.begin(), hosts.end(), host_name()));
}

World::~World() = default;

Communicator* World::mpi() const { return mpi_ ? &mpi_->communicator() : nullptr; }
int World::rank() const { return mpi_ ? mpi()->rank() : 0; }
bool World::is_root() const { return rank() == 0; }
int World::size() const { return mpi_ ? mpi()->size() : thread_ranks_; }
std::string World::transport() const { return mpi_ ? "mpi" : "threads"; }
std::string World::mpi_version() const { return mpi_ ? mpi_->library_version() : ""; }

int World::threads_per_rank() const {
  const int usable = capture_environment().usable_threads;
  // A launcher that binds leaves each process its own cores; one that does not shows all of them to
  // each.
  const bool bound = mpi_ && usable < int(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, bound ? usable : usable / local_ranks_);
}

void World::run(int ranks, const std::function<void(Communicator&)>& rank_main) {
  check(ranks <= size(), "a point of ", ranks, " ranks in a world of ", size());
  if (!mpi_) return run_on_threads(ranks, rank_main);
  if (const auto part = mpi()->first_ranks(ranks)) rank_main(*part);
  mpi()->resting_barrier();
}

bool World::agree(bool root_flag) { return mpi_ ? mpi()->broadcast_flag(root_flag) : root_flag; }
double World::smallest(double value) { return mpi_ ? -mpi()->max_of(-value) : value; }
std::string World::root_text(const std::string& text) { return all_texts(text).front(); }

std::vector<std::string> World::all_texts(const std::string& mine) {
  return mpi_ ? mpi()->all_texts(mine) : std::vector<std::string>(size_t(thread_ranks_), mine);
}

}  // namespace longnet
