// `lnbench simulate`: the points of a config on a modelled cluster. No MPI, no GPU.
#include <malloc.h>

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/stopwatch.h"
#include "core/work_ahead.h"
#include "io/sha256.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "run/cluster_sweep.h"

namespace longnet {
namespace {

struct Simulated {
  const SimulatePoint* how;
  Point point;
};

// The points of each variant, one after the other.
std::vector<Simulated> points_of(const std::vector<SimulatePoint>& variants, const Config& config,
                                 const std::string& filter) {
  std::vector<Simulated> all;
  for (const SimulatePoint& how : variants)
    for (Point& point : on_cluster(config, how, filter)) all.push_back({&how, std::move(point)});
  return all;
}

void write_trace(TableWriter& table, const std::string& path, const SimulatedPoint& point) {
  write_file(path, chrome_trace(point.run, describe(point.record.params)) + "\n");
  table.note(concat("trace: ", path, " (chrome://tracing, ui.perfetto.dev)"));
}

void check_trace(const Options& options, const std::vector<Simulated>& points) {
  check_writable(options.trace, "--trace");
  const auto runnable = std::ranges::count(points, PointStatus::kOk,
                                           [](const Simulated& s) { return s.point.status; });
  if (!options.trace.empty() && runnable != 1)
    throw UsageError("--trace shows one point, ", runnable,
                     " are left\n  hint: --filter 'algorithm==ring && ranks==8'");
}

}  // namespace

int run_simulate(const Options& options) {
  // Programs of thousands of ranks are made and dropped one after the other: keep their pages.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  const Config config = read_config(options);
  print_notes(options, config);
  const ClusterSpec unchanged = read_cluster(options, config);  // before any what-if
  const std::vector<SimulatePoint> variants = read_variants(options, config, unchanged);
  const std::vector<Simulated> points = points_of(variants, config, options.filter);
  check_trace(options, points);
  const ClusterSpec& cluster = variants[0].cluster;
  RunInfo run = run_info(config, options, points.size());
  const std::string cluster_text = cluster_to_json(unchanged);
  run.cluster = parse_json(cluster_text, "cluster");
  run.cluster_sha256 = sha256_hex(cluster_text);
  run.mode = "simulated";
  run.world_size = cluster.num_gpus();
  ResultWriter writer = ResultWriter::create(
      {.path = options.output, .run = run, .environment = capture_environment()});
  const bool replicas = std::ranges::any_of(points, [](const Simulated& s) {
    return s.point.params.program_ranks() < s.point.params.ranks;
  });
  Progress progress(options, true, int(points.size()));
  std::vector<Point> all;
  std::ranges::transform(points, std::back_inserter(all), &Simulated::point);
  Table<PointRecord> table = record_table(options, all, &progress);
  table.note(
      concat(config.name, ": ", points_text(points.size()), " simulated on ", cluster.name, " (",
             cluster.num_nodes(), " nodes of ", cluster.node_size(), " x ", cluster.device.name,
             ", ", to_string(cluster.topology.kind), "); latencies ",
             options.alpha == "band" ? "as a band" : options.alpha,
             compares_clusters(all) ? "; ratio: to the same point on the cluster as it is" : ""));
  if (replicas)
    table.note(
        "replicas: one group of ranks is simulated, on links of its own; the others do the same");
  table.head();
  UnchangedTimes times;
  int64_t messages = 0;
  double simulation_s = 0;
  int number = 0;
  const double begin = steady_seconds();
  const auto simulate = [&](size_t i) {
    return simulate_point(points[i].point, *points[i].how, !options.trace.empty());
  };
  WorkAhead<SimulatedPoint> simulated(points.size(), simulation_threads(variants[0]), simulate);
  for (const Simulated& s : points) {
    progress.start(++number, describe(s.point.params), 0);
    SimulatedPoint done = simulated.next();
    messages += done.messages;
    simulation_s += done.simulation_s;
    if (!options.trace.empty() && done.record.status == PointStatus::kOk)
      write_trace(table, options.trace, done);
    times.compare(done.record, s.how->what_if);
    add_record(table, writer.append(std::move(done.record)), options);
  }
  const Summary summary = writer.finish(int64_t(points.size()));
  table.finish();
  table.note(concat(
      messages, " messages in ", format_seconds(simulation_s), " of CPU time",
      messages > 0 ? ", messages_per_s " + format_si(double(messages) / simulation_s, "") : "",
      "; all in ", format_seconds(steady_seconds() - begin)));
  print_summary(table, summary,
                summary.counts.at("ok") == 0 ? "; no point could be simulated, they say why" : "",
                writer.directory());
  return summary.verdict == "pass" ? kOk : kFailed;
}

}  // namespace longnet
