// `lnbench simulate`: the points of a config on a modelled cluster. No MPI, no GPU.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "core/check.h"
#include "io/environment.h"
#include "io/result.h"
#include "io/sha256.h"
#include "io/units.h"
#include "lnbench/table.h"
#include "lnbench/terminal.h"
#include "measure/sampler.h"
#include "run/simulate_point.h"

namespace longnet {
namespace {

struct Variant {
  SimulatePoint how;
  std::vector<Point> points;
};

// The command line's cluster, else the config's: a path from where one stands, or from the
// config's folder.
ClusterSpec read_cluster(const Options& options, const Config& config) {
  namespace fs = std::filesystem;
  if (!options.cluster.empty()) return load_cluster(options.cluster);
  if (config.cluster.file.empty())
    throw UsageError(
        concat("no cluster to simulate\n  hint: --cluster "
               "configs/clusters/h100-ndr400.json, or \"cluster\": {\"file\": ...} in ",
               config.path));
  const fs::path beside = fs::path(config.path).parent_path() / config.cluster.file;
  return load_cluster(!fs::exists(config.cluster.file) && fs::exists(beside) ? beside.string()
                                                                             : config.cluster.file);
}

std::vector<Variant> read_variants(const Options& options, const Config& config,
                                   const ClusterSpec& cluster) {
  std::vector<std::string> questions =
      options.what_if.empty() ? config.cluster.what_if : options.what_if;
  if (questions.empty()) questions.push_back("");
  std::vector<Variant> variants;
  for (const std::string& text : questions) {
    Variant v;
    v.how.what_if = parse_what_if(text);
    for (const Variant& earlier : variants)
      if (earlier.how.what_if.text() == v.how.what_if.text())
        throw UsageError(concat("--what-if '", text, "' is there twice\n  hint: leave one out"));
    v.how.cluster = apply(cluster, v.how.what_if);
    v.how.memory_fraction = config.memory.limit_fraction;
    v.how.collapse = !options.no_collapse;
    if (options.alpha != "band") v.how.alpha = parse_alpha_set(options.alpha);
    const int world = v.how.cluster.num_gpus();
    v.points = on_cluster(read_points(config, {.world_size = world,
                                               .filter = options.filter,
                                               .mode = Mode::kSimulated,
                                               .transport = ""}),
                          v.how);
    variants.push_back(std::move(v));
  }
  return variants;
}

int64_t count_points(const std::vector<Variant>& variants) {
  int64_t n = 0;
  for (const Variant& v : variants) n += int64_t(v.points.size());
  return n;
}

bool has_replicas(const std::vector<Variant>& variants) {
  for (const Variant& v : variants)
    for (const Point& p : v.points)
      if (p.params.replicas > 1) return true;
  return false;
}

WriterOptions writer_options(const Options& options, const Config& config,
                             const std::vector<Variant>& variants, const ClusterSpec& simulated,
                             const std::string& command_line) {
  const std::string cluster = cluster_to_json(simulated);
  return {.directory = options.output,
          .run = {.name = config.name,
                  .description = config.description,
                  .command = command_line,
                  .config_path = config.path,
                  .config_json = resolved_config_json(config),
                  .config_sha256 = config_sha256(config),
                  .cluster_json = cluster,
                  .cluster_sha256 = sha256_hex(cluster),
                  .mode = "simulated",
                  .world_size = variants[0].how.cluster.num_gpus(),
                  .planned = count_points(variants),
                  .filter = options.filter},
          .environment = capture_environment()};
}

void write_trace(const std::string& path, const SimulatedPoint& point) {
  std::ofstream file(path);
  file << chrome_trace(point.run, describe(point.record.params)) << "\n";
  if (!file.flush()) throw UsageError(concat("cannot write ", path));
  std::cout << "# trace: " << path << " (chrome://tracing, ui.perfetto.dev)\n";
}

void check_trace(const Options& options, const std::vector<Variant>& variants) {
  if (options.trace.empty()) return;
  int64_t runnable = 0;
  for (const Variant& v : variants)
    for (const Point& p : v.points) runnable += p.status == PointStatus::kOk;
  if (runnable != 1)
    throw UsageError(concat("--trace shows one point, ", runnable,
                            " are left\n  hint: --filter 'algorithm==ring && ranks==8'"));
}

}  // namespace

int run_simulate(const Options& options, const std::string& command_line) {
  const Config config = read_config(options);
  print_notes(options, config);
  const ClusterSpec simulated = read_cluster(options, config);  // before any what-if
  const std::vector<Variant> variants = read_variants(options, config, simulated);
  check_trace(options, variants);
  ResultWriter writer =
      ResultWriter::create(writer_options(options, config, variants, simulated, command_line));
  const ClusterSpec& cluster = variants[0].how.cluster;
  std::cout << "# " << config.name << ": " << count_points(variants) << " points simulated on "
            << cluster.name << " (" << cluster.num_nodes() << " nodes of " << cluster.node_size()
            << " x " << cluster.device.name << ", " << to_string(cluster.topology.kind)
            << "); latencies " << (options.alpha == "band" ? "as a band" : options.alpha) << "\n"
            << (has_replicas(variants) ? "# replicas: one group of ranks is simulated, on links of "
                                         "its own; the others do the same\n"
                                       : "")
            << result_header() << "\n";
  Progress progress(options, true, int(count_points(variants)));
  const bool color = use_color(options, 1);
  int64_t messages = 0;
  double simulation_s = 0;
  int number = 0;
  const double begin = steady_seconds();
  for (const Variant& v : variants)
    for (const Point& point : v.points) {
      progress.start(++number, describe(point.params), 0);
      SimulatedPoint done = simulate_point(point, v.how, !options.trace.empty());
      messages += done.messages;
      simulation_s += done.simulation_s;
      if (!options.trace.empty() && done.record.status == PointStatus::kOk)
        write_trace(options.trace, done);
      const PointRecord& written = writer.append(std::move(done.record));
      std::cout << colored(result_row(written), to_string(written.status), color) << "\n";
    }
  const Summary summary = writer.finish(count_points(variants));
  std::cout << "# " << messages << " messages in " << format_seconds(simulation_s);
  if (messages > 0)
    std::cout << ", messages_per_s " << format_si(double(messages) / simulation_s, "");
  std::cout << "; all in " << format_seconds(steady_seconds() - begin) << "\n#";
  for (const auto& [status, count] : summary.counts)
    if (count > 0) std::cout << " " << count << " " << status;
  if (summary.counts.at("ok") == 0) std::cout << "; no point could be simulated, they say why";
  std::cout << "; verdict: " << summary.verdict << "\n# result: " << writer.directory() << "\n";
  return summary.verdict == "pass" ? kOk : kFailed;
}

}  // namespace longnet
