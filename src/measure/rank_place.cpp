#include "measure/rank_place.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

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

std::string to_text(const RankPlace& place) {
  std::ostringstream out;
  out << place.machine << ' ' << place.clock << ' ';
  for (const int cpu : place.cpus) out << (cpu == *place.cpus.begin() ? "" : ",") << cpu;
  return out.str();
}

RankPlace place_from_text(const std::string& text) {
  RankPlace place;
  std::string cpus, rest;
  std::istringstream words(text);
  check(bool(words >> place.machine >> place.clock >> cpus) && !(words >> rest),
        "a rank's place is machine, clock and CPUs, not '", text, "'");
  std::istringstream numbers(cpus);
  for (std::string number; std::getline(numbers, number, ',');) {
    check(!number.empty() && number.size() < 7 &&
              number.find_first_not_of("0123456789") == std::string::npos,
          "CPUs of a rank's place are numbers, not '", cpus, "'");
    place.cpus.insert(std::stoi(number));
  }
  return place;
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
