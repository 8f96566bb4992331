#include "measure/rank_place.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/check.h"

namespace longnet {
namespace {

std::string own_process() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return concat("process-", getpid(), "-of-", name);
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return file >> id ? id : own_process();
}

// Containers may shift CLOCK_MONOTONIC: each time namespace is a clock (time_namespaces(7)).
std::string time_namespace() {
  std::error_code failed;
  const auto target = std::filesystem::read_symlink("/proc/self/ns/time", failed);
  return failed ? "time" : target.string();
}

std::set<int> allowed_cpus() {
  std::set<int> cpus;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) cpus.insert(cpu);
    return cpus;
  }
  // More CPUs than a cpu_set_t holds: all that are there.
  for (int cpu = 0; cpu < int(sysconf(_SC_NPROCESSORS_ONLN)); ++cpu) cpus.insert(cpu);
  return cpus;
}

}  // namespace

RankPlace this_place() {
  const std::string machine = boot_id();
  return {
      .machine = machine, .clock = concat(machine, "/", time_namespace()), .cpus = allowed_cpus()};
}

bool one_clock(std::span<const RankPlace> places) {
  return std::all_of(places.begin(), places.end(),
                     [&](const RankPlace& p) { return p.clock == places.front().clock; });
}

int usable_cores(std::span<const RankPlace> places, int threads) {
  struct Machine {
    int threads = 0;
    std::set<int> cpus;
  };
  std::map<std::string, Machine> machines;
  for (const RankPlace& p : places) {
    Machine& m = machines[p.machine];
    m.threads += threads;
    m.cpus.insert(p.cpus.begin(), p.cpus.end());
  }
  int cores = 0;
  for (const auto& [name, m] : machines) cores += std::min(m.threads, int(m.cpus.size()));
  return cores;
}

}  // namespace longnet
