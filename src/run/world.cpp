#include "run/world.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "comm/cuda/device_transport.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "core/cuda/device.h"
#include "core/cuda/nvml.h"
#include "io/units.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cuda/device_kernel.h"
#include "run/backend.h"

namespace longnet {

// kExpectedShareOfPeak for a GPU's tensor cores: attention spends as long on exponentials as on
// products.
constexpr double kExpectedShareOfDevicePeak = 0.3;

World::World(int thread_ranks, const HostTransport* launched)
    : launched_(launched), thread_ranks_(thread_ranks), local_ranks_(thread_ranks) {
  const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (!launched && tasks != nullptr && std::atoi(tasks) > 1)
    throw UsageError("srun started ", tasks,
                     " tasks that do not see each other\n  hint: srun --mpi=pmix, or mpirun");
  if (!launched) return;
  processes_ = launched->join();
  const auto hosts = all().all_texts(host_name());
  local_ranks_ = int(std::count(hosts.begin(), hosts.end(), host_name()));
}

std::string World::library_version() const {
  return is_one_process() ? "" : processes_->library_version();
}

int World::threads_per_rank() const {
  const int usable = capture_environment().usable_threads;
  // A launcher that binds leaves each process its own cores; another shows all of them to each.
  const bool bound = !is_one_process() && usable < int(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, bound ? usable : usable / local_ranks_);
}

void World::run_ranks(int ranks, const std::function<void(Communicator&)>& rank_main) {
  check(ranks <= size(), "a point of ", ranks, " ranks in a world of ", size());
  if (is_one_process()) return run_on_threads(ranks, rank_main);
  if (const auto part = all().first_ranks(ranks)) rank_main(*part);
  all().resting_barrier();
}

// Threads share a process, which has but one load.
void World::mark_load() {
  if (next_load_ && smallest(next_load_->passed_s()) < OtherLoad::kShortest_s) return;
  load_ = next_load_;
  next_load_.emplace(run(is_one_process() ? 1 : size(),
                         [](Communicator& comm) { return cpus_here(gather(comm, this_place())); }));
  if (!load_) load_ = next_load_;
}

double World::busy_share() {
  const OtherLoad& load =
      smallest(next_load_->passed_s()) < OtherLoad::kShortest_s ? *load_ : *next_load_;
  return run(is_one_process() ? 1 : size(),
             [&load](Communicator& comm) { return longnet::busy_share(load, comm); });
}

int default_world_size(const Config& config) {
  const bool devices_only =
      std::ranges::all_of(config.values_of(*find_axis("kernel"), 1),
                          [](const Value& kernel) { return backend_of(to_text(kernel)).on_gpu(); });
  const int places =
      devices_only ? int(describe_devices().devices.size()) : capture_environment().usable_threads;
  return std::max(1, places);
}

MachineLimits machine_limits(const Config& config, double peak_flops_per_rank) {
  const int64_t all = config.memory.limit_bytes.value_or(capture_environment().memory_limit_bytes);
  MachineLimits limits{.memory_bytes = int64_t(double(all) * config.memory.limit_fraction),
                       .flops_per_rank = kExpectedShareOfPeak * peak_flops_per_rank,
                       .point_timeout_s = config.measure.point_timeout_s,
                       .virtual_ranks = config.virtual_ranks};
  const DeviceReport report = describe_devices();
  limits.device_memory_bytes = config.memory.limit_bytes.value_or(0);
  limits.device_limit_given = config.memory.limit_bytes.has_value();
  if (!report.unusable.empty()) return limits;
  const DeviceInfo& d = report.devices.front();
  limits.devices = int(report.devices.size());
  limits.device_memory_bytes =
      std::max<int64_t>(1, int64_t(double(config.memory.limit_bytes.value_or(d.memory_bytes)) *
                                   config.memory.limit_fraction) -
                               flush_bytes(d));  // measuring needs it
  limits.device_flops = kExpectedShareOfDevicePeak * std::max(1024.0, tensor_flops_per_clock(d)) *
                        d.multiprocessors * d.clock_khz * 1e3;
  return limits;
}

double measure_peak_per_rank(World& world, int threads) {
  // Other processes slow down single ranks: the highest rate is the machine's.
  require_threads(threads * (world.is_one_process() ? world.size() : 1));
  return world.run([&](Communicator& comm) {
    comm.barrier();
    return comm.max_of(measure_fma_peak_flops(threads, 0.1));
  });
}

std::set<int> cpus_here(std::span<const RankPlace> places) {
  const std::string machine = this_place().machine;
  std::set<int> cpus;
  for (const RankPlace& p : places)
    if (p.machine == machine) cpus.insert(p.cpus.begin(), p.cpus.end());
  return cpus;
}

double busy_share(const OtherLoad& load, Communicator& comm) {
  const std::string machine = this_place().machine;
  std::map<std::string, double> own_s;  // by process: ranks may be threads of one
  const std::map<std::string, double> mine{{concat(machine, " ", getpid()), load.own_s()}};
  for (const auto& told : gather(comm, mine))
    if (told.begin()->first.starts_with(machine + " ")) own_s.insert(told.begin(), told.end());
  double all_s = 0;
  for (const auto& [process, seconds] : own_s) all_s += seconds;
  const double share = load.share(all_s);
  return comm.max_of(std::isnan(share) ? -1 : share);
}

std::vector<RankInfo> describe_ranks(World& world, int threads, bool on_devices) {
  std::vector<std::string> mine{capture_environment().hostname, std::to_string(threads)};
  if (on_devices)
    for (const DeviceInfo& device : describe_devices().devices) mine.push_back(device.name);
  std::vector<RankInfo> ranks;
  std::map<std::string, size_t> on_host;
  for (const auto& told : gather(world, mine)) {
    RankInfo info{.rank = int(ranks.size()), .hostname = told[0], .cores = std::stoi(told[1])};
    const size_t here = on_host[info.hostname]++;  // as device_of_rank
    if (const size_t devices = told.size() - 2; devices > 0)
      info.device = concat(here % devices, ": ", told[2 + here % devices]);
    ranks.push_back(info);
  }
  return ranks;
}

std::string devices_text() {
  const DeviceReport report = describe_devices();
  if (report.devices.empty()) return "no GPU on this machine";
  return concat(report.devices.size(), " x ", report.devices.front().name, " on this machine");
}

std::vector<std::string> device_lines() {
  std::vector<std::string> lines;
  for (const DeviceInfo& d : describe_devices().devices) {
    const std::string links = to_string(read_device_links(d.index));
    lines.push_back(concat(d.name, ", compute capability ", d.major, ".", d.minor, ", ",
                           d.multiprocessors, " SMs, ", format_bytes(double(d.memory_bytes)),
                           links.empty() ? "" : ", ", links));
  }
  return lines;
}

std::map<std::string, std::string> device_software() {
  const DeviceReport report = describe_devices();
  if (report.devices.empty()) return {};
  return {{"cuda", cuda_version_text(report.toolkit)},
          {"driver", "for CUDA " + cuda_version_text(report.driver)},
          {"cudnn", describe_cudnn()},
          {"nccl", describe_nccl()}};
}

Environment environment_of(const World& world, double busy_share, bool with_devices) {
  Environment known{.mpi_version = world.library_version(), .busy_share = busy_share};
  if (with_devices) known.devices = device_lines(), known.device_software = device_software();
  return capture_environment(known);
}

}  // namespace longnet
