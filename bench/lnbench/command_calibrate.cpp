// `lnbench calibrate`: the machine at hand as a cluster file, every number measured.
//
//   mpirun -np 2 lnbench calibrate -o configs/clusters/cpu-2core.json
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "comm/host_transport.h"
#include "core/check.h"
#include "core/stopwatch.h"
#include "lnbench/terminal.h"
#include "measure/machine_load.h"
#include "run/calibrate.h"
#include "run/shipped.h"
#include "run/watchdog.h"
#include "simulate/cluster.h"

namespace longnet {
namespace {

// The longest step takes a minute or two on a small machine.
constexpr double kStartSeconds = 60, kStepSeconds = 600;

void print(const ClusterSpec& c, const Calibration& m) {
  std::cout << "# " << c.description
            << "\n# head_dim dtype causal  block_us  query_ns    key_ns   pair_ns\n";
  for (const AttendModel& a : c.device.attend_model)
    std::cout << concat("  ", a.head_dim, " ", to_string(a.dtype), " ", a.causal, " ",
                        a.block_s * 1e6, " ", a.query_s * 1e9, " ", a.key_s * 1e9, " ",
                        a.pair_s * 1e9, a.backward ? "  backward\n" : "\n");
  for (const GemmTime& t : m.model.gemms)
    std::cout << concat("  product ", t.flops, " FLOP ", t.bytes, " B ", t.seconds * 1e6, " us\n");
  for (const auto* times : {&m.intra.exchange, &m.inter.exchange})
    for (const MessageTime& t : *times)
      std::cout << concat("  ", times == &m.intra.exchange ? "intra " : "inter ", t.bytes, " B ",
                          t.seconds * 1e6, " us\n");
  std::cout << "# " << c.async_bytes_per_s.source << "\n" << std::flush;
}

void write_cluster(const std::filesystem::path& file, const ClusterSpec& cluster) {
  const std::string text = cluster_to_json(cluster);
  parse_cluster(text, file.string());  // throws if the written file could not be read
  write_file(file, text, ": choose another place by -o");
}

// Writes the cluster of --cluster with the figures that GPU programs measured put in.
int calibrate_from_files(const Options& options, const std::filesystem::path& file) {
  if (options.gpu_kernels.empty() && options.gpu_comm.empty())
    throw UsageError("--cluster: what has to go into it? Add --gpu-kernels or --gpu-comm");
  ClusterSpec cluster = load_cluster(find_shipped("clusters", options.cluster));
  if (!options.gpu_kernels.empty())
    cluster = with_measured_kernels(std::move(cluster), options.gpu_kernels, options.gpu_kernel);
  if (!options.gpu_comm.empty()) cluster = with_measured_link(std::move(cluster), options.gpu_comm);
  cluster.name = file.stem().string();
  write_cluster(file, cluster);
  std::cout << "# " << cluster.description << "\n# cluster: " << file.string() << "\n"
            << std::flush;
  return kOk;
}

}  // namespace

int run_calibrate(const Options& options) {
  const std::filesystem::path file = options.output.empty() ? "cluster.json" : options.output;
  check_writable(file, "-o");
  if (!options.cluster.empty()) return calibrate_from_files(options, file);
  const double busy = measure_busy_share();  // before MPI's threads and waits are there
  Watchdog watchdog(launched_rank());
  watchdog.expect_start(kStartSeconds);
  World world(options.ranks > 0 ? options.ranks
                                : std::max(1, capture_environment().usable_threads));
  const Environment env = environment_of(world, busy);
  if (world.is_root() && !options.quiet) warn(fitness_warnings(env));
  const double begin = steady_seconds();
  const auto say = [&, speaks = world.is_root() && !options.quiet](const std::string& what) {
    watchdog.expect(what, kStepSeconds);
    if (speaks) std::cerr << concat("[", std::lround(steady_seconds() - begin), " s] ", what, "\n");
  };
  const Calibration measured = calibrate(world, calibration_budget(options.quick), say);
  watchdog.rest();
  if (!world.is_root()) return kOk;
  const ClusterSpec cluster = to_cluster(measured, world, env, file.stem().string());
  write_cluster(file, cluster);
  print(cluster, measured);
  std::cout << "# cluster: " << file.string() << "\n" << std::flush;
  return kOk;
}

}  // namespace longnet
