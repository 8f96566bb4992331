#include "run/world.h"

#include <unistd.h>

#include <algorithm>

#include "comm/mpi/mpi_world.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "io/environment.h"

namespace longnet {

struct World::State {
  std::unique_ptr<MpiWorld> mpi;
};

namespace {
std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}
}  // namespace

World::World(int thread_ranks) : state_(std::make_unique<State>()), thread_ranks_(thread_ranks) {
  if (launched_world_size()) {
    state_->mpi = std::make_unique<MpiWorld>(nullptr, nullptr);
    const auto hosts = state_->mpi->communicator().all_texts(host_name());
    local_ranks_ = int(std::count(hosts.begin(), hosts.end(), host_name()));
  } else {
    local_ranks_ = thread_ranks_;
  }
}

World::~World() = default;

bool World::is_root() const { return !state_->mpi || state_->mpi->communicator().rank() == 0; }
int World::size() const { return state_->mpi ? state_->mpi->communicator().size() : thread_ranks_; }
std::string World::transport() const { return state_->mpi ? "mpi" : "threads"; }
std::string World::mpi_version() const { return state_->mpi ? state_->mpi->library_version() : ""; }

int World::threads_per_rank() const {
  const int usable = capture_environment().usable_threads;
  // A launcher that binds leaves each process its own cores; one that does not shows all of them to
  // each.
  const bool bound = state_->mpi && usable < int(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, bound ? usable : usable / local_ranks_);
}

void World::run(int ranks, const std::function<void(Communicator&)>& rank_main) {
  check(ranks <= size(), "a point of ", ranks, " ranks in a world of ", size());
  if (!state_->mpi) return run_on_threads(ranks, rank_main);
  Communicator& all = state_->mpi->communicator();
  if (const auto part = all.first_ranks(ranks)) rank_main(*part);
  all.resting_barrier();
}

bool World::agree(bool root_flag) {
  return state_->mpi ? state_->mpi->communicator().broadcast_flag(root_flag) : root_flag;
}

double World::smallest(double value) {
  return state_->mpi ? -state_->mpi->communicator().max_of(-value) : value;
}

std::string World::root_text(const std::string& text) {
  return state_->mpi ? state_->mpi->communicator().all_texts(text).front() : text;
}

int World::rank() const { return state_->mpi ? state_->mpi->communicator().rank() : 0; }

std::vector<std::string> World::all_texts(const std::string& mine) {
  if (state_->mpi) return state_->mpi->communicator().all_texts(mine);
  return std::vector<std::string>(size_t(thread_ranks_), mine);
}

}  // namespace longnet
