// The machine that the ranks run on: its measured peak, and the place of each rank.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/result.h"
#include "measure/rank_place.h"
#include "run/world.h"

namespace longnet {

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
