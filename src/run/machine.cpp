#include "run/machine.h"

#include <sstream>

#include "comm/cuda/device_transport.h"
#include "core/check.h"
#include "core/cuda/device.h"
#include "core/cuda/nvml.h"
#include "io/environment.h"
#include "io/units.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cuda/device_kernel.h"

namespace longnet {

double measure_peak_per_rank(World& world, int threads) {
  double peak = 0;
  world.run(world.size(), [&](Communicator& comm) {
    comm.barrier();
    const double mine = measure_fma_peak_flops(threads, 0.25);
    // Other processes slow down single ranks: the highest rate is the machine's.
    const double best = comm.max_of(mine);
    if (comm.rank() == 0 || comm.transport() == "mpi") peak = best;
  });
  return peak;
}

std::vector<RankPlace> gather_places(Communicator& comm) {
  std::vector<RankPlace> places;
  for (const std::string& text : comm.all_texts(to_text(this_place())))
    places.push_back(place_from_text(text));
  return places;
}

std::vector<RankInfo> describe_ranks(World& world, int threads, bool on_devices) {
  std::string mine = capture_environment().hostname + " " + std::to_string(threads);
  if (on_devices)
    for (const DeviceInfo& device : describe_devices().devices) mine += "\n" + device.name;
  const auto texts = world.all_texts(mine);
  std::vector<RankInfo> ranks;
  std::map<std::string, int> on_host;
  for (size_t r = 0; r < texts.size(); ++r) {
    RankInfo info{.rank = int(r)};
    std::istringstream text(texts[r]);
    std::string line;
    std::getline(text, line);
    std::istringstream(line) >> info.hostname >> info.cores;
    std::vector<std::string> devices;
    while (std::getline(text, line)) devices.push_back(line);
    const int here = on_host[info.hostname]++;  // as device_of_rank
    if (!devices.empty()) {
      const size_t device = size_t(here) % devices.size();
      info.device = concat(device, ": ", devices[device]);
    }
    ranks.push_back(info);
  }
  return ranks;
}

std::string devices_text() {
  const DeviceReport report = describe_devices();
  if (report.devices.empty()) return "no GPU on this machine";
  return concat(report.devices.size(), " x ", report.devices.front().name, " on this machine");
}

// ", 18 NVLinks, PCIe 5 x16", where NVML tells.
std::string links_of(const DeviceInfo& device) {
  const std::string links = to_string(read_device_links(device.index));
  return links.empty() ? "" : ", " + links;
}

std::vector<std::string> device_lines() {
  std::vector<std::string> lines;
  for (const DeviceInfo& d : describe_devices().devices)
    lines.push_back(concat(d.name, ", compute capability ", d.major, ".", d.minor, ", ",
                           d.multiprocessors, " SMs, ", format_bytes(double(d.memory_bytes)),
                           links_of(d)));
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

}  // namespace longnet
