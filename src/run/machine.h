// The machine that the ranks run on: its limits, its measured peak, and the place of each rank.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/config.h"
#include "io/result.h"
#include "measure/rank_place.h"
#include "run/world.h"

namespace longnet {

// Limits of the machine that predictions use: memory, speed and time.
// Share of the FMA peak that a forward pass can be expected to reach; used for estimates only.
inline constexpr double kExpectedShareOfPeak = 0.7;

struct MachineLimits {
  int64_t memory_bytes = 0;   // of the machine, for all its ranks
  double flops_per_rank = 0;  // attainable by one rank
  double point_timeout_s = 0;
  // Hardware threads for the ranks of this machine together; 0: as many as they want.
  int cores = 0;
  VirtualConfig virtual_ranks{};
  int replayed_ranks = 0;           // 0: all run
  int devices = 0;                  // GPUs of this machine; 0: not known
  int64_t device_memory_bytes = 0;  // of one
  bool device_limit_given = false;  // by memory.limit_bytes: buffers beyond it are refused
  double device_flops = 0;          // attainable by one
  bool to_run = false;              // points that need a GPU are refused where there is none
};

MachineLimits machine_limits(const Config& config, double peak_flops_per_rank);
// Ranks that a run without mpirun starts as threads: one per usable core, or per GPU where every
// kernel of the configuration runs on GPUs.
int default_world_size(const Config& config);

// Fused multiply-adds per second times 2 that one rank reaches with `threads` threads while all
// ranks of the world work at once. Shares of peak are relative to it.
double measure_peak_per_rank(World& world, int threads);

// Returns the places of all ranks of `comm`, in rank order, on every rank. Collective.
std::vector<RankPlace> gather_places(Communicator& comm);

// `on_devices`: ranks go round the GPUs of their machine, and say which they have.
std::vector<RankInfo> describe_ranks(World& world, int threads, bool on_devices);

// "8 x NVIDIA H100 on this machine"
std::string devices_text();
// The GPUs of this machine, a line each: "NVIDIA H200, compute capability 9.0, 132 SMs, 139.8 GiB,
// 18 NVLinks, PCIe 5 x16"; the links where NVML tells.
std::vector<std::string> device_lines();
// Versions of what drives them: cuda, driver, cudnn, nccl.
std::map<std::string, std::string> device_software();

}  // namespace longnet
