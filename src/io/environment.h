// The machine and the build, as far as they can explain a number; and nothing private.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/field.h"

namespace longnet {

struct BuildInfo {
  std::string version{}, revision{};  // revision of the sources when built, "unknown" without git
  std::string compiler{}, flags{}, build_type{}, sanitizer{};
  static void fields(auto& b, auto&& visit) {
    visit("version", b.version);
    visit("revision", b.revision);
    visit("compiler", b.compiler);
    visit("flags", b.flags);
    visit("build_type", b.build_type);
    visit("sanitizer", b.sanitizer, {.null = true});
  }
};
BuildInfo build_info();

struct Environment {
  std::string mpi_version{};  // RankProcesses::library_version(), MPI's or not; "": threads
  std::vector<std::string> devices{};                    // accelerators, as the caller names them
  std::map<std::string, std::string> device_software{};  // "nccl": "2.28.9", likewise
  // measure_busy_share() before the ranks began; NaN: not measured.
  double busy_share = std::numeric_limits<double>::quiet_NaN();
  std::string hostname{}, captured_utc{}, os{}, kernel{};
  std::string cpu_model{};
  int packages = 0, cores = 0, threads = 0, numa_nodes = 0;
  int usable_threads = 0;                             // by this process's affinity mask
  int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // one cache each
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;      // the smaller of memory_bytes and the cgroup's limit
  std::string governor{}, turbo{};     // "" where unreadable
  std::vector<double> load_average{};  // 1, 5, 15 minutes
  std::map<std::string, std::string> variables{};  // allow-listed only
  static void fields(auto& e, auto&& visit) {
    visit("hostname", e.hostname);
    visit("captured_utc", e.captured_utc);
    visit("os", e.os);
    visit("kernel", e.kernel);
    visit("cpu.model", e.cpu_model);
    visit("cpu.packages", e.packages);
    visit("cpu.cores", e.cores);
    visit("cpu.threads", e.threads);
    visit("cpu.usable_threads", e.usable_threads);
    visit("cpu.numa_nodes", e.numa_nodes);
    visit("cpu.l1d_bytes", e.l1d_bytes);
    visit("cpu.l2_bytes", e.l2_bytes);
    visit("cpu.l3_bytes", e.l3_bytes);
    visit("cpu.governor", e.governor, {.null = true});
    visit("cpu.turbo", e.turbo, {.null = true});
    visit("memory.total_bytes", e.memory_bytes);
    visit("memory.limit_bytes", e.memory_limit_bytes);
    visit("busy_share", e.busy_share);
    visit("load_average", e.load_average);
    visit("mpi_version", e.mpi_version, {.null = true});
    visit("devices", e.devices);
    visit("device_software", e.device_software, {.omit = true});
    visit("variables", e.variables);
  }
};

// The tightest limit from this process's cgroup (v2, or v1's for memory) up to the root; 0: none.
// `own_groups` is a file like /proc/self/cgroup, `root` where the groups' files are.
int64_t cgroup_memory_limit(const std::string& root, const std::string& own_groups);

// Fills in all but the first four members.
Environment capture_environment(Environment known = {});

// Whole names of settings of OpenMP, Open MPI, NCCL, CUDA and of a job's size; everything else,
// also what a launcher tells its processes, stays private.
bool environment_variable_allowed(std::string_view name);
// The value, or "(not recorded)" for a path, an address of a host or of a user.
std::string recorded_value(std::string_view value);

// "load average 3 on 2 usable ...", or by the share measured, where it was; "" for a quiet machine.
std::string why_busy(const Environment& env);

// Reasons, one sentence each, why numbers taken here deserve little trust.
std::vector<std::string> fitness_warnings(const Environment& env,
                                          const BuildInfo& build = build_info());

}  // namespace longnet
