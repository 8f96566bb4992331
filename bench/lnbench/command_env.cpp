// `lnbench env`: what this machine is, and whether it is fit to measure.
#include <iomanip>
#include <iostream>

#include "comm/cuda/device_transport.h"
#include "comm/host_transport.h"
#include "core/check.h"
#include "core/cuda/device.h"
#include "io/units.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cuda/device_kernel.h"
#include "lnbench/terminal.h"
#include "measure/machine_load.h"

namespace longnet {
namespace {

std::string gpu_lines() {
  const DeviceReport report = describe_devices(/*with_free_memory=*/true);
  std::string text = "gpu       ";
  if (!report.unusable.empty()) text += "none: " + report.unusable + "\n";
  const std::vector<std::string> lines = device_lines();
  for (const DeviceInfo& d : report.devices)
    text += concat(d.index == 0 ? "" : "          ", lines.at(size_t(d.index)), ", ",
                   format_bytes(double(d.free_bytes)), " free\n");
  const std::string driver = report.driver == 0 ? "none" : cuda_version_text(report.driver);
  const std::string cuda = report.built_in ? concat("toolkit ", cuda_version_text(report.toolkit),
                                                    ", driver for ", driver)
                                           : "not in this build";
  return concat(text, "cuda      ", cuda, "\ncudnn     ", describe_cudnn(), "\nnccl      ",
                describe_nccl(), "\n");
}

}  // namespace

int run_env(const Options& options) {
  check_writable(options.json, "--json");
  const Environment env = capture_environment({.devices = device_lines(),
                                               .device_software = device_software(),
                                               .busy_share = measure_busy_share()});
  const BuildInfo build = build_info();
  if (!options.json.empty()) write_file(options.json, dump_json(to_json(env), 2) + "\n");
  if (!options.quiet) {
    std::cout << "# lnbench " << build.version << " (" << build.revision << "), " << build.compiler
              << ", " << build.build_type
              << (build.sanitizer.empty() ? "" : ", sanitizer " + build.sanitizer) << "\n"
              << "host      " << env.hostname << ", " << env.os << ", kernel " << env.kernel << "\n"
              << "cpu       " << env.cpu_model << ": " << env.cores << " cores, " << env.threads
              << " threads, " << env.usable_threads << " usable, " << env.numa_nodes
              << " NUMA node(s)\n"
              << "caches    L1d " << format_bytes(double(env.l1d_bytes)) << ", L2 "
              << format_bytes(double(env.l2_bytes)) << ", L3 " << format_bytes(double(env.l3_bytes))
              << "\n"
              << "memory    " << format_bytes(double(env.memory_limit_bytes)) << " usable of "
              << format_bytes(double(env.memory_bytes)) << "\n"
              << "simd      " << simd_text(simd_target()) << "\n"
              << "fma peak  " << format_si(measure_fma_peak_flops(1, 0.3), "FLOP/s")
              << " on one core, "
              << format_si(measure_fma_peak_flops(env.usable_threads, 0.3), "FLOP/s") << " on "
              << env.usable_threads << " (measured, fp32)\n"
              << "triad     " << format_bytes(measure_memory_bandwidth(env.usable_threads))
              << "/s (measured)\n";
    for (const HostTransport& transport : host_transports())
      std::cout << std::left << std::setw(10) << transport.name
                << (transport.is_built_in ? "built in" : "not in this build") << "\n";
    std::cout << gpu_lines();
  }
  const auto warnings = fitness_warnings(env, build);
  warn(warnings);
  if (warnings.empty() && !options.quiet) std::cout << "# fit to measure\n";
  return options.fitness_check && !warnings.empty() ? kUnusable : kOk;
}

}  // namespace longnet
